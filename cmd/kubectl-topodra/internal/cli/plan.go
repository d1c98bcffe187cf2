// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/plan"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/placement"
)

// Output formats.
const (
	outputText = "text"
	outputJSON = "json"
)

// stdinName is what the machine is called when it comes from the standard input without a name.
const stdinName = "stdin"

// planFlags holds the plan command's flags as they were given.
type planFlags struct {
	machine      string
	gpus         int
	free         string
	memory       string
	cores        int64
	gpuMemory    string
	nvlinkGBps   float64
	communicates bool
	alternatives int
	output       string
}

func newPlanCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan --machine FILE --gpus K",
		Short: "Plan offline which GPUs of a recorded machine a job would get",
		Long: `Plan offline which GPUs of a recorded machine a job would get, and why not others.

FILE is a recorded machine (JSON) or the output of nvidia-smi topo -m; "-" reads the standard input. No cluster is needed.

The GPUs of a job of two and more are taken to exchange data: the set with the most NVLink rings, or else the fastest ring over PCIe,
wins; within 10 % of that, the set that takes least from later jobs. A single GPU is chosen for what it leaves to later jobs, and so
are the GPUs of a job with --communicates=false, such as a batch of independent processes.
Tiers count from 0, the best that the free GPUs offer; a step is more than 10 %.

GPUs that are not in --free are taken to be used entirely by others; those that are in it, to be idle. With --memory or --cores the
job takes a share of each of its GPUs. A recording does not say how much memory a GPU has: --gpu-memory does.`,
		Example: `  # The best 4 of the GPUs 0,1,3,4,6,7 of a recorded machine
  kubectl topodra plan --machine dgx1v.json --gpus 4 --free 0,1,3,4,6,7

  # The same on the machine at hand, for a program
  nvidia-smi topo -m | kubectl topodra plan --machine - --gpus 2 -o json

  # Two GPUs, of each 40Gi of memory and half of the compute
  kubectl topodra plan --machine dgx1v.json --gpus 2 --memory 40Gi --cores 50`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("plan takes no arguments, but there is %q: name the machine with --machine", args[0])
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPlan(cmd, streams, &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.machine, "machine", "m", "", `recorded machine (JSON), or the output of nvidia-smi topo -m; "-" is the standard input`)
	flags.IntVarP(&f.gpus, "gpus", "k", 0, "number of GPUs that the job needs")
	flags.StringVar(&f.free, "free", "", `free GPUs by their numbers in FILE, such as "0,1,4-7" (default all)`)
	flags.StringVar(&f.memory, "memory", "", `memory that the job takes of each GPU, such as "40Gi" (default all of it)`)
	flags.Int64Var(&f.cores, "cores", 0, "compute that the job reserves of each GPU, in percent")
	flags.StringVar(&f.gpuMemory, "gpu-memory", "80Gi", "memory that each GPU has")
	flags.Float64Var(&f.nvlinkGBps, "nvlink-gbps", 0, "rate of one NVLink per direction in GB/s (default what the recording or the GPU model says, else 25)")
	flags.BoolVar(&f.communicates, "communicates", true, "whether the GPUs of the job exchange data (default for two and more)")
	flags.IntVar(&f.alternatives, "alternatives", 5, "number of runners-up to show")
	flags.StringVarP(&f.output, "output", "o", outputText, "output format: json or text")
	completeOutput(cmd)
	_ = cmd.MarkFlagRequired("machine") // fails only for a flag that does not exist
	_ = cmd.MarkFlagRequired("gpus")
	return cmd
}

// completeOutput offers the output formats to the shell.
func completeOutput(cmd *cobra.Command, more ...string) {
	formats := append([]string{outputJSON, outputText}, more...)
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func runPlan(cmd *cobra.Command, streams genericiooptions.IOStreams, f *planFlags) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	if f.alternatives < 0 || f.alternatives >= placement.MostSets {
		return fmt.Errorf("--alternatives must be 0 to %d, it is %d", placement.MostSets-1, f.alternatives)
	}
	recorded, err := readMachine(streams, f.machine)
	if err != nil {
		return err
	}
	machine := recorded.Machine
	if err := setNVLinkRate(machine, f.nvlinkGBps, cmd.Flags().Changed("nvlink-gbps")); err != nil {
		return err
	}
	job, state, err := f.jobAndState(cmd, recorded)
	if err != nil {
		return err
	}
	for _, w := range recorded.Warnings {
		if err := warn(streams, string(w)); err != nil {
			return err
		}
	}
	return writePlan(cmd.Context(), streams, f, machine, job, state)
}

