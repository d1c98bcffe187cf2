// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/report"
	"github.com/topodra/topodra/sim/study"
)

// common are the flags of all simulations.
type common struct {
	machines, out string
	parallel      int
}

func (c *common) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.machines, "machines", "topology/topotest/machines", "folder of recorded machines")
	cmd.Flags().StringVar(&c.out, "out", "bin/sim", "folder for runs.csv, summary.csv, times.csv, tables.md, report.html and plots")
	cmd.Flags().IntVar(&c.parallel, "parallel", runtime.GOMAXPROCS(0), "how many runs go side by side")
}

// studyOptions are the flags of "study".
type studyOptions struct {
	common
	only     []string
	document string
	write    bool
}

func newStudyCommand() *cobra.Command {
	o := &studyOptions{}
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Do the simulations of docs/results.md",
		Example: `  # Everything, and see whether the tables of the document come out again
  topodra-sim study --document docs/results.md

  # The openb part alone
  topodra-sim study --only openb/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.register(cmd)
	cmd.Flags().StringSliceVar(&o.only, "only", nil, "do only scenarios whose names start so")
	cmd.Flags().StringVar(&o.document, "document", "", "compare the tables of this document with what came out")
	cmd.Flags().BoolVar(&o.write, "write", false, "replace the tables of --document instead, and the plots in images/ beside it")
	return cmd
}

func (o *studyOptions) run(ctx context.Context, out, errOut io.Writer) error {
	if o.write && (o.document == "" || len(o.only) > 0) {
		return fmt.Errorf("--write needs --document and all scenarios")
	}
	scenarios := study.Scenarios()
	if len(o.only) > 0 {
		scenarios = slices.DeleteFunc(scenarios, func(s study.Scenario) bool {
			return !slices.ContainsFunc(o.only, func(prefix string) bool { return strings.HasPrefix(s.Name, prefix) })
		})
		if len(scenarios) == 0 {
			return fmt.Errorf("no scenario starts with %s", strings.Join(o.only, " or "))
		}
	}
	r, err := o.simulate(ctx, scenarios, out, errOut)
	if err != nil || o.document == "" {
		return err
	}
	return o.compare(r, out)
}

// compare looks whether the document has the same tables, or writes them.
func (o *studyOptions) compare(r *results, out io.Writer) error {
	data, err := os.ReadFile(o.document)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	updated, same, err := report.Update(string(data), r.tables(), r.times())
	switch {
	case err != nil:
		return fmt.Errorf("%q: %w", o.document, err)
	case o.write:
		return o.rewrite(r, updated)
	case !same && len(o.only) == 0:
		return fmt.Errorf("the tables of %q are not what came out: compare them with %q", o.document, filepath.Join(o.out, "tables.md"))
	case same:
		_, err = fmt.Fprintf(out, "\nThe tables of %s came out again.\n", o.document)
	}
	return err
}

func (o *studyOptions) rewrite(r *results, updated string) error {
	if err := os.WriteFile(o.document, []byte(updated), 0o644); err != nil {
		return fmt.Errorf("writing the document: %w", err)
	}
	images := filepath.Join(filepath.Dir(o.document), "images")
	for _, p := range report.Plots(r.scenarios, r.summaries) {
		name := filepath.Join(images, p.Name+".svg")
		if !strings.Contains(updated, filepath.Base(name)) {
			continue
		}
		if err := os.WriteFile(name, []byte(p.SVG), 0o644); err != nil {
			return fmt.Errorf("writing a plot: %w", err)
		}
	}
	return nil
}

// results are what simulations gave.
type results struct {
	scenarios []study.Scenario
	records   []study.Record
	summaries []study.Summary
	verdicts  []study.Verdict
}

func (r *results) tables() string { return report.Tables(r.scenarios, r.summaries, r.verdicts) }

// times are those of scenarios under all policies.
func (r *results) times() string {
	var some []study.Scenario
	for i := range r.scenarios {
		if len(r.scenarios[i].Policies) == len(policy.Names()) {
			some = append(some, r.scenarios[i])
		}
	}
	return report.TimeTable(some, r.summaries)
}

// simulate does the runs, writes all files and prints the tables.
func (c *common) simulate(ctx context.Context, scenarios []study.Scenario, out, errOut io.Writer) (*results, error) {
	bar := newProgress(errOut)
	records, err := study.Run(ctx, fleet.NewLoader(c.machines), scenarios, c.parallel, bar.show)
	bar.close()
	if err != nil {
		return nil, err
	}
	r := &results{scenarios, records, study.Summarise(records), study.Judge(records)}
	if err := c.save(r); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(out, "%s### Time of a decision, µs\n\n%s\nFiles are in %s; open report.html for plots.\n", r.tables(), r.times(), c.out)
	return r, err
}

func (c *common) save(r *results) error {
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return fmt.Errorf("making the folder for results: %w", err)
	}
	files := map[string]func(io.Writer) error{
		"runs.csv":    func(w io.Writer) error { return report.Runs(w, r.records) },
		"summary.csv": func(w io.Writer) error { return report.Summaries(w, r.summaries) },
		"times.csv":   func(w io.Writer) error { return report.Times(w, r.summaries) },
		"tables.md":   func(w io.Writer) error { _, err := io.WriteString(w, r.tables()); return err },
		"report.html": func(w io.Writer) error { return report.HTML(w, r.scenarios, r.summaries, r.verdicts) },
	}
	for _, p := range report.Plots(r.scenarios, r.summaries) {
		files[p.Name+".svg"] = func(w io.Writer) error { _, err := io.WriteString(w, p.SVG); return err }
	}
	for name, write := range files {
		if err := saveFile(filepath.Join(c.out, name), write); err != nil {
			return fmt.Errorf("writing results: %w", err)
		}
	}
	return nil
}

func saveFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close() // the first error counts
		return err
	}
	return f.Close()
}
