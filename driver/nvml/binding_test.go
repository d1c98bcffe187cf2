// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// childRoot tells a copy of the test binary where the library is.
const childRoot = "TOPODRA_TEST_DRIVER_ROOT"

// TestOldLibrary reads GPUs by the real binding from a library that exports only
// what old drivers do. An unguarded call would end the process, so it is one of its
// own: the same test in a copy of this program.
func TestOldLibrary(t *testing.T) {
	if root := os.Getenv(childRoot); root != "" {
		printSnapshot(t, root)
		return
	}
	root := t.TempDir()
	dir := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The binding itself needs a C compiler, so there is one.
	compile := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", filepath.Join(dir, libraryName), filepath.Join("testdata", "old_nvml.c"))
	if output, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compiling the library: %v\n%s", err, output)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOldLibrary$")
	child.Env = append(os.Environ(), childRoot+"="+root)
	output, err := child.Output()
	if err != nil {
		t.Fatalf("reading GPUs in a process of its own: %v\n%s", err, output)
	}
	var got device.Snapshot
	if err := json.NewDecoder(bytes.NewReader(output)).Decode(&got); err != nil {
		t.Fatalf("decoding %q: %v", output, err)
	}
	m := topology.New("", 2)
	for i := range m.GPUs {
		m.GPUs[i].NVLinkMBps, m.GPUs[i].PCIeGen = 25781, 4
	}
	m.NVLinks[0][1], m.NVLinks[1][0] = 2, 2
	m.PCIe[0][1], m.PCIe[1][0] = topology.PXB, topology.PXB
	gpu := func(uuid device.UUID, address device.PCIAddress, minor device.Minor) device.GPU {
		return device.GPU{UUID: uuid, PCIAddress: address, Minor: &minor, ProductName: "A100-SXM4-40GB", Brand: "Tesla",
			ComputeCapability: &device.Version{Major: 8}, Memory: 40 << 30}
	}
	want := device.Snapshot{
		DriverVersion: &device.Version{Major: 450, Minor: 80, Patch: 2}, CUDADriverVersion: &device.Version{Major: 11},
		Machine: m, GPUs: []device.GPU{gpu("GPU-2", "0000:20:00.0", 2), gpu("GPU-0", "0000:40:00.0", 0)},
		Warnings: []string{"a GPU is left out: GPU with NVML index 1: DeviceGetHandleByIndex for GPU with NVML index 1: GPU is lost"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// printSnapshot is the part of the copy.
func printSnapshot(t *testing.T, root string) {
	t.Helper()
	source, err := New(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Twice, because the library is closed in between.
	for range 2 {
		snapshot, err := source.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(snapshot); err != nil {
			t.Fatal(err)
		}
	}
}