func writePlan(ctx context.Context, streams genericiooptions.IOStreams, f *planFlags, m *topology.Machine, job plan.Job, state plan.State) error {
	answer, err := plan.Make(ctx, m, job, state, f.alternatives)
	if err != nil {
		return err
	}
	if doubt := plan.Doubt(m, answer); doubt != "" {
		if err := warn(streams, doubt); err != nil {
			return err
		}
	}
	if f.output == outputJSON {
		return plan.WriteJSON(streams.Out, m.Name, state.Numbers, answer)
	}
	return plan.WriteText(streams.Out, m, job, state, answer)
}

func warn(streams genericiooptions.IOStreams, text string) error {
	if _, err := fmt.Fprintf(streams.ErrOut, "warning: %s\n", printable.Line(text)); err != nil {
		return fmt.Errorf("writing a warning: %w", err)
	}
	return nil
}

// checkOutput refuses formats other than JSON, text and more.
func checkOutput(output string, more ...string) error {
	formats := append([]string{outputJSON, outputText}, more...)
	if slices.Contains(formats, output) {
		return nil
	}
	for i := range formats {
		formats[i] = strconv.Quote(formats[i])
	}
	last := len(formats) - 1
	return fmt.Errorf("unknown output format %q: use %s or %s", output, strings.Join(formats[:last], ", "), formats[last])
}

// readMachine reads a recording from a file or, for "-", from the standard input.
func readMachine(streams genericiooptions.IOStreams, path string) (*capture.Recorded, error) {
	if path == "" {
		return nil, errors.New(`--machine is empty: name a file, or "-" for the standard input`)
	}
	if path == "-" {
		return capture.Read(streams.In, stdinName)
	}
	return capture.Load(path)
}

// setNVLinkRate lets the user's rate win over the recording's.
func setNVLinkRate(m *topology.Machine, gbps float64, given bool) error {
	if !given {
		return nil
	}
	mbps := math.Round(gbps * 1000)
	if math.IsNaN(mbps) || mbps < 1 || mbps > float64(topology.MaxWeightMBps)/topology.MaxLinks {
		return fmt.Errorf("--nvlink-gbps must be more than 0 and at most %d, it is %v", topology.MaxWeightMBps/topology.MaxLinks/1000, gbps)
	}
	for i := range m.GPUs {
		m.GPUs[i].NVLinkMBps = topology.MBps(mbps)
	}
	return nil
}

// jobAndState turns flags into what the planner needs.
func (f *planFlags) jobAndState(cmd *cobra.Command, r *capture.Recorded) (plan.Job, plan.State, error) {
	job := plan.Job{GPUs: f.gpus, CoresPercent: f.cores}
	state := plan.State{Free: topology.FullMask(r.Machine.N()), Numbers: plan.NumbersOf(r)}
	changed := cmd.Flags().Changed
	var err error
	if changed("free") {
		if state.Free, err = state.Numbers.Parse(f.free); err != nil {
			return job, state, fmt.Errorf("reading --free: %w", err)
		}
	}
	if state.GPUMemoryMiB, err = parseMiB("--gpu-memory", f.gpuMemory); err != nil {
		return job, state, err
	}
	if changed("memory") {
		if job.MemoryMiB, err = parseMiB("--memory", f.memory); err != nil {
			return job, state, err
		}
	}
	job.Share = changed("memory") || changed("cores")
	if changed("communicates") {
		job.Communicates = placement.No
		if f.communicates {
			job.Communicates = placement.Yes
		}
	}
	return job, state, nil
}

// parseMiB reads an amount of memory in whole MiB. Other amounts are refused: they are slips such as "40" or "40m" for "40Gi".
func parseMiB(flag, text string) (int64, error) {
	text = strings.TrimSpace(text)
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %q is not an amount of memory such as \"40Gi\"", flag, text)
	}
	if q.Sign() <= 0 {
		return 0, fmt.Errorf("%s must be more than 0, it is %q", flag, text)
	}
	if q.CmpInt64(math.MaxInt64>>1) > 0 {
		return 0, fmt.Errorf("%s %q is too large", flag, text)
	}
	if q.CmpInt64(q.Value()) != 0 || q.Value()%(1<<20) != 0 {
		number := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
		if number == "" || len(number) > 4 { // bytes, not a slip
			number = "40"
		}
		return 0, fmt.Errorf("%s %q is not a whole number of MiB: did you mean \"%sGi\"?", flag, text, number)
	}
	return q.Value() >> 20, nil
}
