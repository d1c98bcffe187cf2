// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// What a whole GPU consists of.
const (
	// WholeMilli is all memory of a GPU, in per mille.
	WholeMilli = 1000
	// WholeCores is all compute of a GPU, in percent.
	WholeCores = 100
)

// Demand is what one pod asks for. It is comparable: equal demands can be answered
// alike.
type Demand struct {
	// GPUs is the number of distinct GPUs of one node; 0 for pods without GPUs.
	GPUs int
	// MemoryMilli is what the pod takes of each GPU's memory, 1 to 1000 per mille.
	// 1000 takes the GPU as a whole.
	MemoryMilli int64
	// CoresPercent is what it takes of each GPU's compute, 0 to 100 percent.
	CoresPercent int64
	// CPUMilli and HostMiB are what it takes of the node besides its GPUs.
	CPUMilli, HostMiB int64
	// Models are the GPU models that will do, joined by "|"; empty for all.
	Models string
	// Communicates says that the pod's GPUs exchange data, so that their links
	// matter.
	Communicates bool
}

// Whole reports whether the demand takes whole GPUs.
func (d Demand) Whole() bool { return d.MemoryMilli == WholeMilli }

// ShareMilli is the larger one of the two shares of a GPU, in per mille: what
// policies see that know one number per GPU.
func (d Demand) ShareMilli() int64 {
	return max(d.MemoryMilli, d.CoresPercent*WholeMilli/WholeCores)
}

// Validate checks the ranges.
func (d Demand) Validate() error {
	switch {
	case d.GPUs < 0 || d.GPUs > topology.MaxGPUs:
		return fmt.Errorf("%d GPUs is not in 0..%d", d.GPUs, topology.MaxGPUs)
	case d.GPUs == 0 && (d.MemoryMilli != 0 || d.CoresPercent != 0):
		return errors.New("parts of a GPU are demanded, but no GPU")
	case d.GPUs > 0 && (d.MemoryMilli < 1 || d.MemoryMilli > WholeMilli):
		return fmt.Errorf("%d per mille of a GPU's memory is not in 1..%d", d.MemoryMilli, WholeMilli)
	case d.CoresPercent < 0 || d.CoresPercent > WholeCores:
		return fmt.Errorf("%d percent of a GPU's compute is not in 0..%d", d.CoresPercent, WholeCores)
	case d.CPUMilli < 0 || d.HostMiB < 0:
		return fmt.Errorf("%d mCPU and %d MiB of the host must not be negative", d.CPUMilli, d.HostMiB)
	}
	return nil
}

// admits reports whether the demand accepts the GPU model.
func (d Demand) admits(model string) bool {
	if d.Models == "" {
		return true
	}
	for name := range strings.SplitSeq(d.Models, "|") {
		if name == model {
			return true
		}
	}
	return false
}

// use is what the demand consumes of one GPU. A whole GPU has no compute left to
// give, whatever was asked.
func (d Demand) use() placement.Capacity {
	if d.Whole() {
		return placement.Capacity{MemoryMiB: WholeMilli, CoresPercent: WholeCores}
	}
	return placement.Capacity{MemoryMiB: d.MemoryMilli, CoresPercent: d.CoresPercent}
}

// Placement returns the demand as the planner takes it, the same that the scheduler
// plugin makes of a claim with one request: whole GPUs are exclusive, and pods
// that were not marked otherwise communicate. The demand must be for GPUs.
func (d Demand) Placement() placement.Demand {
	communicates := placement.No
	if d.Communicates {
		communicates = placement.Yes
	}
	return placement.Demand{
		Requests: []placement.Request{{
			Name: "gpus", Count: d.GPUs, Use: d.use(), Exclusive: d.Whole(), Eligible: topology.FullMask(topology.MaxGPUs),
		}},
		Communicates: communicates,
	}
}

// Millis is virtual time or a span of it, in milliseconds.
type Millis int64

// Second is one second of virtual time.
const Second Millis = 1000

// Seconds returns the time in seconds.
func (m Millis) Seconds() float64 { return float64(m) / float64(Second) }

// Job is a number of equal pods that start together and end together.
type Job struct {
	// Name is for people.
	Name string
	// Arrival is when the job is submitted, Duration how long it runs with the best
	// links that its pods could have. Both are 0 or more.
	Arrival, Duration Millis
	// Pods is the number of pods, at least 1.
	Pods int
	// Demand is that of each pod.
	Demand Demand
	// SlowPermille says how much slower the job runs over links that are
	// [ReferenceRatio] times as slow as the best, in per mille of Duration; 0 for
	// jobs that do not notice.
	SlowPermille int64
}

// GPUs is the number of GPUs of all pods.
func (j *Job) GPUs() int { return j.Pods * j.Demand.GPUs }

// Validate checks the ranges.
func (j *Job) Validate() error {
	switch {
	case j.Arrival < 0 || j.Duration < 0:
		return fmt.Errorf("job %q: arrival %d ms and duration %d ms must not be negative", j.Name, j.Arrival, j.Duration)
	case j.Pods < 1:
		return fmt.Errorf("job %q: %d pods, expected at least 1", j.Name, j.Pods)
	case j.SlowPermille < 0:
		return fmt.Errorf("job %q: the slow-down of %d per mille must not be negative", j.Name, j.SlowPermille)
	}
	if err := j.Demand.Validate(); err != nil {
		return fmt.Errorf("job %q: %w", j.Name, err)
	}
	return nil
}
