// SPDX-License-Identifier: Apache-2.0

// Package usage asks NVML what GPUs and the processes on them use, for
// driver/enforce/watch.
//
// Calls that not every supported driver has are looked up before they are made.
// NVML can hang when the kernel driver does; a GPU about which a question has not
// been answered is not asked again until it is, and others are.
//
// What a GPU does not support is left out in silence, what fails is left out and
// in the error, and neither hinders other GPUs.
//
// Concurrency: safe for concurrent use. Allowed imports: the standard library,
// driver/enforce/watch, driver/nvml/internal/guard, go-nvml.
package usage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/nvml/internal/guard"
)

// gpuTimeout is for all questions about one GPU and its MIG devices, each of which
// takes milliseconds. It leaves time to ask others before the next sample.
const gpuTimeout = watch.DefaultPeriod / 5

// Reader implements watch.Source.
type Reader struct {
	lib        nvml.Interface
	gpuTimeout time.Duration
	busy       chan struct{}
	gpus       *guard.Guard[int, *watch.Sample] // by NVML's index

	mu sync.Mutex
	// seen is the newest time, in NVML's own units, of what is known about
	// processes, by UUID.
	seen map[string]uint64
}

var _ watch.Source = &Reader{}

// New returns a Reader on NVML, which need not be initialised.
func New(lib nvml.Interface) *Reader {
	return &Reader{lib: lib, gpuTimeout: gpuTimeout, busy: make(chan struct{}, 1), gpus: guard.New[int, *watch.Sample](), seen: map[string]uint64{}}
}

// answer of NVML.
type answer struct {
	sample *watch.Sample
	err    error
}

// Sample implements watch.Source.
func (r *Reader) Sample(ctx context.Context) (*watch.Sample, error) {
	select {
	case r.busy <- struct{}{}:
	default:
		return nil, errors.New("asking NVML for usage: an earlier question has not been answered yet; the kernel driver may hang")
	}
	done := make(chan answer, 1)
	go func() {
		sample, err := r.read(ctx)
		// Before the answer is told: who has it may ask again at once.
		<-r.busy
		done <- answer{sample, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			return a.sample, fmt.Errorf("asking NVML for usage: %w", a.err)
		}
		return a.sample, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("asking NVML for usage: %w", context.Cause(ctx))
	}
}

// read asks about all GPUs, one after the other.
func (r *Reader) read(ctx context.Context) (sample *watch.Sample, finalErr error) {
	if ret := r.lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("opening the library: %w", ret)
	}
	defer func() {
		if ret := r.lib.Shutdown(); ret != nvml.SUCCESS {
			finalErr = errors.Join(finalErr, fmt.Errorf("closing the library: %w", ret))
		}
	}()
	count, ret := r.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("counting GPUs: %w", ret)
	}
	sample = &watch.Sample{}
	listsMIG := r.listsMIG()
	var errs []error
	for i := range count {
		if err := ctx.Err(); err != nil {
			errs = append(errs, fmt.Errorf("GPU %d: %w", i, err))
			break // Nobody waits for the answer.
		}
		part, err := r.gpus.Do(ctx, i, r.gpuTimeout, func(begin func(string)) (*watch.Sample, error) { return r.readGPU(i, listsMIG, begin) })
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %d: %w", i, err))
		}
		if part != nil {
			sample.GPUs, sample.Processes = append(sample.GPUs, part.GPUs...), append(sample.Processes, part.Processes...)
		}
	}
	return sample, errors.Join(errs...)
}

// readGPU asks about a GPU and its MIG devices. It may outlast the sample that it is
// for.
func (r *Reader) readGPU(index int, listsMIG bool, begin func(string)) (*watch.Sample, error) {
	begin("Init")
	if ret := r.lib.Init(); ret != nvml.SUCCESS { // Counted: it stays open for as long as this hangs.
		return nil, fmt.Errorf("opening the library: %w", ret)
	}
	defer func() { _ = r.lib.Shutdown() }() // Whoever opened it first sees errors.
	begin("DeviceGetHandleByIndex")
	handle, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("finding it: %w", ret)
	}
	sample := &watch.Sample{}
	err := r.readDevice(handle, sample, begin)
	if listsMIG {
		err = errors.Join(err, r.readMIG(handle, sample, begin))
	}
	return sample, err
}

