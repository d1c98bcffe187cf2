// SPDX-License-Identifier: Apache-2.0

package region

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDouble reads what C code writes that knows the layout by itself: the test
// double of HAMi-core, preloaded into two processes.
func TestDouble(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library, file := filepath.Join(dir, "double.so"), filepath.Join(dir, "vgpu.cache")
	source := filepath.Join("..", "..", "..", "..", "test", "e2e", "vgpudouble", "src", "vgpudouble.c")
	compile := exec.CommandContext(t.Context(), "cc", "-std=gnu17", "-shared", "-fPIC", "-o", library, source)
	if said, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compiling the double: %v: %s", err, said)
	}
	var pids []int32
	for range 2 {
		tenant := exec.CommandContext(t.Context(), "true")
		tenant.Env = append(os.Environ(), "LD_PRELOAD="+library, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+file,
			"CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT_0=30", "CUDA_DEVICE_MEMORY_LIMIT_1=1g")
		if said, err := tenant.CombinedOutput(); err != nil {
			t.Fatalf("running a process: %v: %s", err, said)
		}
		pids = append(pids, int32(tenant.Process.Pid))
	}
	got, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	want := &Region{
		GPUs: 2, MemoryLimitBytes: []uint64{3000 << 20, 1 << 30}, CoresLimitPercent: []uint64{30, 100},
		Processes: []Process{
			{PID: pids[0], Memory: []Memory{{Total: 1 << 20}, {}}},
			{PID: pids[1], Memory: []Memory{{Total: 1 << 20}, {}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
