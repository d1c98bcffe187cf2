// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

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
	node.gpus[0].GetNameFunc = func() (string, nvml.Return) {
		<-release
		return "late", nvml.SUCCESS
	}
	source := newSource(node, node)
	source.timeout = 20 * time.Millisecond
	_, err := source.Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer after 20ms from call GetName of GPU") {
		t.Errorf("first: got error %v", err)
	}
	_, err = source.Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "an earlier call still has not returned: GetName of GPU") {
		t.Errorf("second: got error %v", err)
	}
	close(release)
	source.timeout = time.Minute
	for {
		snapshot, err := source.Discover(t.Context())
		if err == nil {
			if snapshot.GPUs[0].ProductName != "late" {
				t.Errorf("got %+v", snapshot.GPUs[0])
			}
			break
		}
		if !strings.Contains(err.Error(), "an earlier call") {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if inits, shutdowns := len(node.InitCalls()), len(node.ShutdownCalls()); inits != 2 || shutdowns != 2 {
		t.Errorf("%d times opened, %d times closed, want 2 each", inits, shutdowns)
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
