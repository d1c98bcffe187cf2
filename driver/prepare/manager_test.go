// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/internal/filelock"
)

// TestPrepareAndUnprepare follows one claim with a share of two GPUs.
func TestPrepareAndUnprepare(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 2, memory: 20, cores: 30}, result{request: "r", gpu: 0, memory: 10, cores: 0})
	f.cluster.add(pod, c)
	manager := f.manager()
	got, err := manager.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
	if err != nil {
		t.Fatal(err)
	}
	want := map[types.UID]kubeletplugin.PrepareResult{c.UID: {Devices: []kubeletplugin.Device{
		{Requests: []string{"r"}, PoolName: nodeName, DeviceName: "gpu-cccccccccccc", ShareID: new(types.UID("share-c-0")),
			CDIDeviceIDs: []string{"k8s.gpu.topodra.dev/claim=uid-c_r_gpu-cccccccccccc_share-c-0"}},
		{Requests: []string{"r"}, PoolName: nodeName, DeviceName: "gpu-aaaaaaaaaaaa", ShareID: new(types.UID("share-c-1")),
			CDIDeviceIDs: []string{"k8s.gpu.topodra.dev/claim=uid-c_r_gpu-aaaaaaaaaaaa_share-c-1"}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The allocation lists GPU 2 first; by PCI address it is number 1.
	for i := range 2 {
		variables := env(f.spec(c.UID), i)
		for name, want := range map[string]string{
			"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m", "CUDA_DEVICE_SM_LIMIT_0": "100",
			"CUDA_DEVICE_MEMORY_LIMIT_1": "20480m", "CUDA_DEVICE_SM_LIMIT_1": "30",
			"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1",
		} {
			if variables[name] != want {
				t.Errorf("device %d: %s is %q, want %q", i, name, variables[name], want)
			}
		}
		if guarded(f.spec(c.UID), i) {
			t.Errorf("device %d is guarded although its limits are in the spec", i)
		}
	}
	if diff := cmp.Diff([]string{"record uid-c Completed", "spec uid-c", "region claims/uid-c/pod-train_main"}, f.world()); diff != "" {
		t.Error(diff)
	}
	if f.log.statuses[c.UID] != "prepared" {
		t.Errorf("status is %q", f.log.statuses[c.UID])
	}
	for range 2 {
		unprepared, err := manager.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: c.UID}})
		if err != nil || len(unprepared) != 1 || unprepared[c.UID] != nil {
			t.Fatalf("got %v, %v", unprepared, err)
		}
		if diff := cmp.Diff([]string{}, f.world()); diff != "" {
			t.Error(diff)
		}
	}
	if f.log.statuses[c.UID] != "unprepared" {
		t.Errorf("status is %q", f.log.statuses[c.UID])
	}
}

// TestD02_PrepareAgain: the same answer, by the same process and by another one,
// and the running container's region survives.
func TestD02_PrepareAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 20})
	f.cluster.add(pod, c)
	first := f.manager()
	want, err := first.Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	usage := filepath.Join(f.state, regionsDir, "claims", "uid-c", "pod-train_main", "vgpu.cache")
	if err := os.WriteFile(usage, []byte("in use"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, manager := range []*Manager{first, f.manager(), f.manager()} {
		got, err := manager.Prepare(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if content, err := os.ReadFile(usage); err != nil || string(content) != "in use" {
		t.Errorf("the region of a running container was touched: %q, %v", content, err)
	}
}

// TestD03_LostSpecIsWrittenAgain: a repeated Prepare does not trust the record.
func TestD03_LostSpecIsWrittenAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 20})
	f.cluster.add(pod, c)
	manager := f.manager()
	f.prepare(manager, c)
	before := f.world()
	for _, lost := range []string{f.cdiDir, filepath.Join(f.state, regionsDir)} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		f.prepare(f.manager(), c)
		if diff := cmp.Diff(before, f.world()); diff != "" {
			t.Errorf("after losing %q: %s", lost, diff)
		}
	}
}

// TestStaleCalls: calls that come late, twice or for an earlier claim of the
// same name do no harm.
func TestStaleCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	old := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 80})
	f.cluster.add(pod, old)
	manager := f.manager()
	f.prepare(manager, old)
	if err := manager.Unprepare(t.Context(), old.UID); err != nil {
		t.Fatal(err)
	}
	// Another claim of that name, and then a late Unprepare for the first.
	renewed := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 80})
	renewed.UID = "uid-renewed"
	f.cluster.add(renewed)
	f.prepare(manager, renewed)
	before := f.world()
	if err := manager.Unprepare(t.Context(), old.UID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, f.world()); diff != "" {
		t.Errorf("a late Unprepare has done harm: %s", diff)
	}
	// A late Prepare for a claim that nobody has reserved any more leaves
	// nothing that nobody would remove.
	late := old.DeepCopy()
	late.Status.ReservedFor = nil
	requireRefusal(t, manager, late, ReasonNotReserved, "no pod has reserved the claim")
	// One that still looks reserved makes state again; it is found to be gone.
	other := claim("d", []*corev1.Pod{pod}, result{request: "r", gpu: 1, memory: 40})
	f.prepare(manager, other)
	f.cluster.remove(pod)
	f.cluster.remove(renewed)
	if err := manager.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{}, f.world()); diff != "" {
		t.Error(diff)
	}
	if err := manager.Unprepare(t.Context(), ""); err == nil {
		t.Error("an empty UID is accepted")
	}
}

