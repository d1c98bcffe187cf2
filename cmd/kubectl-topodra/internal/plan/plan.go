// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// Job is what shall be placed.
type Job struct {
	// GPUs is how many different GPUs the job needs, at least 1.
	GPUs int
	// Share tells that the job takes only a part of each GPU: MemoryMiB and CoresPercent. Otherwise it takes whole GPUs.
	Share bool
	// MemoryMiB is memory per GPU; 0 in a share means all of it.
	MemoryMiB int64
	// CoresPercent is compute per GPU, 0 to 100; 0 reserves none.
	CoresPercent int64
	// Communicates says whether the GPUs exchange data; Auto takes that for granted of two and more.
	Communicates placement.Communication
}

// State is what the machine has and what is left of it.
type State struct {
	// Free are the GPUs that nobody uses; the others are taken entirely.
	Free topology.Mask
	// GPUMemoryMiB is the memory of each GPU.
	GPUMemoryMiB int64
	// Numbers are what the GPUs are called.
	Numbers Numbers
}

// Answer is the planner's answer with the reasons.
type Answer struct {
	// Best is the set that the job would get.
	Best Choice
	// Alternatives are the next best sets in order.
	Alternatives []Choice
	// Considered is how many sets would fit.
	Considered int
	// Exact is false when the search was cut short, as it is on machines of more than topology.MaxExactGPUs GPUs.
	Exact bool
	// Communicates tells that the job's GPUs are taken to exchange data, so that links come first.
	Communicates bool
}

// Choice is one set of GPUs.
type Choice struct {
	GPUs    topology.Mask
	Quality quality.Quality
	// Tier counts from 0, the best tier that these free GPUs offer.
	Tier int
	// Lost says why the set is not the best; empty for the best.
	Lost string
}

// Check refuses jobs that make no sense on the machine. The messages name the flags of the plan command.
func Check(m *topology.Machine, job Job, state State) error {
	free := state.Free.Count()
	switch {
	case job.GPUs < 1:
		return fmt.Errorf("--gpus must be at least 1, not %d", job.GPUs)
	case job.GPUs > m.N():
		return fmt.Errorf("--gpus %d is more than the %d GPUs of machine %q", job.GPUs, m.N(), m.Name)
	case job.GPUs > free:
		return fmt.Errorf("--gpus %d is more than there are free GPUs (%d: {%s}): ask for fewer, or free some with --free",
			job.GPUs, free, state.Numbers.List(state.Free))
	case !job.Share:
		return nil
	case job.MemoryMiB < 0:
		return errors.New("--memory must not be negative")
	case job.MemoryMiB > state.GPUMemoryMiB:
		return fmt.Errorf("--memory %s is more than a GPU has (%s; --gpu-memory says so)",
			FormatMiB(job.MemoryMiB), FormatMiB(state.GPUMemoryMiB))
	case job.CoresPercent < 0 || job.CoresPercent > 100:
		return fmt.Errorf("--cores must be between 0 and 100 percent, not %d", job.CoresPercent)
	}
	return nil
}

// Make plans the job and explains the answer. alternatives is how many runners-up are wanted.
func Make(ctx context.Context, m *topology.Machine, job Job, state State, alternatives int) (*Answer, error) {
	if err := Check(m, job, state); err != nil {
		return nil, err
	}
	result, err := solve(ctx, m, job, state, alternatives)
	if err != nil {
		return nil, err
	}
	return explain(result), nil
}

// solve asks the planner.
func solve(ctx context.Context, m *topology.Machine, job Job, state State, alternatives int) (*placement.Result, error) {
	class, err := quality.NewClass(m, quality.Options{})
	if err != nil {
		return nil, fmt.Errorf("reading the links of machine %q: %w", m.Name, err)
	}
	planner, err := placement.New(placement.Options{MaxSets: alternatives + 1})
	if err != nil {
		return nil, fmt.Errorf("starting the planner: %w", err)
	}
	result, err := planner.Plan(ctx, inventory(class, m.N(), state), demand(job, m.N(), state))
	if err != nil {
		return nil, fmt.Errorf("planning for machine %q: %w", m.Name, err)
	}
	if len(result.Sets) == 0 {
		return nil, fmt.Errorf("planning for machine %q: %s", m.Name, result.Reason)
	}
	return &result, nil
}

// inventory describes the machine: free GPUs are idle, the others have nothing left.
func inventory(class *quality.Class, n int, state State) placement.Inventory {
	inv := placement.Inventory{
		Class: class, Present: topology.FullMask(n), Idle: state.Free,
		Free: make([]placement.Capacity, n), Total: make([]placement.Capacity, n),
	}
	for i := range n {
		inv.Total[i] = placement.Capacity{MemoryMiB: state.GPUMemoryMiB, CoresPercent: 100}
		if state.Free.Has(i) {
			inv.Free[i] = inv.Total[i]
		}
	}
	return inv
}

func demand(job Job, n int, state State) placement.Demand {
	request := placement.Request{
		Name: "job", Count: job.GPUs, Exclusive: !job.Share, Eligible: topology.FullMask(n),
		Use: placement.Capacity{MemoryMiB: state.GPUMemoryMiB, CoresPercent: 100},
	}
	if job.Share {
		request.Use.CoresPercent = job.CoresPercent
		if job.MemoryMiB > 0 {
			request.Use.MemoryMiB = job.MemoryMiB
		}
	}
	return placement.Demand{Requests: []placement.Request{request}, Communicates: job.Communicates}
}

// FormatMiB prints an amount of memory in the largest binary unit that needs no fraction.
func FormatMiB(mib int64) string {
	if mib != 0 && mib%1024 == 0 {
		return fmt.Sprintf("%dGi", mib/1024)
	}
	return fmt.Sprintf("%dMi", mib)
}
