// SPDX-License-Identifier: Apache-2.0

package owners

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/atomicfile"
)

func TestStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "containers")
	store := NewStore(dir)
	if got, err := store.List(); len(got) > 0 || err != nil {
		t.Errorf("before the first: got %v, %v", got, err)
	}
	if err := store.Retain(func(string) bool { return false }); err != nil {
		t.Error(err)
	}
	installed := filepath.Join(filepath.Dir(dir), "lib", "v1")
	a := &Owner{Namespace: "default", Pod: "train", PodUID: "u", Container: "main", GPUs: []GPU{{UUID: "GPU-1", Claims: []string{"c", "d"}, MemoryLimitMiB: 10, CoresLimitPercent: 20}},
		Paths: []string{"/etc/hosts", filepath.Join(installed, "libvgpu.so"), filepath.Dir(dir) + "-of-others/x"}}
	b := &Owner{Pod: "other"}
	for id, owner := range map[string]*Owner{"a": b, "b": b, "c": b} {
		if err := store.Put(id, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Put("a", a); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.Remove("b"); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"damaged.json": "{", "large.json": strings.Repeat(" ", maxSize+1), ".hidden.json": "{", "note.txt": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.Paths = a.Paths[1:2] // the one below the directory's parent
	got, err := store.List()
	if diff := cmp.Diff(map[string]*Owner{"a": a, "c": b}, got); diff != "" {
		t.Error(diff)
	}
	if err == nil || !strings.Contains(err.Error(), `container "damaged"`) || !strings.Contains(err.Error(), `container "large": it has 1048577 bytes`) || strings.Contains(err.Error(), "hidden") {
		t.Errorf("got error %v", err)
	}
	temp := filepath.Join(dir, atomicfile.TempPrefix+"1")
	if err := os.WriteFile(temp, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Retain(func(id string) bool { return id == "a" }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(temp); !os.IsNotExist(err) {
		t.Errorf("what a killed process was writing: got %v, want it gone", err)
	}
	if got, err := store.List(); len(got) != 1 || got["a"] == nil || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	for dir, want := range map[string]bool{installed: true, installed + "/libvgpu.so": true, filepath.Dir(installed): true, installed[:len(installed)-1]: false, installed + "1": false} {
		if a.Uses(dir) != want {
			t.Errorf("%q is used: %t, want %t", dir, !want, want)
		}
	}
	if !a.Limited() || b.Limited() || !(&Owner{GPUs: []GPU{{}, {MemoryLimitMiB: 1}}}).Limited() || (&Owner{GPUs: []GPU{{}}}).Limited() {
		t.Error("limited owners are told apart wrongly")
	}
	for _, bad := range []string{"", ".", "..", "../x", ".x", "a/b"} {
		if store.Put(bad, a) == nil || store.Remove(bad) == nil {
			t.Errorf("%q is accepted as a container ID", bad)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"namespace":"a","gpus":[{"uuid":"x","claims":null}]}`)
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		owner, err := read(path)
		if err == nil && owner == nil {
			t.Error("neither an owner nor an error")
		}
	})
}