// readDevice asks about a GPU or MIG device.
func (r *Reader) readDevice(handle nvml.Device, sample *watch.Sample, begin func(string)) error {
	begin("GetUUID")
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading its UUID: %w", ret)
	}
	gpu := watch.GPU{UUID: uuid}
	var errs []error
	begin("GetMemoryInfo")
	memory, ret := handle.GetMemoryInfo()
	if ok, err := answered(uuid, "reading its memory", ret); ok {
		gpu.MemoryUsedBytes = &memory.Used
	} else {
		errs = append(errs, err)
	}
	begin("GetUtilizationRates")
	rates, ret := handle.GetUtilizationRates()
	if ok, err := answered(uuid, "reading its utilization", ret); ok {
		gpu.BusyPercent, gpu.MemoryBusyPercent = percent(rates.Gpu), percent(rates.Memory)
	} else {
		errs = append(errs, err)
	}
	processes, err := processesOf(handle, uuid, begin)
	gpu.TellsProcesses = err == nil
	errs = append(errs, err)
	begin("GetProcessUtilization")
	busy, ok, err := r.busyProcesses(handle, uuid)
	gpu.TellsBusy = ok
	errs = append(errs, err)
	for i := range processes {
		processes[i].BusyPercent = busy[processes[i].PID]
	}
	sample.GPUs = append(sample.GPUs, gpu)
	sample.Processes = append(sample.Processes, processes...)
	return errors.Join(errs...)
}

// answered says whether there is an answer; without one the error is nil if the
// GPU just does not support the question.
func answered(uuid, what string, ret nvml.Return) (bool, error) {
	switch ret {
	case nvml.SUCCESS:
		return true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return false, nil
	default:
		return false, fmt.Errorf("%s: %s: %w", uuid, what, ret)
	}
}

// percent returns nil for what is no percentage.
func percent(value uint32) *uint32 {
	if value > 100 {
		return nil
	}
	return &value
}

// processesOf lists the processes. One that computes and draws is in both of
// NVML's lists with the same memory, and counts once.
func processesOf(handle nvml.Device, uuid string, begin func(string)) ([]watch.Process, error) {
	begin("GetComputeRunningProcesses")
	computing, ret := handle.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: listing its processes: %w", uuid, ret)
	}
	begin("GetGraphicsRunningProcesses")
	drawing, ret := handle.GetGraphicsRunningProcesses()
	if ret != nvml.SUCCESS {
		drawing = nil // Many compute GPUs do not have it.
	}
	position := map[uint32]int{}
	var out []watch.Process
	for _, process := range append(computing, drawing...) {
		if process.UsedGpuMemory == math.MaxUint64 {
			process.UsedGpuMemory = 0 // NVML's way of saying that it does not know.
		}
		at, seen := position[process.Pid]
		if !seen {
			at = len(out)
			position[process.Pid] = at
			out = append(out, watch.Process{PID: int(process.Pid), UUID: uuid})
		}
		out[at].MemoryBytes = max(out[at].MemoryBytes, process.UsedGpuMemory)
	}
	return out, nil
}

// busyProcesses asks how busy processes have kept the GPU since the last time. A
// process without an entry has been idle. ok is false when it is not known.
func (r *Reader) busyProcesses(handle nvml.Device, uuid string) (busy map[int]uint32, ok bool, err error) {
	r.mu.Lock()
	since := r.seen[uuid]
	r.mu.Unlock()
	samples, ret := handle.GetProcessUtilization(since)
	switch {
	case ret == nvml.SUCCESS:
	case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(samples) == 0:
		return nil, true, nil // All idle.
	default:
		ok, err := answered(uuid, "reading the utilization of its processes", ret)
		return nil, ok, err
	}
	sum, count := map[int]uint32{}, map[int]uint32{}
	newest := since
	for i := range samples {
		s := &samples[i]
		if s.TimeStamp <= since || s.SmUtil > 100 {
			continue // An entry that was not filled in, or known already.
		}
		sum[int(s.Pid)] += s.SmUtil
		count[int(s.Pid)]++
		newest = max(newest, s.TimeStamp)
	}
	r.mu.Lock()
	r.seen[uuid] = newest
	r.mu.Unlock()
	for pid := range sum {
		sum[pid] /= count[pid]
	}
	return sum, true, nil
}

// migSymbols are needed to list MIG devices.
var migSymbols = []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}

// listsMIG says whether the library knows MIG devices.
func (r *Reader) listsMIG() bool {
	for _, symbol := range migSymbols {
		if r.lib.Extensions().LookupSymbol(symbol) != nil {
			return false
		}
	}
	return true
}

// readMIG asks about the MIG devices of a GPU.
func (r *Reader) readMIG(handle nvml.Device, sample *watch.Sample, begin func(string)) error {
	begin("GetMigMode")
	mode, _, ret := handle.GetMigMode()
	// What could not be asked is in the error about the GPU itself.
	if enabled := ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE; !enabled {
		return nil
	}
	begin("GetMaxMigDeviceCount")
	count, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("counting its MIG devices: %w", ret)
	}
	var errs []error
	for i := range count {
		begin("GetMigDeviceHandleByIndex")
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		switch ret {
		case nvml.SUCCESS:
			if err := r.readDevice(mig, sample, begin); err != nil {
				errs = append(errs, fmt.Errorf("MIG device %d: %w", i, err))
			}
		case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT: // An empty place.
		default:
			errs = append(errs, fmt.Errorf("MIG device %d: finding it: %w", i, ret))
		}
	}
	return errors.Join(errs...)
}
