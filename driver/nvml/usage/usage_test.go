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

// process is an entry in NVML's lists.
func process(pid uint32, bytes uint64) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: bytes}
}

// gpu is a mock with 1000 bytes in use, 40% busy, no MIG devices, and processes.
func gpu(uuid string, computing, drawing []nvml.ProcessInfo) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:                     func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetMemoryInfoFunc:               func() (nvml.Memory, nvml.Return) { return nvml.Memory{Used: 1000}, nvml.SUCCESS },
		GetUtilizationRatesFunc:         func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 40, Memory: 20}, nvml.SUCCESS },
		GetComputeRunningProcessesFunc:  func() ([]nvml.ProcessInfo, nvml.Return) { return computing, nvml.SUCCESS },
		GetGraphicsRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return drawing, nvml.SUCCESS },
		GetProcessUtilizationFunc:       func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND },
		GetMigModeFunc:                  func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, 0, nvml.SUCCESS },
	}
}

// library has the GPUs; nil is one that cannot be found.
func library(gpus ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc: func() nvml.Return { return nvml.SUCCESS }, ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if gpus[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return gpus[i], nvml.SUCCESS
		},
	}
}

// entry is what gpu says about itself.
func entry(uuid string) watch.GPU {
	return watch.GPU{UUID: uuid, MemoryUsedBytes: new(uint64(1000)), BusyPercent: new(uint32(40)), MemoryBusyPercent: new(uint32(20)), TellsProcesses: true, TellsBusy: true}
}

// TestSample: one GPU that is lost or does not answer hides no other, and a process
// counts once per GPU.
func TestSample(t *testing.T) {
	t.Parallel()
	mute := gpu("GPU-2", nil, nil)
	mute.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
	compute := gpu("GPU-3", []nvml.ProcessInfo{process(7, 1)}, nil)
	compute.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	poor := gpu("GPU-4", nil, nil)
	poor.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	poor.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
	poor.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	broken := gpu("GPU-5", nil, nil)
	broken.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_TIMEOUT }
	broken.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 101, Memory: 3}, nvml.SUCCESS }
	broken.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	lib := library(
		gpu("GPU-0", []nvml.ProcessInfo{process(7, 100), process(8, math.MaxUint64)}, []nvml.ProcessInfo{process(7, 150), process(9, 5)}),
		nil, mute, compute, poor, broken)
	got, err := New(lib).Sample(t.Context())
	muted := entry("GPU-2")
	muted.TellsProcesses = false
	want := &watch.Sample{
		GPUs:      []watch.GPU{entry("GPU-0"), muted, entry("GPU-3"), {UUID: "GPU-4", TellsProcesses: true}, {UUID: "GPU-5", MemoryBusyPercent: new(uint32(3)), TellsProcesses: true}},
		Processes: []watch.Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 150}, {PID: 8, UUID: "GPU-0"}, {PID: 9, UUID: "GPU-0", MemoryBytes: 5}, {PID: 7, UUID: "GPU-3", MemoryBytes: 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, ret := range []nvml.Return{nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN, nvml.ERROR_TIMEOUT, nvml.ERROR_NO_PERMISSION} {
		if !errors.Is(err, ret) {
			t.Errorf("%v is not in the error %v", ret, err)
		}
	}
	if err != nil && (errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || !strings.Contains(err.Error(), "GPU-2: listing its processes")) {
		t.Errorf("got error %v", err)
	}
	if len(lib.InitCalls()) != 7 || len(lib.ShutdownCalls()) != 7 { // once more than there are GPUs
		t.Errorf("opened %d times, closed %d times", len(lib.InitCalls()), len(lib.ShutdownCalls()))
	}
	lib.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if sample, err := New(lib).Sample(t.Context()); !errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED) || sample != nil {
		t.Errorf("got %v, error %v", sample, err)
	}
}

