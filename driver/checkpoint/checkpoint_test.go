// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

// update writes a golden file that does not exist yet. Existing ones stay: they
// are what released versions wrote.
var update = flag.Bool("update", false, "write missing golden files")

var ignoreUnknown = cmp.Options{cmpopts.IgnoreUnexported(Document{}, Claim{})}

// sample uses every field.
func sample() *Document {
	return &Document{
		NodeName: "node-1",
		BootID:   "5f0a61c2-6cb1-4b7e-b1f8-0d8f3a9e7a11",
		Claims: map[types.UID]*Claim{
			"0d1c-uid-a": {
				Namespace: "default", Name: "train-gpu", State: StateCompleted, Delivery: DeliveryNRI, Enforcer: "hami-core",
				PreparedAt: time.Date(2026, 11, 30, 18, 13, 28, 5000, time.UTC),
				Consumers:  []Consumer{{Name: "train-0", UID: "pod-uid-1"}, {Name: "train-1", UID: "pod-uid-2"}},
				Devices: []Device{
					{Request: "main", Pool: "node-1", Name: "gpu-0123456789ab", ShareID: "share-1", UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef",
						Type: "gpu", PCIAddress: "0000:07:00.0", MemoryMiB: 81920, CDIDevice: "k8s.gpu.topodra.dev/claim=0d1c-uid-a_main_gpu-0123456789ab_share-1",
						Consumed: map[string]int64{"memory": 10 << 30, "cores": 50}, Limit: &Limit{MemoryMiB: 10240, CoresPercent: 50},
						Settings: Settings{TaskPriority: "Low", CorePolicy: "Default", LogLevel: "Warning", Enforcement: "Enforced"}},
					{Request: "other/mig", Pool: "node-1", Name: "gpu-0123456789ab-mig-1", UUID: "MIG-1", Type: "mig",
						ParentUUID: "GPU-01234567-89ab-cdef-0123-456789abcdef", PCIAddress: "0000:07:00.0", AdminAccess: true,
						CDIDevice: "k8s.gpu.topodra.dev/claim=0d1c-uid-a_other.mig_gpu-0123456789ab-mig-1"},
				},
				Groups: []Group{{Container: "pod-uid-1/train", Devices: []int{0, 1}}},
			},
			"1e2d-uid-b": {Namespace: "team", Name: "half", State: StateStarted, Delivery: DeliveryNone, Devices: []Device{}},
		},
	}
}

// TestGolden: what every released version wrote is read, and the present
// version writes the newest of them byte by byte.
func TestGolden(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "v1.json")
	want, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && *update {
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), string(want)); diff != "" {
		t.Errorf("the format has changed within %q: %s", APIVersion, diff)
	}
	read, err := Decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), read, ignoreUnknown); diff != "" {
		t.Error(diff)
	}
}

