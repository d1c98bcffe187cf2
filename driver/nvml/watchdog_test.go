// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// newMIG builds a MIG device.
func newMIG(uuid string, gpuInstance int, name string, named nvml.Return) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return name, named },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gpuInstance, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 1, MemorySizeMB: 40000}, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			if named != nvml.SUCCESS {
				return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.Memory{Total: 9856 << 20}, nvml.SUCCESS
		},
	}
}

// TestHang: a call that hangs is named, does not hold Discover back, and no second
// one is started before it returns.
func TestHang(t *testing.T) {
	t.Parallel()
	node := newFakeNode(t, topology.New("", 1))
	release := make(chan struct{})
	node.SystemGetDriverVersionFunc = func() (string, nvml.Return) {
		<-release
		return "999.1", nvml.SUCCESS
	}
	source := newSource(node, node)
	source.timeout = 20 * time.Millisecond
	_, err := source.Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer after 20ms from call SystemGetDriverVersion") {
		t.Errorf("first: got error %v", err)
	}
	_, err = source.Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "an earlier call still has not returned: SystemGetDriverVersion") {
		t.Errorf("second: got error %v", err)
	}
	close(release)
	source.timeout = time.Minute
	snapshot := untilReturned(t, source, func(_ *device.Snapshot, err error) bool { return err == nil })
	if snapshot.DriverVersion.Major != 999 {
		t.Errorf("got %+v", snapshot.DriverVersion)
	}
	requireClosed(t, node)
}

// TestHangingGPU: a GPU whose call hangs is left out, with the call's name, and the
// others are found as if nothing were; it is not asked again before the call has
// returned, and then it is back.
func TestHangingGPU(t *testing.T) {
	t.Parallel()
	m := load(t, "dgx1v_8xv100")
	node := newFakeNode(t, m)
	release, calls := make(chan struct{}), &atomic.Int32{}
	node.gpus[2].GetNameFunc = func() (string, nvml.Return) {
		calls.Add(1)
		<-release
		return "late", nvml.SUCCESS
	}
	source := newSource(node, node)
	source.hanging.timeout = 50 * time.Millisecond
	for i, want := range []string{"no answer after 50ms from call GetName of GPU ", "an earlier call still has not returned: GetName of GPU "} {
		source.timeout = time.Minute
		snapshot, err := source.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rest := m.Sub(topology.MaskOf(0, 1, 3, 4, 5, 6, 7))
		if diff := cmp.Diff(rest.NVLinks, snapshot.Machine.NVLinks); len(snapshot.GPUs) != 7 || diff != "" {
			t.Errorf("discovery %d: %d GPUs: %s", i, len(snapshot.GPUs), diff)
		}
		if len(snapshot.Warnings) == 0 || !strings.Contains(snapshot.Warnings[0], "a GPU is left out: GPU with NVML index 5: "+want) {
			t.Errorf("discovery %d: got warnings %q", i, snapshot.Warnings)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the hanging call was made %d times", n)
	}
	close(release)
	snapshot := untilReturned(t, source, func(snapshot *device.Snapshot, err error) bool { return err == nil && len(snapshot.GPUs) == 8 })
	if snapshot.GPUs[2].ProductName != "late" || len(snapshot.Warnings) != 0 {
		t.Errorf("got %+v, warnings %q", snapshot.GPUs[2], snapshot.Warnings)
	}
	requireClosed(t, node)
}

// untilReturned discovers until the answer is good: what hung takes a moment.
func untilReturned(t *testing.T, source *Source, good func(*device.Snapshot, error) bool) *device.Snapshot {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		snapshot, err := source.Discover(t.Context())
		if good(snapshot, err) {
			return snapshot
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %+v, error %v", snapshot, err)
		}
	}
}

// requireClosed checks that the library was closed as often as it was opened.
func requireClosed(t *testing.T, node *fakeNode) {
	t.Helper()
	if inits, shutdowns := len(node.InitCalls()), len(node.ShutdownCalls()); inits == 0 || inits != shutdowns {
		t.Errorf("%d times opened, %d times closed", inits, shutdowns)
	}
}

// TestReturned: work that has returned does not stand in the way of the next, however
// soon that comes.
func TestReturned(t *testing.T) {
	t.Parallel()
	w := newWatchdog()
	for i := range 50_000 {
		if _, err := w.run(t.Context(), time.Minute, func(func(string)) (*device.Snapshot, error) { return nil, nil }); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
}

// TestInterrupted: the end of the context ends the wait.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	node := newFakeNode(t, topology.New("", 1))
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	node.InitFunc = func() nvml.Return {
		cancel()
		<-release
		return nvml.SUCCESS
	}
	_, err := newSource(node, node).Discover(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "in call Init") {
		t.Errorf("got error %v", err)
	}
}

// TestNoDriver: errors of the whole node say what to do, and close what they opened.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       "is NVIDIA's driver installed, and below --driver-root?",
		nvml.ERROR_DRIVER_NOT_LOADED:       "load NVIDIA's kernel module",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "of different versions",
		nvml.ERROR_UNKNOWN:                 "discovering GPUs by NVML: opening the library: ",
	} {
		node := newFakeNode(t, topology.New("", 1))
		node.InitFunc = func() nvml.Return { return ret }
		_, err := newSource(node, node).Discover(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ret) {
			t.Errorf("%d: got error %v, want %q", ret, err, want)
		}
		if n := len(node.ShutdownCalls()); n != 0 {
			t.Errorf("%d: closed %d times without being open", ret, n)
		}
	}
	node := newFakeNode(t, topology.New("", 1))
	node.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := newSource(node, node).Discover(t.Context()); !errors.Is(err, nvml.ERROR_UNKNOWN) || len(node.ShutdownCalls()) != 1 {
		t.Errorf("got error %v, closed %d times", err, len(node.ShutdownCalls()))
	}
}

// TestRealLibraryMissing: the real binding, on a root without a driver, fails in an
// orderly way.
func TestRealLibraryMissing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, libraryName)
	if err := os.WriteFile(path, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := findLibrary(root); got != path {
		t.Errorf("library: got %q, want %q", got, path)
	}
	if got := findLibrary(t.TempDir()); got != libraryName {
		t.Errorf("no library: got %q, want %q", got, libraryName)
	}
	source, err := New(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Discover(t.Context()); !errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND) {
		t.Errorf("got error %v", err)
	}
}

func TestAddressOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]device.PCIAddress{
		"00000000:07:00.0": "0000:07:00.0", "0000:AB:1F.7": "0000:ab:1f.7", "0000FFFF:FF:FF.0": "ffff:ff:ff.0",
		"FFFFFFFF:FF:FF.0": "", "00010000:07:00.0": "", "": "", "07:00.0": "", "0000:07:00.8": "", "00000000:07:00.0x": "",
	} {
		pci := nvml.PciInfo{}
		copyText(pci.BusId[:], text)
		got, ok := addressOf(&pci)
		if got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", text, got, ok, want)
		}
	}
	legacy := nvml.PciInfo{}
	copyText(legacy.BusIdLegacy[:], "0001:0a:00.0")
	if got, ok := addressOf(&legacy); !ok || got != "0001:0a:00.0" {
		t.Errorf("legacy: got %q, %v", got, ok)
	}
}
