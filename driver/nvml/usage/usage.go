// SPDX-License-Identifier: Apache-2.0

// Package usage asks NVML which processes use how much memory of which GPU, for
// driver/enforce/watch.
//
// Only calls are made that every supported driver has. NVML can hang when the
// kernel driver does; a question that has not been answered is not asked again
// until it is.
//
// Concurrency: safe for concurrent use. Allowed imports: the standard library,
// driver/enforce/watch, go-nvml.
package usage

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/enforce/watch"
)

// Reader implements watch.Processes.
type Reader struct {
	lib  nvml.Interface
	busy chan struct{}
}

var _ watch.Processes = &Reader{}

// New returns a Reader on NVML, which need not be initialised.
func New(lib nvml.Interface) *Reader { return &Reader{lib: lib, busy: make(chan struct{}, 1)} }

// answer of NVML.
type answer struct {
	processes []watch.Process
	err       error
}

// Processes implements watch.Processes.
func (r *Reader) Processes(ctx context.Context) ([]watch.Process, error) {
	select {
	case r.busy <- struct{}{}:
	default:
		return nil, errors.New("asking NVML for processes: an earlier question has not been answered yet; the kernel driver may hang")
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-r.busy }()
		processes, err := r.read()
		done <- answer{processes, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			return a.processes, fmt.Errorf("asking NVML for processes: %w", a.err)
		}
		return a.processes, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("asking NVML for processes: %w", context.Cause(ctx))
	}
}

// read asks about all GPUs. One that cannot be asked is in the error.
func (r *Reader) read() (out []watch.Process, finalErr error) {
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
	var errs []error
	for i := range count {
		processes, err := r.readGPU(i)
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %d: %w", i, err))
		}
		out = append(out, processes...)
	}
	return out, errors.Join(errs...)
}

// readGPU asks about one GPU. A process that computes and draws is in both lists
// with the same memory, and counts once.
func (r *Reader) readGPU(index int) ([]watch.Process, error) {
	device, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("finding it: %w", ret)
	}
	uuid, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("reading its UUID: %w", ret)
	}
	computing, ret := device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: listing its processes: %w", uuid, ret)
	}
	drawing, ret := device.GetGraphicsRunningProcesses()
	if ret != nvml.SUCCESS {
		drawing = nil // Many compute GPUs do not have it.
	}
	most := map[uint32]uint64{}
	var order []uint32
	for _, process := range append(computing, drawing...) {
		if process.UsedGpuMemory == math.MaxUint64 {
			continue // NVML's way of saying that it does not know.
		}
		if _, seen := most[process.Pid]; !seen {
			order = append(order, process.Pid)
		}
		most[process.Pid] = max(most[process.Pid], process.UsedGpuMemory)
	}
	out := make([]watch.Process, 0, len(order))
	for _, pid := range order {
		out = append(out, watch.Process{PID: int(pid), UUID: uuid, MemoryBytes: most[pid]})
	}
	return out, nil
}
