// SPDX-License-Identifier: Apache-2.0

package study

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
)

// Record is the result of one run.
type Record struct {
	Scenario, Policy string
	Seed             uint64
	Metrics          []engine.Metric
	// DecisionMicros is the mean time of a decision; it differs from run to run.
	DecisionMicros float64
}

// Progress is told how many of all jobs are done.
type Progress func(done, total int64)

// Run does all runs of the scenarios, a number of them side by side, and returns their
// results in the order of scenarios, policies and seeds.
func Run(ctx context.Context, l *fleet.Loader, scenarios []Scenario, parallel int, progress Progress) ([]Record, error) {
	var all []task
	for i := range scenarios {
		for _, v := range scenarios[i].Policies {
			for seed := range scenarios[i].Seeds {
				all = append(all, task{&scenarios[i], v, firstSeed + uint64(seed)})
			}
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &runner{loader: l, best: model.NewBest(), records: make([]Record, len(all)), progress: progress, total: int64(len(all)) * perRun}
	queue := make(chan int)
	var wg sync.WaitGroup
	for range max(1, parallel) {
		wg.Go(func() {
			for i := range queue {
				if err := r.run(ctx, all[i], &r.records[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range all {
		select {
		case queue <- i:
		case <-ctx.Done():
		}
	}
	close(queue)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return r.records, nil
}

// task is one run to do.
type task struct {
	scenario *Scenario
	variant  Variant
	seed     uint64
}

// runner does tasks.
type runner struct {
	loader   *fleet.Loader
	best     *model.Best
	records  []Record
	progress Progress
	total    int64
	done     atomic.Int64
}

// perRun is how many steps of progress a run counts.
const perRun = 1000

func (r *runner) run(ctx context.Context, t task, out *Record) error {
	fail := func(err error) error {
		return fmt.Errorf("scenario %q, policy %q, seed %d: %w", t.scenario.Name, t.variant.Name, t.seed, err)
	}
	cfg, err := t.scenario.prepare(r.loader, t.seed)
	if err != nil {
		return fail(err)
	}
	if cfg.Policy, err = t.variant.make(policy.Setup{Seed: t.seed, Typical: cfg.Typical}); err != nil {
		return fail(err)
	}
	cfg.Best = r.best
	told := int64(0)
	tell := func(steps int64) {
		if r.progress != nil {
			r.progress(r.done.Add(steps-told), r.total)
		}
		told = steps
	}
	cfg.Progress = func(done int) { tell(perRun * int64(done) / int64(len(cfg.Jobs))) }
	var result *engine.Result
	if t.scenario.List != "" {
		result, err = engine.Fill(ctx, cfg, t.scenario.Percentages)
	} else {
		result, err = engine.Run(ctx, cfg)
	}
	if err != nil {
		return fail(err)
	}
	tell(perRun)
	*out = Record{t.scenario.Name, t.variant.Name, t.seed, result.Metrics, result.DecisionMicros}
	return nil
}

// Summary is a metric of one policy in one scenario, over all seeds.
type Summary struct {
	Scenario, Policy, Metric string
	Estimate
}

// DecisionMetric is the name of the summary of Record.DecisionMicros.
const DecisionMetric = "decision_us"

// Summarise sums up the records of equal scenario and policy, which follow each other.
// Metrics keep their order. The time of decisions comes last.
func Summarise(records []Record) []Summary {
	var out []Summary
	for i := 0; i < len(records); {
		end := i
		for end < len(records) && records[end].Scenario == records[i].Scenario && records[end].Policy == records[i].Policy {
			end++
		}
		group := records[i:end]
		for _, name := range metricNames(group) {
			var values []float64
			for _, r := range group {
				for _, m := range r.Metrics {
					if m.Name == name {
						values = append(values, m.Value)
					}
				}
			}
			out = append(out, Summary{group[0].Scenario, group[0].Policy, name, EstimateOf(values)})
		}
		var times []float64
		for _, r := range group {
			times = append(times, r.DecisionMicros)
		}
		out = append(out, Summary{group[0].Scenario, group[0].Policy, DecisionMetric, EstimateOf(times)})
		i = end
	}
	return out
}

// metricNames returns the names of all metrics of the records, in order of appearance.
func metricNames(records []Record) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range records {
		for _, m := range r.Metrics {
			if !seen[m.Name] {
				seen[m.Name] = true
				out = append(out, m.Name)
			}
		}
	}
	return out
}
