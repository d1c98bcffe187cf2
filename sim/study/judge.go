// SPDX-License-Identifier: Apache-2.0

package study

import "fmt"

// Outcome is what became of a target.
type Outcome string

// The outcomes.
const (
	// Met means that the whole confidence interval is on the right side.
	Met Outcome = "met"
	// Within means that the interval reaches to both sides.
	Within Outcome = "within noise"
	// Missed means that the whole interval is on the wrong side.
	Missed Outcome = "missed"
)

// Verdict is a target with what was measured.
type Verdict struct {
	Target, Scenario, Measured string
	Outcome                    Outcome
}

// wantedQuality is the least mean quality of sensitive jobs.
const wantedQuality = 0.95

// Judge compares the records of the study with its targets. Scenarios that did not
// run are not judged.
func Judge(records []Record) []Verdict {
	var out []Verdict
	for _, m := range machines {
		scenario := kindPrefix + m.name
		if got := EstimateOf(values(records, scenario, "topodra", "quality")); got.Count > 0 {
			out = append(out, Verdict{
				Target: fmt.Sprintf("sensitive jobs get at least %.2f of the best links", wantedQuality), Scenario: scenario,
				Measured: fmt.Sprintf("%.4f ± %.4f", got.Mean, got.Half), Outcome: atLeast(got, wantedQuality),
			})
		}
	}
	for _, m := range machines {
		out = append(out, compare(records, comparison{
			target: "8-GPU jobs do not wait longer than with HAMi", scenario: kindPrefix + m.name, metric: "wait_s_k8",
			other: "hami", unit: meanRun.Seconds(), format: "%+.3f ± %.3f mean run times (%.3f against %.3f)", lower: true,
		})...)
	}
	scenario := openbPrefix + "multigpu50"
	out = append(out, compare(records, comparison{
		target: "openb multigpu50 at 100 % arrivals: GPUs allocated at least as FGD", scenario: scenario,
		metric: "at_100/allocation_rate", other: "fgd", unit: 0.01, format: "%+.2f ± %.2f points (%.2f %% against %.2f %%)",
	})...)
	return append(out, compare(records, comparison{
		target: "openb multigpu50: links better than FGD's", scenario: scenario,
		metric: "at_100/link_gbps", other: "fgd", unit: 1, format: "%+.1f ± %.1f GB/s (%.1f against %.1f)",
	})...)
}

// comparison is TopoDRA against another policy, seed by seed.
type comparison struct {
	target, scenario, metric, other string
	// unit divides the metric; format prints the difference, half its interval,
	// and both means.
	unit   float64
	format string
	// lower values are better.
	lower bool
}

func compare(records []Record, c comparison) []Verdict {
	ours, theirs := values(records, c.scenario, "topodra", c.metric), values(records, c.scenario, c.other, c.metric)
	if len(ours) == 0 || len(ours) != len(theirs) {
		return nil
	}
	differences := make([]float64, len(ours))
	for i := range ours {
		differences[i] = (ours[i] - theirs[i]) / c.unit
	}
	d := EstimateOf(differences)
	gain := d
	if c.lower {
		gain.Mean = -gain.Mean
	}
	return []Verdict{{
		Target: c.target, Scenario: c.scenario, Outcome: atLeast(gain, 0),
		Measured: fmt.Sprintf(c.format, d.Mean, d.Half, EstimateOf(ours).Mean/c.unit, EstimateOf(theirs).Mean/c.unit),
	}}
}

// atLeast judges whether a value reaches a bound.
func atLeast(got Estimate, bound float64) Outcome {
	switch {
	case got.Mean-got.Half >= bound:
		return Met
	case got.Mean+got.Half < bound:
		return Missed
	default:
		return Within
	}
}

// values returns a metric of one policy in one scenario, in the order of the seeds.
func values(records []Record, scenario, policy, metric string) []float64 {
	var out []float64
	for _, r := range records {
		if r.Scenario != scenario || r.Policy != policy {
			continue
		}
		for _, m := range r.Metrics {
			if m.Name == metric {
				out = append(out, m.Value)
			}
		}
	}
	return out
}
