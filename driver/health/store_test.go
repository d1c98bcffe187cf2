// SPDX-License-Identifier: Apache-2.0

package health

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// sample has one of everything.
func sample() *Document {
	d := NewDocument("node-a", "boot-1")
	at := newClock().now
	d.Conditions = []Condition{{Target: "GPU-a", Source: "p", Finding: finding(KindXID, "79", Fatal), Since: at, LastSeen: at.Add(time.Hour)}}
	d.Known["GPU-a"] = &KnownGPU{
		GPU: device.GPU{UUID: "GPU-a", PCIAddress: "0000:07:00.0", Minor: new(device.Minor(3)), ComputeCapability: &device.Version{Major: 9}, Memory: 80 << 30,
			Fabric: &device.Fabric{ClusterUUID: [16]byte{1, 15: 255}, CliqueID: 7}, MIGEnabled: true, MIGDevices: []device.MIGDevice{{UUID: "MIG-a", Profile: "1g.10gb", GPUInstance: 7}}},
		Info: topology.GPUInfo{NUMA: 1, PCIeGen: 5}, PCIe: map[device.UUID]topology.PCIe{"GPU-b": topology.PXB},
	}
	d.Baselines["GPU-a"] = Baseline{UncorrectedErrors: 2, ActiveLinks: 18}
	return d
}

// TestRoundTrip: what is saved is what is read.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	store := NewStore(t.TempDir(), "node-a")
	empty, problem, err := store.Load("boot-1", time.Now())
	if err != nil || problem != nil {
		t.Fatal(err, problem)
	}
	if diff := cmp.Diff(NewDocument("node-a", "boot-1"), empty); diff != "" {
		t.Error(diff)
	}
	if err := store.Save(sample()); err != nil {
		t.Fatal(err)
	}
	got, problem, err := store.Load("boot-1", time.Now())
	if err != nil || problem != nil {
		t.Fatal(err, problem)
	}
	if diff := cmp.Diff(sample(), got, cmp.AllowUnexported(Condition{})); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(store.Path())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v", info, err)
	}

	// After a reboot, what was measured does not count any more; conditions do.
	got, problem, err = store.Load("boot-2", time.Now())
	if err != nil || problem != nil {
		t.Fatal(err, problem)
	}
	want := NewDocument("node-a", "boot-2")
	want.Conditions = sample().Conditions
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Condition{})); diff != "" {
		t.Errorf("another boot: %s", diff)
	}
}

// TestCorruptFile: whatever cannot be used is set aside and said, the document is
// empty then and can be saved, and evidence does not fill the disk.
func TestCorruptFile(t *testing.T) {
	t.Parallel()
	good, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, by string) string {
		text := strings.Replace(string(good), old, by, 1)
		if text == string(good) {
			t.Fatalf("%q is not there", old)
		}
		return text
	}
	dir := t.TempDir()
	store, now := NewStore(dir, "node-a"), newClock().now
	for want, content := range map[string]string{
		"unexpected EOF":             string(good[:len(good)/2]),
		"EOF":                        "",
		"2 bytes follow":             string(good) + "{}",
		`apiVersion is "v0"`:         replace(APIVersion, "v0"),
		`it belongs to node "other"`: replace(`"node-a"`, `"other"`),
		`unknown kind "colour"`:      replace(`"xid"`, `"colour"`),
		`unknown severity "mild"`:    replace(`"fatal"`, `"mild"`),
		`unknown state "Happy"`:      replace(`"Unhealthy"`, `"Happy"`),
		`has value "7/9"`:            replace(`"79"`, `"7/9"`),
		"a condition has no target":  replace(`"target": "GPU-a"`, `"target": ""`),
		"known under another name":   replace(`"UUID": "GPU-a"`, `"UUID": "GPU-x"`),
		"negative number of links":   replace(`"activeLinks": 18`, `"activeLinks": -1`),
	} {
		if err := os.WriteFile(store.Path(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
		document, problem, err := store.Load("boot-1", now)
		if err != nil || problem == nil || !strings.Contains(problem.Error(), want) || !strings.Contains(problem.Error(), "set aside as") {
			t.Errorf("got problem %v, error %v, want %q", problem, err, want)
			continue
		}
		if diff := cmp.Diff(NewDocument("node-a", "boot-1"), document); diff != "" {
			t.Errorf("%s: %s", want, diff)
		}
		aside, err := os.ReadFile(filepath.Join(dir, asidePrefix+now.UTC().Format("20060102T150405.000000000")))
		if err != nil || string(aside) != content {
			t.Errorf("%s: set aside %q, %v", want, aside, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != maxAside {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
	twice := sample()
	twice.Conditions = append(twice.Conditions, twice.Conditions[0])
	if _, err := Encode(twice); err == nil || !strings.Contains(err.Error(), "is there twice") {
		t.Errorf("got error %v", err)
	}
}

// TestSaveFails: an error is an error, and nothing is half there.
func TestSaveFails(t *testing.T) {
	t.Parallel()
	store := NewStore(filepath.Join(t.TempDir(), "missing"), "node-a")
	if err := store.Save(sample()); err == nil || !strings.Contains(err.Error(), "saving the health of GPUs") {
		t.Errorf("got error %v", err)
	}
	if err := os.Mkdir(filepath.Dir(store.Path()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(sample()); err != nil {
		t.Errorf("again: got error %v", err)
	}
}

// FuzzDecode: no content stops the driver, and what is read can be written, used and
// read again.
func FuzzDecode(f *testing.F) {
	good, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"apiVersion":"health.gpu.topodra.dev/v1","known":{"":null}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		document, err := Decode(content)
		if err != nil {
			return
		}
		again, err := Encode(document)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatal(err)
		}
		l := NewLedger(Policy{}, document, nil, nil)
		l.Taints("GPU-a", "")
		full, _ := l.complete(&device.Snapshot{}, true)
		if err := full.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
