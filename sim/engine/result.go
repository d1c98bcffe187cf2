// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Metric is one measured number.
type Metric struct {
	Name  string
	Value float64
}

// Result is what a run measured.
type Result struct {
	// Metrics have unique names; their order is that of reports. See [Run] and [Fill]
	// for what there is, and docs/results.md for what the names mean.
	Metrics []Metric
	// Outcomes of the jobs, in their order.
	Outcomes []Outcome
	// DecisionMicros is the mean time of one decision for one pod, over a sample of
	// Decisions. It depends on the machine and is no part of Metrics.
	DecisionMicros float64
	Decisions      int
}

func (r *Result) add(name string, value float64) { r.Metrics = append(r.Metrics, Metric{name, value}) }

// Value returns a metric, and whether there is one of the name.
func (r *Result) Value(name string) (float64, bool) {
	for _, m := range r.Metrics {
		if m.Name == name {
			return m.Value, true
		}
	}
	return 0, false
}

// mean is a mean in the making.
type mean struct {
	sum   float64
	count int
}

func (m *mean) add(v float64) { m.sum += v; m.count++ }

func (m *mean) value() float64 { return m.sum / float64(m.count) }

// result sums up a finished run.
func (s *state) result() *Result {
	r := &Result{Outcomes: s.outcomes}
	from := firstCounted(len(s.Jobs), s.WarmUp)
	s.qualityMetrics(r, "", from, len(s.Jobs))
	s.timeMetrics(r, from)
	taken, stranded := s.gauge.rates()
	r.add("allocation_rate", taken)
	if len(s.Typical) > 0 {
		r.add("stranded_rate", stranded)
	}
	never := 0
	for i := range s.outcomes {
		if !s.outcomes[i].Placed() {
			never++
		}
	}
	r.add("never_placed", float64(never))
	r.DecisionMicros, r.Decisions = s.timer.mean()
	return r
}

// qualityMetrics adds the link quality of placed jobs that communicate:
//
//	quality          against an empty node of the same kind, pods that take part of a node
//	quality_kN       the same by GPUs per pod, also for pods that take a whole node
//	quality_cluster  against the best empty node of the cluster, all pods with several GPUs
//	link_gbps        the bandwidth itself, all pods with several GPUs
func (s *state) qualityMetrics(r *Result, prefix string, from, to int) {
	var part, cluster, gbps mean
	byGPUs := map[int]*mean{}
	for i := from; i < to; i++ {
		j, o := &s.Jobs[i], &s.outcomes[i]
		if !o.Placed() || !j.Demand.Communicates || j.Demand.GPUs < 2 {
			continue
		}
		k := j.Demand.GPUs
		if byGPUs[k] == nil {
			byGPUs[k] = &mean{}
		}
		byGPUs[k].add(o.links.node())
		if !o.links.all {
			part.add(o.links.node())
		}
		cluster.add(o.links.cluster())
		gbps.add(o.links.got.GBps())
	}
	if part.count > 0 {
		r.add(prefix+"quality", part.value())
	}
	for _, k := range slices.Sorted(maps.Keys(byGPUs)) {
		r.add(fmt.Sprintf("%squality_k%d", prefix, k), byGPUs[k].value())
	}
	if cluster.count > 0 {
		r.add(prefix+"quality_cluster", cluster.value())
		r.add(prefix+"link_gbps", gbps.value())
	}
}

// timeMetrics adds waiting time and completion time (from arrival to end) in seconds,
// and how much slower jobs ran than they could have, over all jobs and by GPUs of the
// job.
func (s *state) timeMetrics(r *Result, from int) {
	var wait, completion, slow mean
	waits := map[int]*mean{}
	completions := map[int]*mean{}
	for i := from; i < len(s.Jobs); i++ {
		j, o := &s.Jobs[i], &s.outcomes[i]
		if !o.Placed() {
			continue
		}
		k := j.GPUs()
		if waits[k] == nil {
			waits[k], completions[k] = &mean{}, &mean{}
		}
		w, c := (o.Started - j.Arrival).Seconds(), (o.Ended - j.Arrival).Seconds()
		wait.add(w)
		completion.add(c)
		waits[k].add(w)
		completions[k].add(c)
		if s.Bandwidth && j.Demand.Communicates && j.Demand.GPUs > 1 && j.Duration > 0 {
			slow.add(float64(o.Ended-o.Started) / float64(j.Duration))
		}
	}
	if wait.count == 0 {
		return
	}
	r.add("wait_s", wait.value())
	for _, k := range slices.SortedFunc(maps.Keys(waits), cmp.Compare[int]) {
		r.add(fmt.Sprintf("wait_s_k%d", k), waits[k].value())
	}
	r.add("completion_s", completion.value())
	for _, k := range slices.SortedFunc(maps.Keys(completions), cmp.Compare[int]) {
		r.add(fmt.Sprintf("completion_s_k%d", k), completions[k].value())
	}
	if slow.count > 0 {
		r.add("slowdown", slow.value())
	}
}
