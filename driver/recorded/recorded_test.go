// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// write puts a recording into a file.
func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRecordedMachines: every machine gives a valid snapshot that keeps its links,
// has a product, and is the same every time but for the node.
func TestRecordedMachines(t *testing.T) {
	t.Parallel()
	for _, name := range topotest.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := topotest.Bytes(name)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "machine.json")
			write(t, path, data)
			first := discover(t, path, "node-a")
			if diff := cmp.Diff(first, discover(t, path, "node-a")); diff != "" {
				t.Errorf("second time: %s", diff)
			}
			recorded, err := topotest.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(recorded.Machine, first.Machine); diff != "" {
				t.Error(diff)
			}
			other := discover(t, path, "node-b")
			for i := range first.GPUs {
				if first.GPUs[i].UUID == other.GPUs[i].UUID {
					t.Errorf("GPU %d has the same UUID on two nodes", i)
				}
				if named := recorded.Product.Name != ""; named == (first.GPUs[i].ProductName == unknownProduct.name) {
					t.Errorf("GPU %d of product %q is a %q", i, recorded.Product.Name, first.GPUs[i].ProductName)
				}
			}
			if !first.Simulated {
				t.Error("a recording is called real")
			}
		})
	}
}

// discover must succeed and be valid.
func discover(t *testing.T, path, node string) *device.Snapshot {
	t.Helper()
	snapshot, err := New(path, node).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Validate(); err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// TestGPU pins what is made up, because names of devices follow from it.
func TestGPU(t *testing.T) {
	t.Parallel()
	recorded, err := topotest.Load("vast_8xv100_sxm2_32g")
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := Snapshot(recorded, "node-a")
	if err != nil {
		t.Fatal(err)
	}
	want := device.GPU{
		UUID: "GPU-fd5c84c6-4aa0-41ab-b0cb-ed2b36f465fc", PCIAddress: "0000:0a:00.0", PCIeRoot: "pci0000:09", Minor: new(device.Minor(1)),
		ProductName: "Tesla V100-SXM2-32GB", Brand: "Tesla", Architecture: "Volta", ComputeCapability: &device.Version{Major: 7}, Memory: 32 << 30,
	}
	if diff := cmp.Diff(want, snapshot.GPUs[1]); diff != "" {
		t.Error(diff)
	}
	if got, want := snapshot.DriverVersion.String()+" "+snapshot.CUDADriverVersion.String(), "580.95.5 13.0.0"; got != want {
		t.Errorf("versions: got %s, want %s", got, want)
	}
}

// TestRoots: GPUs below one host bridge share a root, also through a third one.
func TestRoots(t *testing.T) {
	t.Parallel()
	m := topology.New("roots", 6)
	for _, pair := range []struct {
		i, j  int
		class topology.PCIe
	}{{0, 1, topology.PIX}, {4, 2, topology.PXB}, {1, 4, topology.PHB}, {3, 5, topology.NODE}} {
		m.PCIe[pair.i][pair.j], m.PCIe[pair.j][pair.i] = pair.class, pair.class
	}
	if diff := cmp.Diff([]int{0, 0, 0, 3, 0, 5}, rootMembers(m)); diff != "" {
		t.Error(diff)
	}
}

func TestFindProduct(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		token, text, name string
		mib               int
	}{
		{"A100", "4x A100 PCIe", "NVIDIA A100-SXM4-40GB", 40960},
		{"A100", "4x A100-SXM-80GB, NV4 mesh", "NVIDIA A100-SXM4-80GB", 81920},
		{"A100", "a100_4x_80g", "NVIDIA A100-SXM4-80GB", 81920},
		{"A100", "a100_4x80gpus", "NVIDIA A100-SXM4-40GB", 40960}, // "80g" is a part of a word.
		{"A100", "A100 80 GB", "NVIDIA A100-SXM4-80GB", 81920},
		{"A100", "A100 with 32GB", "NVIDIA A100-SXM4-40GB", 40960},
		{"V100", "8x Tesla V100-SXM2-32GB (rented)", "Tesla V100-SXM2-32GB", 32768},
		{"RTXA6000", "3x RTX A6000", "NVIDIA RTX A6000", 49140},
		{"4090", "", "NVIDIA GeForce RTX 4090", 24564},
		{"RTX4090", "", "NVIDIA GeForce RTX 4090", 24564},
		{"RTXPRO6000", "", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887},
		{"Z999", "Z999 80GB", "Simulated GPU", 16384},
		{"", "", "Simulated GPU", 16384},
	} {
		got := findProduct(tc.token, tc.text)
		if got.name != tc.name || got.memory != device.Bytes(tc.mib)*device.MiB {
			t.Errorf("%q in %q: got %q with %d MiB, want %q with %d", tc.token, tc.text, got.name, got.memory/device.MiB, tc.name, tc.mib)
		}
	}
}

// TestModels: every product that the topology library knows is in the table, and
// only once.
func TestModels(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range models {
		for token := range strings.FieldsSeq(m.tokens) {
			if seen[token] {
				t.Errorf("%q is in the table twice", token)
			}
			seen[token] = true
			found, ok := topology.FindProduct(token)
			if !ok && !strings.HasPrefix(m.name, "NVIDIA RTX") && !strings.HasPrefix(m.name, "Quadro RTX") {
				t.Errorf("%q is never found", token)
			}
			if ok && findProduct(found.Name, "").name != m.memoryless().name {
				t.Errorf("%q is found as %q", token, findProduct(found.Name, "").name)
			}
		}
	}
}

// memoryless returns the product with the memory size it has by default.
func (m *model) memoryless() product { return m.withMemory("") }

func TestDiscoverFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	write(t, broken, []byte(`{"gpus":[`))
	if _, err := New(broken, "node").Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("broken file: got error %v", err)
	}
	if _, err := New(filepath.Join(dir, "none.json"), "node").Discover(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(broken, "node").Discover(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}
