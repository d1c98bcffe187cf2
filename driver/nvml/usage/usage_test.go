// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/enforce/watch"
)

// gpu is a mock with processes; ret is the answer to the question for them.
func gpu(uuid string, ret nvml.Return, graphics nvml.Return, computing, drawing []nvml.ProcessInfo) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:                     func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetComputeRunningProcessesFunc:  func() ([]nvml.ProcessInfo, nvml.Return) { return computing, ret },
		GetGraphicsRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return drawing, graphics },
	}
}

// library has the GPUs; nil is one that cannot be found.
func library(gpus ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc: func() nvml.Return { return nvml.SUCCESS }, ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if gpus[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return gpus[i], nvml.SUCCESS
		},
	}
}

// TestProcesses: one GPU that is lost or does not answer hides no other, and a
// process counts once per GPU.
func TestProcesses(t *testing.T) {
	t.Parallel()
	lib := library(
		gpu("GPU-0", nvml.SUCCESS, nvml.SUCCESS,
			[]nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 100}, {Pid: 8, UsedGpuMemory: math.MaxUint64}}, []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 150}, {Pid: 9, UsedGpuMemory: 5}}),
		nil,
		gpu("GPU-2", nvml.ERROR_UNKNOWN, nvml.SUCCESS, nil, nil),
		gpu("GPU-3", nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 1}}, nil),
	)
	got, err := New(lib).Processes(t.Context())
	want := []watch.Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 150}, {PID: 9, UUID: "GPU-0", MemoryBytes: 5}, {PID: 7, UUID: "GPU-3", MemoryBytes: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, nvml.ERROR_GPU_IS_LOST) || !errors.Is(err, nvml.ERROR_UNKNOWN) || !strings.Contains(err.Error(), "GPU-2: listing its processes") {
		t.Errorf("got error %v", err)
	}
	if len(lib.InitCalls()) != 1 || len(lib.ShutdownCalls()) != 1 {
		t.Errorf("opened %d times, closed %d times", len(lib.InitCalls()), len(lib.ShutdownCalls()))
	}
	lib.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if _, err := New(lib).Processes(t.Context()); !errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED) {
		t.Errorf("got error %v", err)
	}
}

// TestHang: a question that hangs is given up, and asked again only when it has
// been answered.
func TestHang(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	lib := library()
	lib.InitFunc = func() nvml.Return { <-release; return nvml.SUCCESS }
	reader := New(lib)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := reader.Processes(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v", err)
	}
	if _, err := reader.Processes(t.Context()); err == nil || !strings.Contains(err.Error(), "an earlier question") {
		t.Errorf("got error %v", err)
	}
	close(release)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := reader.Processes(t.Context()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never answers again")
		}
	}
}
