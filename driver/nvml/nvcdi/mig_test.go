// SPDX-License-Identifier: Apache-2.0

package nvcdi

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// withCapabilities gives this goroutine a /proc/driver of its own, in which the kernel
// driver tells the numbers of the capabilities of GPU instance 2 of GPU 0 and its
// compute instance. It takes root, as making device files does. The thread ends with
// the test.
func withCapabilities(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // Never unlocked: nobody else gets this thread.
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", "/proc/driver", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/proc/driver/nvidia-caps", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/driver/nvidia-caps/mig-minors", []byte("gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// migLibrary is go-nvml's mock with a MIG device of GPU 0.
func migLibrary(t *testing.T) (lib *server.Server, uuid string) {
	t.Helper()
	lib, _ = library(t)
	parent := lib.Devices[0]
	uuid = "MIG-01234567-89ab-cdef-0123-456789abcdef"
	mig := &mock.Device{
		IsMigDeviceHandleFunc:                  func() (bool, nvml.Return) { return true, nvml.SUCCESS },
		GetUUIDFunc:                            func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetIndexFunc:                           func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		GetComputeInstanceIdFunc:               func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return parent, nvml.SUCCESS },
		GetMemoryInfoFunc:                      func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 40 << 30}, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 3, MemorySizeMB: 20096}, nvml.SUCCESS
		},
	}
	find := lib.DeviceGetHandleByUUIDFunc
	lib.DeviceGetHandleByUUIDFunc = func(wanted string) (nvml.Device, nvml.Return) {
		if wanted == uuid {
			return mig, nvml.SUCCESS
		}
		return find(wanted)
	}
	instance := &mock.GpuInstance{
		GetInfoFunc: func() (nvml.GpuInstanceInfo, nvml.Return) {
			return nvml.GpuInstanceInfo{Id: 2, ProfileId: nvml.GPU_INSTANCE_PROFILE_3_SLICE}, nvml.SUCCESS
		},
		GetComputeInstanceProfileInfoFunc: func(profile, _ int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			return nvml.ComputeInstanceProfileInfo{Id: uint32(profile), SliceCount: 3}, nvml.SUCCESS
		},
		GetComputeInstanceByIdFunc: func(int) (nvml.ComputeInstance, nvml.Return) {
			return &mock.ComputeInstance{GetInfoFunc: func() (nvml.ComputeInstanceInfo, nvml.Return) {
				return nvml.ComputeInstanceInfo{ProfileId: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE}, nvml.SUCCESS
			}}, nvml.SUCCESS
		},
	}
	if device, ok := parent.(*server.Device); ok {
		device.GetGpuInstanceByIdFunc = func(int) (nvml.GpuInstance, nvml.Return) { return instance, nvml.SUCCESS }
	}
	return lib, uuid
}

// TestMIGEdits: a container with a MIG device gets the file of its GPU and those of both
// instances; as long as one of these is missing, it gets an error and no half of them.
func TestMIGEdits(t *testing.T) {
	withCapabilities(t)
	lib, uuid := migLibrary(t)
	root := driverTree(t, lib, "nvidiactl", "nvidia0")
	if err := os.Mkdir(filepath.Join(root, "dev", "nvidia-caps"), 0o755); err != nil {
		t.Fatal(err)
	}
	base := newBase(t, lib, root)
	for _, missing := range []string{"nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"} {
		if _, err := base.Edits(t.Context(), []string{uuid}); err == nil || !strings.Contains(err.Error(), "the files of its capabilities are missing") || !strings.Contains(err.Error(), uuid) {
			t.Errorf("without %s: got error %v", missing, err)
		}
		makeDevice(t, root, missing)
	}
	edits, err := base.Edits(t.Context(), []string{uuid})
	if err != nil {
		t.Fatal(err)
	}
	got := nodePaths(edits.Devices[uuid])
	slices.Sort(got)
	if want := []string{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia0"}; !slices.Equal(got, want) {
		t.Errorf("got device files %q, want %q", got, want)
	}
}
