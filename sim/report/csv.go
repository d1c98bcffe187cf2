// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/topodra/topodra/sim/study"
)

// Runs writes one line per run and metric: scenario, policy, seed, metric, value.
// Equal records give equal bytes.
func Runs(w io.Writer, records []study.Record) error {
	rows := [][]string{{"scenario", "policy", "seed", "metric", "value"}}
	for _, r := range records {
		for _, m := range r.Metrics {
			rows = append(rows, []string{r.Scenario, r.Policy, strconv.FormatUint(r.Seed, 10), m.Name, number(m.Value)})
		}
	}
	return write(w, rows)
}

// Summaries writes one line per scenario, policy and metric: scenario, policy, metric,
// seeds, mean, and half the width of its 95 % confidence interval. Times of decisions
// are left out.
func Summaries(w io.Writer, summaries []study.Summary) error {
	return summaryRows(w, summaries, false)
}

// Times is [Summaries] for the times of decisions alone.
func Times(w io.Writer, summaries []study.Summary) error { return summaryRows(w, summaries, true) }

func summaryRows(w io.Writer, summaries []study.Summary, times bool) error {
	rows := [][]string{{"scenario", "policy", "metric", "seeds", "mean", "ci95"}}
	for _, s := range summaries {
		if (s.Metric == study.DecisionMetric) == times {
			rows = append(rows, []string{s.Scenario, s.Policy, s.Metric, strconv.Itoa(s.Count), number(s.Mean), number(s.Half)})
		}
	}
	return write(w, rows)
}

func write(w io.Writer, rows [][]string) error {
	out := csv.NewWriter(w)
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("writing CSV: %w", err)
	}
	return nil
}

// number prints a value so that reading it gives the same value.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
