// SPDX-License-Identifier: Apache-2.0

package study_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/report"
	"github.com/topodra/topodra/sim/study"
	"github.com/topodra/topodra/sim/workload"
)

const machines = "../../topology/topotest/machines"

// small are scenarios of both kinds that take little time.
func small() []study.Scenario {
	return []study.Scenario{
		{
			Name: "queue", Title: "a queue", Cluster: "1*dgx1v_8xv100,1*h100nvl_8x_pairs", Bandwidth: true, WarmUp: 10, Seeds: 3, Audit: true,
			Mix:      &workload.Mix{Kinds: workload.SharedKinds(), SensitivePercent: 60, Load: 0.8, MeanRun: 100 * model.Second, Jobs: 120},
			Policies: study.Named(policy.Names()...),
		},
		{
			Name: "fill", Title: "a filled cluster", Cluster: "40*a30_4x_pairs", List: workload.OpenbDefault, Percentages: []int{50, 100}, Seeds: 2,
			Policies: study.Named("topodra", "fgd", "random"),
		},
	}
}

// TestSameSeedSameBytes runs the same study one run after another and side by side.
func TestSameSeedSameBytes(t *testing.T) {
	t.Parallel()
	var outputs [2]bytes.Buffer
	for i, parallel := range []int{1, 4} {
		records, err := study.Run(t.Context(), fleet.NewLoader(machines), small(), parallel, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := report.Runs(&outputs[i], records); err != nil {
			t.Fatal(err)
		}
		if err := report.Summaries(&outputs[i], study.Summarise(records)); err != nil {
			t.Fatal(err)
		}
		if err := report.HTML(&outputs[i], small(), study.Summarise(records), study.Judge(records)); err != nil {
			t.Fatal(err)
		}
	}
	if outputs[0].Len() < 10_000 || !bytes.Equal(outputs[0].Bytes(), outputs[1].Bytes()) {
		t.Errorf("%d and %d bytes, expected to be equal", outputs[0].Len(), outputs[1].Len())
	}
}

func TestProgressReachesTheEnd(t *testing.T) {
	t.Parallel()
	var last, whole int64
	_, err := study.Run(t.Context(), fleet.NewLoader(machines), small()[:1], 1, func(done, total int64) {
		if done < last {
			t.Errorf("progress goes back from %d to %d", last, done)
		}
		last, whole = done, total
	})
	if err != nil || last != whole || whole == 0 {
		t.Errorf("%d of %d steps are done: %v", last, whole, err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		spoil func(*study.Scenario)
		want  string
	}{
		"cluster": {func(s *study.Scenario) { s.Cluster = "1*nothing" }, "nothing"},
		"policy":  {func(s *study.Scenario) { s.Policies = study.Named("nothing") }, `scenario "queue", policy "nothing", seed 1`},
		"mix":     {func(s *study.Scenario) { s.Mix.Load = -1 }, "load"},
		"list":    {func(s *study.Scenario) { s.Mix, s.List, s.Percentages = nil, "nothing", []int{1} }, "nothing"},
		"fault": {func(s *study.Scenario) {
			s.Policies = []study.Variant{{Name: "x", Make: func(policy.Setup) (policy.Policy, error) { return nil, broken }}}
		}, "broken"},
	} {
		s := small()[0]
		s.Mix = &workload.Mix{Kinds: s.Mix.Kinds, Load: 1, MeanRun: 1, Jobs: 1}
		tc.spoil(&s)
		if _, err := study.Run(t.Context(), fleet.NewLoader(machines), []study.Scenario{s}, 2, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := study.Run(ended, fleet.NewLoader(machines), small(), 2, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

func TestEstimateOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []float64
		want   study.Estimate
	}{
		{nil, study.Estimate{}},
		{[]float64{3}, study.Estimate{Mean: 3, Count: 1}},
		// Standard deviation 1, t(2) = 4.303.
		{[]float64{1, 2, 3}, study.Estimate{Mean: 2, Half: 4.303 / math.Sqrt(3), Count: 3}},
		// Standard deviation √(50/49)/2, normal quantile.
		{append(slice(25, 0), slice(25, 1)...), study.Estimate{Mean: 0.5, Half: 1.96 * math.Sqrt(12.5/49/50), Count: 50}},
	} {
		if diff := cmp.Diff(tc.want, study.EstimateOf(tc.values), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.values, diff)
		}
	}
}

func slice(n int, v float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func records(scenario, policy, metric string, values ...float64) []study.Record {
	var out []study.Record
	for i, v := range values {
		out = append(out, study.Record{Scenario: scenario, Policy: policy, Seed: uint64(i), Metrics: []engine.Metric{{Name: metric, Value: v}}, DecisionMicros: 5})
	}
	return out
}

func TestSummarise(t *testing.T) {
	t.Parallel()
	in := append(records("a", "p", "m", 1, 3), records("a", "q", "m", 7)...)
	want := []study.Summary{
		{Scenario: "a", Policy: "p", Metric: "m", Estimate: study.EstimateOf([]float64{1, 3})},
		{Scenario: "a", Policy: "p", Metric: study.DecisionMetric, Estimate: study.Estimate{Mean: 5, Count: 2}},
		{Scenario: "a", Policy: "q", Metric: "m", Estimate: study.Estimate{Mean: 7, Count: 1}},
		{Scenario: "a", Policy: "q", Metric: study.DecisionMetric, Estimate: study.Estimate{Mean: 5, Count: 1}},
	}
	if diff := cmp.Diff(want, study.Summarise(in)); diff != "" {
		t.Errorf("summaries (-want +got):\n%s", diff)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const dgx = "machines/dgx1v_8xv100"
	for name, tc := range map[string]struct {
		records []study.Record
		want    []study.Outcome
	}{
		"nothing":         {nil, nil},
		"quality met":     {records(dgx, "topodra", "quality", 0.96, 0.961, 0.962), []study.Outcome{study.Met}},
		"quality unclear": {records(dgx, "topodra", "quality", 0.93, 0.96, 0.97), []study.Outcome{study.Within}},
		"quality missed":  {records(dgx, "topodra", "quality", 0.90, 0.901, 0.902), []study.Outcome{study.Missed}},
		"wait shorter":    {append(records(dgx, "topodra", "wait_s_k8", 100, 110, 120), records(dgx, "hami", "wait_s_k8", 200, 210, 221)...), []study.Outcome{study.Met}},
		"wait longer":     {append(records(dgx, "topodra", "wait_s_k8", 200, 210, 221), records(dgx, "hami", "wait_s_k8", 100, 110, 120)...), []study.Outcome{study.Missed}},
		"wait alike":      {append(records(dgx, "topodra", "wait_s_k8", 100, 300), records(dgx, "hami", "wait_s_k8", 200, 210)...), []study.Outcome{study.Within}},
		"one side alone":  {records(dgx, "topodra", "wait_s_k8", 100, 300), nil},
		"openb": {append(append(append(
			records("openb/multigpu50", "topodra", "at_100/allocation_rate", 0.90, 0.901), records("openb/multigpu50", "fgd", "at_100/allocation_rate", 0.97, 0.971)...),
			records("openb/multigpu50", "topodra", "at_100/link_gbps", 50, 51)...), records("openb/multigpu50", "fgd", "at_100/link_gbps", 30, 31)...),
			[]study.Outcome{study.Missed, study.Met}},
	} {
		var got []study.Outcome
		for _, v := range study.Judge(tc.records) {
			got = append(got, v.Outcome)
			if v.Measured == "" || strings.Contains(v.Measured, "%!") || v.Target == "" {
				t.Errorf("%s: verdict %+v", name, v)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestScenarios checks the study itself: names are unique, everything that is judged
// is there, and each scenario can start.
func TestScenarios(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, s := range study.Scenarios() {
		if names[s.Name] || s.Title == "" || s.Seeds < 5 {
			t.Errorf("scenario %q: named twice, without title, or with %d seeds", s.Name, s.Seeds)
		}
		names[s.Name] = true
		policies := map[string]bool{}
		for _, v := range s.Policies {
			if policies[v.Name] {
				t.Errorf("scenario %q: policy %q twice", s.Name, v.Name)
			}
			policies[v.Name] = true
		}
		if s.Mix != nil {
			shrunk := *s.Mix
			shrunk.Jobs = 60
			s.Mix, s.Seeds, s.Audit = &shrunk, 1, true
			if _, err := study.Run(t.Context(), fleet.NewLoader(machines), []study.Scenario{s}, 2, nil); err != nil {
				t.Error(err)
			}
		}
	}
	for _, want := range []string{"machines/dgx1v_8xv100", "machines/h100nvl_8x_pairs", "machines/pcie_8x_pix_node_sys", "machines/a100_8x_interleaved_pairs", "openb/multigpu50"} {
		if !names[want] {
			t.Errorf("scenario %q, which has targets, is missing", want)
		}
	}
}
