// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// simulate writes a machine and what is special about it, and returns the path.
func simulate(t *testing.T, machine, simulation string) string {
	t.Helper()
	data, err := topotest.Bytes(machine)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), machine+".json")
	write(t, path, data)
	if simulation != "" {
		write(t, path+SimulationSuffix, []byte(`{"apiVersion":"`+SimulationVersion+`",`+simulation+`}`))
	}
	return path
}

// TestSimulatedDevices: what is lost is left out and nothing else changes; a link
// that is down and a GPU in MIG mode change the links of those GPUs alone.
func TestSimulatedDevices(t *testing.T) {
	t.Parallel()
	const machine = "dgx1v_8xv100"
	whole := discover(t, simulate(t, machine, ""), "node-a")
	changed := discover(t, simulate(t, machine, `"gpus":[{"index":1,"lost":true,"mig":null},{"index":5,"hangs":true},{"index":7,"xids":[79],"remap":"pending","mig":null}],"links":[{"gpus":[3,0],"down":1},{"gpus":[2,4],"down":9}]`), "node-a")
	want := *whole
	m := whole.Machine.Clone()
	m.NVLinks[0][3]--
	m.NVLinks[3][0]--
	m.NVLinks[2][4], m.NVLinks[4][2] = 0, 0
	rest := topology.FullMask(8).Without(1).Without(5)
	want.Machine, want.GPUs = m.Sub(rest), nil
	for i := range rest.All() {
		want.GPUs = append(want.GPUs, whole.GPUs[i])
	}
	want.Warnings = changed.Warnings[len(whole.Warnings):]
	want.Warnings = append(slices.Clone(whole.Warnings), want.Warnings...)
	if diff := cmp.Diff(&want, changed); diff != "" || len(changed.Warnings) != len(whole.Warnings)+2 {
		t.Errorf("warnings %q: %s", changed.Warnings, diff)
	}
	if m.NVLinks[0][3] != 1 {
		t.Errorf("%d links are left between GPUs 0 and 3, the test expects another machine", m.NVLinks[0][3])
	}

	mig := discover(t, simulate(t, machine, `"gpus":[{"index":2,"mig":[{"profile":"1c.3g.40gb","gpuInstance":2,"computeInstance":1},{"profile":"4g.40gb","gpuInstance":1}]},{"index":3,"mig":[]}]`), "node-a")
	gpu := mig.GPUs[2]
	uuids := []device.UUID{}
	for i := range gpu.MIGDevices {
		uuids = append(uuids, gpu.MIGDevices[i].UUID)
		gpu.MIGDevices[i].UUID = ""
	}
	devices := []device.MIGDevice{
		{Profile: "4g.40gb", Memory: 40 << 30, GPUInstance: 1, GPUSlices: 4, ComputeSlices: 4},
		{Profile: "1c.3g.40gb", Memory: 40 << 30, GPUInstance: 2, ComputeInstance: 1, GPUSlices: 3, ComputeSlices: 1},
	}
	if diff := cmp.Diff(devices, gpu.MIGDevices); diff != "" || !gpu.MIGEnabled || !mig.GPUs[3].MIGEnabled || mig.GPUs[3].MIGDevices != nil || mig.GPUs[0].MIGEnabled {
		t.Error(diff)
	}
	if uuids[0] == uuids[1] || !strings.HasPrefix(string(uuids[0]), "MIG-") {
		t.Errorf("got UUIDs %q", uuids)
	}
	for k := range 8 {
		if mig.Machine.NVLinks[2][k] != 0 || mig.Machine.NVLinks[k][3] != 0 {
			t.Errorf("a GPU in MIG mode has links with GPU %d", k)
		}
	}
	all := `"gpus":[{"index":0,"lost":true},{"index":1,"lost":true},{"index":2,"lost":true},{"index":3,"lost":true}]`
	if none := discover(t, simulate(t, "a30_4x_pairs", strings.ReplaceAll(all, "}", `,"mig":null}`)), "node-a"); len(none.GPUs) != 0 {
		t.Errorf("got %d GPUs", len(none.GPUs))
	}
}

