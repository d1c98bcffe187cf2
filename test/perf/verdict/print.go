// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the ratios and the targets, in markdown.
func Print(w io.Writer, results map[Key][]Pair) error {
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	lines := []string{"| case\t| nodes\t| measure\t| in-tree\t| topodra\t| ratio\t| from\t| to\t|", "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|"}
	for _, key := range sortedKeys(results) {
		pairs := results[key]
		for _, m := range Measures() {
			ratio := RatioOf(pairs, m)
			lines = append(lines, fmt.Sprintf("| %s\t| %d\t| %s, %s\t| %.4g\t| %.4g\t| %.3f\t| %.3f\t| %.3f\t|",
				key.Case, key.Nodes, m.Name, m.Unit, inTree(pairs, m), ours(pairs, m), ratio.Median, ratio.Low, ratio.High))
		}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(table, line); err != nil {
			return fmt.Errorf("printing results: %w", err)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing results: %w", err)
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("printing results: %w", err)
	}
	for _, target := range Targets(results) {
		word, bound := "met   ", "at most"
		if !target.Met() {
			word = "MISSED"
		}
		if target.AtLeast {
			bound = "at least"
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %.3f, wanted %s %.3g\n", word, target.Text, target.Ratio, bound, target.Limit); err != nil {
			return fmt.Errorf("printing results: %w", err)
		}
	}
	return nil
}

// inTree is the median of in-tree's figures.
func inTree(pairs []Pair, m Measure) float64 {
	values := make([]float64, len(pairs))
	for i, p := range pairs {
		values[i] = m.Of(p.InTree)
	}
	return Median(values)
}
