// SPDX-License-Identifier: Apache-2.0

// Command bench-scheduler compares topodra-scheduler with the in-tree scheduler by
// Kubernetes' own benchmark: every case on every size, the two by turns, each run in a
// process of its own, and prints ratios with their spread and which targets are met.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/topodra/topodra/test/perf"
	"github.com/topodra/topodra/test/perf/verdict"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	binary    string
	tools     string
	source    string
	out       string
	cases     []string
	nodes     []int
	pairs     int
	churnTime time.Duration
}

func newCommand() *cobra.Command {
	var names []string
	for _, c := range perf.Cases() {
		names = append(names, c.Name)
	}
	o := &options{}
	command := &cobra.Command{
		Use:          "bench-scheduler",
		Short:        "Compare topodra-scheduler with the in-tree scheduler, in one run",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.binary, "binary", "bin/perf.test", "the compiled benchmark, see make bench-scheduler")
	flags.StringVar(&o.tools, "tools", "bin", "directory with etcd")
	flags.StringVar(&o.source, "source", "test/perf", "directory of the benchmark's package")
	flags.StringVar(&o.out, "out", "", "directory for logs and raw figures; a new temporary one if empty")
	flags.StringSliceVar(&o.cases, "cases", names, "cases to run")
	flags.IntSliceVar(&o.nodes, "nodes", []int{100, 500, 2000, 5000}, "cluster sizes, in nodes of 8 GPUs")
	flags.IntVar(&o.pairs, "pairs", 3, "runs of each scheduler per case and size")
	flags.DurationVar(&o.churnTime, "churn-time", 30*time.Second, "how long cases with churn are measured")
	return command
}

// run runs everything and prints the report.
func (o *options) run(ctx context.Context, out, progress io.Writer) error {
	cases, err := o.prepare()
	if err != nil {
		return err
	}
	runner := &runner{options: o, progress: progress, total: len(cases) * len(o.nodes) * o.pairs * 2}
	results := map[verdict.Key][]verdict.Pair{}
	for _, nodes := range o.nodes {
		for _, c := range cases {
			pairs, err := runner.pairs(ctx, &c, nodes)
			if err != nil {
				return err
			}
			results[verdict.Key{Case: c.Name, Nodes: nodes}] = pairs
		}
	}
	return verdict.Print(out, results)
}

// prepare checks the flags and makes paths absolute, since the benchmark runs in the
// directory of its package.
func (o *options) prepare() ([]perf.Case, error) {
	if o.pairs < 1 || len(o.nodes) == 0 || slices.Min(o.nodes) < 1 {
		return nil, errors.New("checking flags: --pairs and --nodes must be at least 1")
	}
	var cases []perf.Case
	for _, name := range o.cases {
		c, err := perf.FindCase(name)
		if err != nil {
			return nil, fmt.Errorf("checking flag --cases: %w", err)
		}
		cases = append(cases, c)
	}
	if o.out == "" {
		dir, err := os.MkdirTemp("", "topodra-bench-*")
		if err != nil {
			return nil, fmt.Errorf("making a directory for the figures: %w", err)
		}
		o.out = dir
	}
	for _, path := range []*string{&o.binary, &o.tools, &o.source, &o.out} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, fmt.Errorf("finding %q: %w", *path, err)
		}
		*path = absolute
	}
	for _, path := range []string{o.binary, filepath.Join(o.tools, "etcd"), o.source} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("looking for what the benchmark needs: %w; make bench-scheduler builds it", err)
		}
	}
	return cases, nil
}