// TestNewAllocation: a claim that was allocated anew without an Unprepare gets
// what it has now, and nothing of before stays.
func TestNewAllocation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod, second := podWith("train", "app:main=c"), podWith("again", "app:other=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 20})
	f.cluster.add(pod, second, c)
	manager := f.manager()
	f.prepare(manager, c)
	moved := claim("c", []*corev1.Pod{second}, result{request: "r", gpu: 1, memory: 40})
	f.prepare(manager, moved)
	if diff := cmp.Diff([]string{"record uid-c Completed", "spec uid-c", "region claims/uid-c/pod-again_other"}, f.world()); diff != "" {
		t.Error(diff)
	}
	if got := env(f.spec("uid-c"), 0)["CUDA_DEVICE_MEMORY_LIMIT_0"]; got != "40960m" {
		t.Errorf("the limit is %q", got)
	}
}

// TestV02_ConfigurationOfOneRequestOnly: each request is limited by what holds
// for it, also when only one of them has a configuration.
func TestV02_ConfigurationOfOneRequestOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:one=c/a", "app:two=c/b/sub")
	c := claim("c", []*corev1.Pod{pod}, result{request: "a", gpu: 0, memory: 10}, result{request: "b/sub", gpu: 1, memory: 20})
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
		{Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"b"}, DeviceConfiguration: opaque(api.DriverName, `{"logLevel":"Debug","taskPriority":"High","corePolicy":"Force"}`)}}
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	for i, want := range []map[string]string{
		{"LIBCUDA_LOG_LEVEL": "2", "CUDA_TASK_PRIORITY": "1", "GPU_CORE_UTILIZATION_POLICY": "DEFAULT", "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"},
		{"LIBCUDA_LOG_LEVEL": "4", "CUDA_TASK_PRIORITY": "0", "GPU_CORE_UTILIZATION_POLICY": "FORCE", "CUDA_DEVICE_MEMORY_LIMIT_0": "20480m"},
	} {
		got := env(f.spec(c.UID), i)
		for name, value := range want {
			if got[name] != value {
				t.Errorf("request %d: %s is %q, want %q", i, name, got[name], value)
			}
		}
	}
}

// TestTwoManagersAtOnce: two drivers on one state directory prepare, repeat and
// unprepare many claims at once; what stays is exactly what was not unprepared,
// and no GPU was ever overbooked.
func TestTwoManagersAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const claims = 24 // 6 per GPU, of which 4 fit
	managers := []*Manager{f.manager(), f.manager()}
	var all []*resourceapi.ResourceClaim
	for i := range claims {
		name := fmt.Sprintf("c%02d", i)
		pod := podWith("pod-"+name, "app:main="+name)
		all = append(all, claim(name, []*corev1.Pod{pod}, result{request: "r", gpu: i % 4, memory: 20, cores: 25}))
		f.cluster.add(pod, all[i])
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	prepared := map[types.UID]bool{}
	for i, c := range all {
		group.Go(func() {
			for k := range 2 {
				_, err := managers[(i+k)%2].Prepare(t.Context(), c)
				refusal, refused := errors.AsType[*Refusal](err)
				if err != nil && (!refused || refusal.Reason != ReasonOverlap) {
					t.Error(err)
				}
				if err == nil {
					mu.Lock()
					prepared[c.UID] = true
					mu.Unlock()
				}
			}
			if i%3 == 0 {
				if err := managers[i%2].Unprepare(t.Context(), c.UID); err != nil {
					t.Error(err)
				}
				mu.Lock()
				delete(prepared, c.UID)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	document := f.document()
	onGPU := map[string]int{}
	for uid, record := range document.Claims {
		if !prepared[uid] || record.State != checkpoint.StateCompleted {
			t.Errorf("claim %s is recorded as %s, prepared: %t", uid, record.State, prepared[uid])
		}
		onGPU[record.Devices[0].UUID]++
	}
	for uuid, count := range onGPU {
		if count > 4 {
			t.Errorf("%d claims of a quarter are on GPU %s", count, uuid)
		}
	}
	if len(document.Claims) != len(prepared) || len(f.world()) != 3*len(prepared) {
		t.Errorf("%d claims should be there; got %q", len(prepared), f.world())
	}
}

// TestLockTimeout: a call does not wait for ever for another process.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0})
	f.cluster.add(pod, c)
	manager := f.manager()
	manager.options.LockTimeout = 20 * time.Millisecond
	unlock, err := filelock.Lock(t.Context(), filepath.Join(f.state, checkpoint.LockFileName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Prepare(t.Context(), c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	f.prepare(manager, c)
}

func TestNewManagerValidates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good := f.manager().options
	for name, change := range map[string]func(o *Options){
		"node": func(o *Options) { o.NodeName = "" }, "state": func(o *Options) { o.StateDir = "x" }, "root": func(o *Options) { o.StateDir = "/" },
		"inventory": func(o *Options) { o.Inventory = nil }, "CDI": func(o *Options) { o.CDIDir = "x" }, "timeout": func(o *Options) { o.LockTimeout = -1 },
	} {
		options := good
		change(&options)
		if _, err := NewManager(options); err == nil {
			t.Errorf("%s: a bad value is accepted", name)
		}
	}
}
