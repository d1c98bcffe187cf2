// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

// maxUsageAge is how old a sample may be. Older ones say nothing about now.
const maxUsageAge = time.Minute

// Usage is where samples come from: a watch.Watcher.
type Usage interface {
	// Last returns the last observation, nil before the first. It does not wait.
	Last() *watch.Observation

	// Failed counts samples that failed, at least in part.
	Failed() uint64
}

var _ Usage = &watch.Watcher{}

// uses is what was measured.
type uses struct {
	// devices by UUID.
	devices map[string]*watch.GPU

	// containers' devices.
	containers map[key]*use
}

// use is what a container uses of a device.
type use struct {
	memoryBytes uint64
	busyPercent uint32
	tellsBusy   bool
}

// measured takes what still counts from an observation: not too old, about
// devices that are published or hold published ones, and about containers that
// exist. A container that was started anew adds up with what is left of the old
// one. Pure.
func measured(last *watch.Observation, now time.Time, published []Device, known map[string]*owners.Owner) *uses {
	out := &uses{devices: map[string]*watch.GPU{}, containers: map[key]*use{}}
	if last == nil || now.Sub(last.At) > maxUsageAge {
		return out
	}
	present := map[string]bool{}
	for i := range published {
		present[published[i].UUID] = true
		if published[i].Parent != "" {
			present[published[i].Parent] = true
		}
	}
	for i := range last.GPUs {
		if gpu := &last.GPUs[i]; present[gpu.UUID] {
			out.devices[gpu.UUID] = gpu
		}
	}
	for i := range last.Uses {
		one := &last.Uses[i]
		if known[one.ContainerID] == nil {
			continue
		}
		of := get(out.containers, keyOf(one.Owner, one.GPU))
		of.memoryBytes += one.MemoryBytes
		if one.BusyPercent != nil {
			of.tellsBusy = true
			of.busyPercent = min(of.busyPercent+*one.BusyPercent, 100)
		}
	}
	return out
}

// send tells what was measured.
func (u *uses) send(out sink) {
	for uuid, gpu := range u.devices {
		if gpu.MemoryUsedBytes != nil {
			out.send(gpuMemoryUsed, float64(*gpu.MemoryUsedBytes), uuid)
		}
		if gpu.BusyPercent != nil {
			out.send(gpuBusy, ratio(*gpu.BusyPercent), uuid)
		}
		if gpu.MemoryBusyPercent != nil {
			out.send(gpuMemoryBusy, ratio(*gpu.MemoryBusyPercent), uuid)
		}
	}
	for at, of := range u.containers {
		out.send(containerMemoryUsed, float64(of.memoryBytes), at.labels()...)
		if of.tellsBusy {
			out.send(containerBusy, ratio(of.busyPercent), at.labels()...)
		}
	}
}
