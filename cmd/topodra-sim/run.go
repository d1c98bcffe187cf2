// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/study"
	"github.com/topodra/topodra/sim/workload"
)

// runOptions are the flags of "run".
type runOptions struct {
	common
	cluster, file, mix, list string
	load                     float64
	jobs, seeds, sensitive   int
	meanRun                  time.Duration
	percentages              []int
	policies                 []string
	bandwidth, fifo, audit   bool
	warmUp                   int
}

func newRunCommand() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Simulate a cluster and jobs of your own",
		Long: `Simulate a cluster and jobs of your own.

Jobs come from one of:
  --jobs FILE   a CSV file; columns: name, gpus (per pod), and if wanted gpu_milli (share of memory and compute in per
                mille), gpu_cores_percent, pods, arrival_s, duration_s, cpu_milli, memory_mib, gpu_spec (models joined
                by "|"), communicates (true or false), slow_permille (slow-down over links that are 6.7 times as slow)
  --mix NAME    generated ones: whole (1, 2, 4 or 8 GPUs) or shared (shares and several pods besides)
  --fill LIST   an openb list, multigpu50 or default: pods that come and stay`,
		Example: `  topodra-sim run --cluster '8*dgx1v_8xv100,8*h100nvl_8x_pairs' --mix shared --load 0.9 --bandwidth
  topodra-sim run --cluster openb --fill default --policies topodra,fgd
  topodra-sim run --cluster '4*hgxh100_8x_numa2' --jobs jobs.csv --audit`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "16*dgx1v_8xv100", "COUNT*MACHINE,… with names of recorded machines, or openb")
	f.StringVar(&o.file, "jobs", "", "CSV file of jobs")
	f.StringVar(&o.mix, "mix", "", "generate jobs: whole or shared")
	f.StringVar(&o.list, "fill", "", "fill the cluster with an openb list")
	f.Float64Var(&o.load, "load", 0.85, "part of all GPU time that generated jobs ask for")
	f.IntVar(&o.jobs, "count", 10_000, "number of generated jobs")
	f.IntVar(&o.sensitive, "sensitive", 60, "percentage of generated jobs with several GPUs that communicate")
	f.DurationVar(&o.meanRun, "mean-run", time.Hour, "mean run time of generated jobs")
	f.IntSliceVar(&o.percentages, "at", []int{100, 130}, "measure a filled cluster when this percentage of its GPUs was asked for")
	f.StringSliceVar(&o.policies, "policies", policy.Names(), "policies to compare")
	f.IntVar(&o.seeds, "seeds", 5, "number of seeds, from 1 on")
	f.BoolVar(&o.bandwidth, "bandwidth", false, "let run times depend on links")
	f.BoolVar(&o.fifo, "fifo", false, "a job that does not fit holds up those behind it")
	f.BoolVar(&o.audit, "audit", false, "recompute all capacity after every event")
	f.IntVar(&o.warmUp, "warm-up", 10, "percentage of the first jobs that are not measured")
	cmd.MarkFlagsMutuallyExclusive("jobs", "mix", "fill")
	cmd.MarkFlagsOneRequired("jobs", "mix", "fill")
	return cmd
}

func (o *runOptions) run(ctx context.Context, out, errOut io.Writer) error {
	s, err := o.scenario()
	if err != nil {
		return err
	}
	_, err = o.simulate(ctx, []study.Scenario{s}, out, errOut)
	return err
}

// scenario translates the flags.
func (o *runOptions) scenario() (study.Scenario, error) {
	s := study.Scenario{
		Name: "run", Title: "Cluster " + o.cluster, Cluster: o.cluster, Bandwidth: o.bandwidth, WarmUp: o.warmUp,
		Policies: study.Named(o.policies...), Seeds: o.seeds, Audit: o.audit,
	}
	if o.seeds < 1 || len(o.policies) == 0 {
		return s, fmt.Errorf("at least one seed and one policy are needed")
	}
	if o.fifo {
		s.Queue = engine.FIFO
	}
	switch {
	case o.file != "":
		f, err := os.Open(o.file)
		if err != nil {
			return s, fmt.Errorf("reading jobs: %w", err)
		}
		defer f.Close()
		s.Jobs, err = workload.ReadCSV(f, o.file)
		return s, err
	case o.list != "":
		s.List, s.Percentages = o.list, o.percentages
		return s, nil
	}
	kinds := map[string]func() []workload.Kind{"whole": workload.WholeKinds, "shared": workload.SharedKinds}[o.mix]
	if kinds == nil {
		return s, fmt.Errorf("--mix %q: expected whole or shared", o.mix)
	}
	s.Mix = &workload.Mix{
		Kinds: kinds(), SensitivePercent: o.sensitive, Load: o.load, MeanRun: model.Millis(o.meanRun.Milliseconds()), Jobs: o.jobs,
	}
	return s, nil
}

func newPoliciesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "policies",
		Short: "Say which policies can be compared",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range policy.Names() {
				if _, err := fmt.Fprintf(w, "%s\t%s\n", name, policy.About(name)); err != nil {
					return err
				}
			}
			return w.Flush()
		},
	}
}