// TestNewerFieldsSurvive: a file of a version with more fields is no corrupt
// file, and this version writes those fields back.
func TestNewerFieldsSurvive(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "v1-newer-fields.json"))
	if err != nil {
		t.Fatal(err)
	}
	document, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	document.Claims["uid"].State = StateCompleted
	again, err := Encode(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"futureTop":{"a":[1,2]}`, `"futureClaim":"kept"`, `"state":"Completed"`} {
		if !bytes.Contains(again, []byte(want)) {
			t.Errorf("%s is missing from %s", want, again)
		}
	}
	if bytes.Contains(again, []byte("Started")) {
		t.Errorf("the old value is still there: %s", again)
	}
}

func TestDecodeRejects(t *testing.T) {
	t.Parallel()
	good, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	seal := func(data string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"checksum":%q,"data":%s}`, APIVersion, checksum([]byte(data)), data)
	}
	for name, test := range map[string]struct{ content, want string }{
		"empty":           {"", "decoding the document: EOF"},
		"zeros":           {strings.Repeat("\x00", 100), "decoding the document"},
		"cut":             {string(good[:len(good)/2]), "unexpected EOF"},
		"two documents":   {string(good) + string(good), "bytes follow the document"},
		"flipped digit":   {strings.Replace(string(good), "10240", "10241", 1), "checksum is"},
		"newer version":   {strings.Replace(string(good), "/v1", "/v2", 1), `apiVersion is "checkpoint.gpu.topodra.dev/v2"`},
		"other JSON":      {`{"preparedClaims":{}}`, `apiVersion is ""`},
		"no node":         {seal(`{}`), "nodeName is missing"},
		"no name":         {seal(`{"nodeName":"n","claims":{"u":{"state":"Started","delivery":"None"}}}`), `claim "u" has no name`},
		"null claim":      {seal(`{"nodeName":"n","claims":{"u":null}}`), `claim "u" has no name`},
		"unknown state":   {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Odd","delivery":"None"}}}`), `state "Odd" is unknown`},
		"unknown way":     {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"Post"}}}`), `delivery "Post" is unknown`},
		"device unnamed":  {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"None","devices":[{}]}}}`), `device 0 ("") lacks`},
		"limit of zero":   {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"None","devices":[{"request":"r","pool":"p","name":"d","uuid":"u","cdiDevice":"c","limit":{"memoryMiB":0}}]}}}`), "impossible limit"},
		"group too far":   {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"CDI","groups":[{"container":"x","devices":[0]}]}}}`), "names device 0 of 0"},
		"user too far":    {seal(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"CDI","users":[{"pod":"p","container":"x","index":0,"devices":[-1]}]}}}`), "names device -1 of 0"},
		"claims not maps": {seal(`{"nodeName":"n","claims":[1]}`), "decoding the data"},
	} {
		if got, err := Decode([]byte(test.content)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %+v, error %v, want it to contain %q", name, got, err, test.want)
		}
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := NewStore(dir, "node-1")
	empty, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(New("node-1", ""), empty, ignoreUnknown); diff != "" {
		t.Error(diff)
	}
	if err := store.Save(sample()); err != nil {
		t.Fatal(err)
	}
	before := stat(t, store.Path())
	if err := store.Save(sample()); err != nil {
		t.Fatal(err)
	}
	if after := stat(t, store.Path()); !os.SameFile(before, after) {
		t.Error("an unchanged document was written again")
	}
	got, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got, ignoreUnknown); diff != "" {
		t.Error(diff)
	}
	var corrupt *CorruptError
	if _, err := NewStore(dir, "node-2").Load(); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), `it belongs to node "node-1", this is node "node-2"`) {
		t.Errorf("another node's file: got error %v", err)
	}
	bad := sample()
	bad.Claims["x"] = nil
	if err := store.Save(bad); err == nil {
		t.Error("an invalid document was saved")
	}
	if _, err := store.Load(); err != nil {
		t.Errorf("the refused document has damaged the file: %v", err)
	}
}

func TestSetAsideKeepsTheNewest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := NewStore(dir, "node-1")
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxAside + 3 {
		if err := os.WriteFile(store.Path(), fmt.Appendf(nil, "broken %d", i), 0o600); err != nil {
			t.Fatal(err)
		}
		var corrupt *CorruptError
		if _, err := store.Load(); !errors.As(err, &corrupt) || corrupt.Path != store.Path() {
			t.Fatalf("got error %v, want a CorruptError", err)
		}
		aside, err := store.SetAside(start.Add(time.Duration(i) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(aside); err != nil || string(content) != fmt.Sprintf("broken %d", i) {
			t.Errorf("set aside %q: %q, %v", aside, content, err)
		}
		if _, err := store.Load(); err != nil {
			t.Fatalf("after setting aside: %v", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != maxAside || entries[0].Name() != asidePrefix+"20260101T000003.000000000" {
		t.Errorf("kept %v", entries)
	}
}

// TestTwoStoresLoseNothing has two stores on one directory, as two versions of
// the driver have during an update, which add claims under the lock.
func TestTwoStoresLoseNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const each = 20
	var group sync.WaitGroup
	for s := range 2 {
		store := NewStore(dir, "node-1")
		for i := range each {
			group.Go(func() {
				unlock, err := store.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() {
					if err := unlock(); err != nil {
						t.Error(err)
					}
				}()
				document, err := store.Load()
				if err != nil {
					t.Error(err)
					return
				}
				document.Claims[types.UID(fmt.Sprintf("%d-%d", s, i))] = &Claim{Namespace: "n", Name: "c", State: StateStarted, Delivery: DeliveryNone}
				if err := store.Save(document); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	document, err := NewStore(dir, "node-1").Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(document.Claims) != 2*each {
		t.Errorf("got %d claims, want %d", len(document.Claims), 2*each)
	}
}

func TestReadBootID(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "boot_id")
	for content, want := range map[string]string{"abc-1\n": "abc-1", "\n": ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadBootID(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", content, got, err, want)
		}
	}
	if got, err := ReadBootID(BootIDPath); err != nil || len(got) != 36 {
		t.Errorf("this machine: got %q, %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(`{"nodeName":"n","claims":{"u":{"namespace":"a","name":"b","state":"Started","delivery":"None","x":1}},"y":{}}`)
	f.Fuzz(func(t *testing.T, content string) {
		if _, err := Decode([]byte(content)); err == nil {
			return
		}
		// Give the content a valid envelope, so that the inner reader is reached.
		if !json.Valid([]byte(content)) {
			return
		}
		var data bytes.Buffer
		if err := json.Compact(&data, []byte(content)); err != nil {
			t.Fatal(err)
		}
		document, err := Decode(fmt.Appendf(nil, `{"apiVersion":%q,"checksum":%q,"data":%s}`, APIVersion, checksum(data.Bytes()), data.Bytes()))
		if err != nil {
			return
		}
		first, err := Encode(document)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		reread, err := Decode(first)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		second, err := Encode(reread)
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("the second writing differs (%v):\n%s\n%s", err, first, second)
		}
	})
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
