// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"

	"github.com/topodra/topodra/sim/model"
)

// Fill lets the pods of the jobs arrive one after another, for ever; those that find
// no room are dropped. Arrival times and durations play no part. Measurements are
// taken when the GPUs that were asked for first reach each of the given percentages of
// all GPUs, and once more after the last job if that happened in between.
func Fill(ctx context.Context, cfg Config, percentages []int) (*Result, error) {
	s, err := newState(cfg)
	if err != nil {
		return nil, err
	}
	result := &Result{}
	capacity, asked, next := s.Cluster.GPUs()*model.WholeMilli, int64(0), 0
	for i := range s.Jobs {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("filling the cluster: %w", err)
		}
		j := &s.Jobs[i]
		places, err := s.place(j)
		if err != nil {
			return nil, fmt.Errorf("filling the cluster: job %q: %w", j.Name, err)
		}
		if places != nil {
			s.start(i, places)
		}
		if err := s.audit(); err != nil {
			return nil, fmt.Errorf("filling the cluster: job %q: %w", j.Name, err)
		}
		asked += int64(j.GPUs()) * j.Demand.ShareMilli()
		for ; next < len(percentages) && asked*100 >= capacity*int64(percentages[next]); next++ {
			s.fillMetrics(result, fmt.Sprintf("at_%d/", percentages[next]), i+1)
		}
		if s.Progress != nil && i%progressEvery == 0 {
			s.Progress(i)
		}
	}
	if next < len(percentages) {
		return nil, fmt.Errorf("filling the cluster: %d jobs ask for %d percent of its GPUs, %d are wanted",
			len(s.Jobs), asked*100/capacity, percentages[next])
	}
	result.Outcomes = s.outcomes
	result.DecisionMicros, result.Decisions = s.timer.mean()
	return result, nil
}

// fillMetrics adds what is true after the first jobs.
func (s *state) fillMetrics(r *Result, prefix string, jobs int) {
	capacity := float64(s.Cluster.GPUs() * model.WholeMilli)
	r.add(prefix+"allocation_rate", 1-float64(s.Cluster.FreeMilli())/capacity)
	if len(s.Typical) > 0 {
		r.add(prefix+"stranded_rate", s.gauge.fragmentation()/capacity)
	}
	placed := 0
	for i := range s.outcomes[:jobs] {
		if s.outcomes[i].Placed() {
			placed++
		}
	}
	r.add(prefix+"placed_rate", float64(placed)/float64(jobs))
	s.qualityMetrics(r, prefix, 0, jobs)
}