// TestBusy: what is known already does not count again, nonsense does not count,
// and a process without anything new is idle.
func TestBusy(t *testing.T) {
	t.Parallel()
	device := gpu("GPU-0", []nvml.ProcessInfo{process(7, 1), process(8, 1)}, nil)
	answers := [][]nvml.ProcessUtilizationSample{
		{{Pid: 7, TimeStamp: 100, SmUtil: 10}, {Pid: 7, TimeStamp: 200, SmUtil: 31}, {Pid: 8, TimeStamp: 150, SmUtil: 100}, {Pid: 9, TimeStamp: 120, SmUtil: 5}},
		{{Pid: 7, TimeStamp: 200, SmUtil: 31}, {Pid: 8, TimeStamp: 260, SmUtil: 4000}, {Pid: 8, TimeStamp: 250, SmUtil: 50}, {}},
		{},
	}
	var asked []uint64
	device.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		asked = append(asked, since)
		if at := len(asked) - 1; len(answers[at]) > 0 {
			return answers[at], nvml.SUCCESS
		}
		return answers[len(asked)-1], nvml.ERROR_INSUFFICIENT_SIZE
	}
	reader := New(library(device))
	for i, want := range [][2]uint32{{20, 100}, {0, 50}, {0, 0}} {
		sample, err := reader.Sample(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]uint32{sample.Processes[0].BusyPercent, sample.Processes[1].BusyPercent}; got != want || !sample.GPUs[0].TellsBusy {
			t.Errorf("sample %d: got %v, want %v", i, got, want)
		}
	}
	if diff := cmp.Diff([]uint64{0, 200, 250}, asked); diff != "" {
		t.Error(diff)
	}
}

// TestMIG: MIG devices have entries of their own, where the library knows them.
func TestMIG(t *testing.T) {
	t.Parallel()
	none := nvml.ERROR_NOT_SUPPORTED
	mig := gpu("MIG-a", []nvml.ProcessInfo{process(7, 10)}, nil)
	mig.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, none }
	mig.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, none }
	parent := gpu("GPU-0", nil, nil)
	parent.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	parent.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	parent.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		return [...]nvml.Device{nil, mig, nil}[i], [...]nvml.Return{nvml.ERROR_NOT_FOUND, nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST}[i]
	}
	lib := library(parent)
	got, err := New(lib).Sample(t.Context())
	want := &watch.Sample{
		GPUs:      []watch.GPU{entry("GPU-0"), {UUID: "MIG-a", MemoryUsedBytes: new(uint64(1000)), TellsProcesses: true}},
		Processes: []watch.Process{{PID: 7, UUID: "MIG-a", MemoryBytes: 10}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, nvml.ERROR_GPU_IS_LOST) || !strings.Contains(err.Error(), "GPU 0: MIG device 2: finding it") {
		t.Errorf("got error %v", err)
	}
	lib.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return errors.New("no such symbol") }}
	}
	if got, err = New(lib).Sample(t.Context()); err != nil || len(got.GPUs) != 1 {
		t.Errorf("old library: got %+v, %v", got, err)
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
	if _, err := reader.Sample(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v", err)
	}
	if _, err := reader.Sample(t.Context()); err == nil || !strings.Contains(err.Error(), "an earlier question") {
		t.Errorf("got error %v", err)
	}
	close(release)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := reader.Sample(t.Context()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never answers again")
		}
	}
}

// TestHangingGPU: one GPU that hangs is named and left out, again and again, others
// are asked as ever, and it is asked once more when its question has been answered.
func TestHangingGPU(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hanging := gpu("GPU-1", []nvml.ProcessInfo{process(8, 20)}, nil)
	hanging.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		<-release
		return nvml.Memory{Used: 1000}, nvml.SUCCESS
	}
	lib := library(gpu("GPU-0", []nvml.ProcessInfo{process(7, 10)}, nil), hanging, gpu("GPU-2", []nvml.ProcessInfo{process(9, 30)}, nil))
	reader := New(lib)
	reader.gpuTimeout = time.Second
	others := &watch.Sample{
		GPUs:      []watch.GPU{entry("GPU-0"), entry("GPU-2")},
		Processes: []watch.Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 10}, {PID: 9, UUID: "GPU-2", MemoryBytes: 30}},
	}
	for i, after := range []string{"no answer after 1s from call ", "an earlier call still has not returned: ", "an earlier call still has not returned: "} {
		got, err := reader.Sample(t.Context())
		if diff := cmp.Diff(others, got); diff != "" {
			t.Errorf("sample %d: %s", i, diff)
		}
		if want := "asking NVML for usage: GPU 1: " + after + "GetMemoryInfo"; err == nil || err.Error() != want {
			t.Errorf("sample %d: got error %v, want %s", i, err, want)
		}
	}
	if calls := len(hanging.GetMemoryInfoCalls()); calls != 1 {
		t.Errorf("asked %d times", calls)
	}
	close(release)
	all := &watch.Sample{
		GPUs:      []watch.GPU{entry("GPU-0"), entry("GPU-1"), entry("GPU-2")},
		Processes: []watch.Process{others.Processes[0], {PID: 8, UUID: "GPU-1", MemoryBytes: 20}, others.Processes[1]},
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got, err := reader.Sample(t.Context())
		if err == nil {
			if diff := cmp.Diff(all, got); diff != "" {
				t.Error(diff)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never answers again")
		}
	}
}