// TestSimulatedHealth: what is in the file is what is seen, and GPUs that are not in
// it are well.
func TestSimulatedHealth(t *testing.T) {
	t.Parallel()
	path := simulate(t, "dgx1v_8xv100", `"gpus":[{"index":1,"lost":true},{"index":2,"hangs":true},{"index":3,"uncorrectedErrors":4,"remap":"failed"},
		{"index":4,"fabric":"failed","recovery":"reset"},{"index":5,"remap":"pending","xids":[13,79]}],"links":[{"gpus":[0,3],"down":1}]`)
	prober := NewProber(path, "node-a")
	got, err := prober.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []health.Observation
	for i, gpu := range discover(t, simulate(t, "dgx1v_8xv100", ""), "node-a").GPUs {
		want = append(want, health.Observation{UUID: gpu.UUID, ActiveLinks: new(6)})
		if i > 0 && i < 6 {
			want[i].UncorrectedErrors, want[i].Remap = new(uint64(0)), &health.Remap{}
		}
	}
	*want[0].ActiveLinks, *want[3].ActiveLinks = 5, 5
	want[1].Lost, want[2].Hangs = "it is simulated to be lost", "a question, in the simulation"
	*want[3].UncorrectedErrors, want[3].Remap.Failed = 4, true
	want[4].Fabric, want[4].Recovery, want[5].Remap.Pending = health.FabricFailed, health.RecoveryReset, true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var events []health.Event
	prober.Watch(ctx, func(event health.Event) {
		if events = append(events, event); len(events) == 3 {
			cancel()
		}
	})
	five := want[5].UUID
	if diff := cmp.Diff([]health.Event{{GPU: five, XID: 13}, {GPU: five, XID: 79}, {GPU: five, XID: 13}}, events[:3]); diff != "" {
		t.Error(diff)
	}

	write(t, path+SimulationSuffix, []byte(`{"apiVersion":"`+SimulationVersion+`","nvml":"unavailable"}`))
	if _, err := prober.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "NVML is simulated to be unavailable") {
		t.Errorf("got error %v", err)
	}
	if _, err := New(path, "node-a").Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "NVML is simulated to be unavailable") {
		t.Errorf("got error %v", err)
	}
	write(t, path+SimulationSuffix, []byte(`{`))
	for _, f := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := prober.Probe(ctx); return err },
		func(ctx context.Context) error { _, err := New(path, "node-a").Discover(ctx); return err },
	} {
		if err := f(t.Context()); err == nil || !strings.Contains(err.Error(), SimulationSuffix) {
			t.Errorf("got error %v", err)
		}
	}
}

// TestSimulationRejects: what makes no sense is said, not taken for "no fault".
func TestSimulationRejects(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		`unknown field "gpu"`:                 `"gpu":[]`,
		`nvml is "gone"`:                      `"nvml":"gone"`,
		"GPU 1 is there twice":                `"gpus":[{"index":1},{"index":1}]`,
		"GPU 64 is there twice, or there is":  `"gpus":[{"index":64}]`,
		`GPU 0: remap is "bad"`:               `"gpus":[{"index":0,"remap":"bad"}]`,
		`GPU 0: fabric is "bad"`:              `"gpus":[{"index":0,"fabric":"bad"}]`,
		`GPU 0: recovery is "bad"`:            `"gpus":[{"index":0,"recovery":"bad"}]`,
		`MIG profile "9g.10gb"`:               `"gpus":[{"index":0,"mig":[{"profile":"9g.10gb"}]}]`,
		"GPU instance 0, compute instance 0":  `"gpus":[{"index":0,"mig":[{"profile":"1g.10gb"},{"profile":"1g.10gb"}]}]`,
		"1 links between GPUs 2 and 2 cannot": `"links":[{"gpus":[2,2],"down":1}]`,
		"-1 links between GPUs 2 and 3":       `"links":[{"gpus":[2,3],"down":-1}]`,
	} {
		_, err := ParseSimulation([]byte(`{"apiVersion":"` + SimulationVersion + `",` + text + `}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "{}", `{"apiVersion":"` + SimulationVersion + `"} {}`, strings.Repeat(" ", maxSimulation+1)} {
		if _, err := ParseSimulation([]byte(text)); err == nil {
			t.Errorf("%.40q: no error", text)
		}
	}
}

// FuzzSimulation: no content stops the driver or makes an invalid snapshot.
func FuzzSimulation(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"` + SimulationVersion + `","gpus":[{"index":1,"lost":true,"mig":[{"profile":"1c.3g.40gb"}]}],"links":[{"gpus":[0,3],"down":2}]}`))
	recording, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		simulation, err := ParseSimulation(data)
		if err != nil {
			return
		}
		snapshot, err := Snapshot(recording, "node-a")
		if err != nil {
			t.Fatal(err)
		}
		if simulation.NVML != "" {
			return
		}
		if snapshot, err = simulation.apply(snapshot); err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Validate(); err != nil {
			t.Fatal(err)
		}
		for i, up := range simulation.links(recording) {
			if up < 0 || up > 6 {
				t.Errorf("GPU %d has %d links", i, up)
			}
		}
	})
}
