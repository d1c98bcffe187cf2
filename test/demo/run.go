// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Config says what to run.
type Config struct {
	// MachinesDir holds the recorded machines that the nodes name, as NAME.json.
	MachinesDir string
	// ManifestsDir holds the DeviceClasses and the scheduler's configuration.
	ManifestsDir string
	// Nodes and Steps default to [Nodes] and [Stream].
	Nodes []NodeSpec
	Steps []Step
	// Cluster are options for the control plane; the zero value is good.
	Cluster cluster.Options
}

// Names of the two runs in the report.
const (
	stockName = "stock kube-scheduler"
	oursName  = api.SchedulerName
	// defaultSchedulerName is what the stock scheduler answers to.
	defaultSchedulerName = "default-scheduler"
	// classesDir holds the DeviceClasses, below the manifests. Elsewhere there are files that are no objects yet, such as
	// the chart's.
	classesDir = "base"
	// schedulerConfigFile is the configuration that the project ships, below the manifests.
	schedulerConfigFile = "scheduler/scheduler-config.yaml"
)

// note is what the reader of the figures must know.
const note = "The GPUs are simulated: their links were recorded from real machines, the control plane is real. Pods are scheduled and never run, because no kubelet exists here. " +
	"GB/s and rings are calculated from the links, not measured. The stock scheduler chooses between equal nodes at random, so its figures change from run to run."

// ErrBelowOptimum is wrapped by the error about jobs that got less than the best tier under TopoDRA.
var ErrBelowOptimum = errors.New("jobs below the optimum")

// runner is the demo while it runs.
type runner struct {
	cfg      Config
	progress *Progress
	cluster  *cluster.Cluster
	client   kubernetes.Interface
	judge    *Judge
	report   *Report
}

// Run runs the demo and returns the report. With an error the report holds what was found out until then.
func Run(ctx context.Context, cfg Config, progress *Progress) (report *Report, err error) {
	if cfg.Nodes == nil {
		cfg.Nodes = Nodes()
	}
	if cfg.Steps == nil {
		cfg.Steps = Stream()
	}
	r := &runner{
		cfg: cfg, progress: progress,
		judge:  NewJudge(quality.DefaultTierPercent),
		report: &Report{Note: note, TierPercent: quality.DefaultTierPercent},
	}
	progress.Step("starting etcd, kube-apiserver and kube-controller-manager")
	if r.cluster, err = cluster.Start(ctx, cfg.Cluster); err != nil {
		return r.report, fmt.Errorf("starting the control plane: %w", err)
	}
	defer func() {
		progress.Step("stopping everything")
		if stopErr := r.cluster.Stop(); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stopping the control plane: %w", stopErr))
		}
		r.report.Seconds = seconds(progress.Elapsed())
	}()
	r.client = r.cluster.Client()
	ctx, cancel := r.failWithCluster(ctx)
	defer cancel(nil)
	if err := r.addNodes(ctx); err != nil {
		return r.report, err
	}
	return r.report, r.compare(ctx)
}

// failWithCluster returns a context that also ends when a process of the cluster fails, with that as the cause.
func (r *runner) failWithCluster(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case err := <-r.cluster.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// addNodes makes the nodes, starts their drivers and waits for what they publish.
func (r *runner) addNodes(ctx context.Context) error {
	if err := r.cluster.Apply(ctx, []string{filepath.Join(r.cfg.ManifestsDir, classesDir)}, "DeviceClass"); err != nil {
		return fmt.Errorf("creating the DeviceClasses: %w", err)
	}
	for _, n := range r.cfg.Nodes {
		r.progress.Step("starting node %s with the driver on %s", n.Name, n.Machine)
		if _, err := r.cluster.AddNode(ctx, cluster.NodeOptions{Name: n.Name}); err != nil {
			return fmt.Errorf("adding node %q: %w", n.Name, err)
		}
		file := filepath.Join(r.cfg.MachinesDir, n.Machine+".json")
		if _, err := r.cluster.StartDriver(ctx, cluster.DriverOptions{Node: n.Name, MachineFile: file}); err != nil {
			return fmt.Errorf("starting the driver of node %q: %w", n.Name, err)
		}
	}
	for _, n := range r.cfg.Nodes {
		r.progress.Step("waiting for the ResourceSlices of node %s", n.Name)
		if _, err := r.cluster.WaitForResourceSlices(ctx, n.Name, api.DriverName); err != nil {
			return fmt.Errorf("waiting for node %q: %w", n.Name, err)
		}
	}
	return r.describeNodes(ctx)
}

// describeNodes enters the nodes into the report and checks that the API server shows what was started.
func (r *runner) describeNodes(ctx context.Context) error {
	state, err := readState(ctx, r.client)
	if err != nil {
		return err
	}
	for _, spec := range r.cfg.Nodes {
		node := findNode(state, spec.Name)
		if node == nil {
			return fmt.Errorf("reading the nodes: node %q published no GPUs", spec.Name)
		}
		r.report.Nodes = append(r.report.Nodes, NodeInfo{
			Name: spec.Name, Machine: spec.Machine, Links: spec.Links, GPUs: node.Present.Count(),
		})
	}
	return nil
}

func findNode(nodes []livestate.Node, name string) *livestate.Node {
	for i := range nodes {
		if nodes[i].Name == name {
			return &nodes[i]
		}
	}
	return nil
}

// compare runs the stream under both schedulers, one after the other, and judges ours.
func (r *runner) compare(ctx context.Context) error {
	if err := r.runUnder(ctx, stockName, defaultSchedulerName, cluster.SchedulerOptions{Binary: cluster.StockScheduler}); err != nil {
		return fmt.Errorf("running the jobs under the %s: %w", stockName, err)
	}
	config, err := os.ReadFile(filepath.Join(r.cfg.ManifestsDir, schedulerConfigFile))
	if err != nil {
		return fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	options := cluster.SchedulerOptions{Binary: cluster.TopoDRAScheduler, ConfigYAML: string(config)}
	if err := r.runUnder(ctx, oursName, api.SchedulerName, options); err != nil {
		return fmt.Errorf("running the jobs under %s: %w", oursName, err)
	}
	return Verdict(&r.report.Runs[len(r.report.Runs)-1])
}

// runUnder starts a scheduler, runs the stream, cleans up, and stops the scheduler again. The other scheduler never runs at that
// time: each believes that the GPUs are its own.
func (r *runner) runUnder(ctx context.Context, name, schedulerName string, options cluster.SchedulerOptions) (err error) {
	r.progress.Step("%s: starting", name)
	process, err := r.cluster.StartScheduler(ctx, options)
	if err != nil {
		return fmt.Errorf("starting the scheduler: %w", err)
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	result := RunResult{Scheduler: name}
	for n, step := range r.cfg.Steps {
		r.progress.Step("%s: job %d of %d, %s", name, n+1, len(r.cfg.Steps), step.Arrives.Wants())
		outcome, err := r.step(ctx, step, name, schedulerName)
		if err != nil {
			return err
		}
		result.Jobs = append(result.Jobs, outcome)
	}
	result.Totals = Total(result.Jobs)
	r.report.Runs = append(r.report.Runs, result)
	r.progress.Step("%s: removing all jobs", name)
	return endAll(ctx, r.client)
}

// step lets jobs end, finds the optimum for the next one, submits it and reads what it got.
func (r *runner) step(ctx context.Context, step Step, name, schedulerName string) (Outcome, error) {
	job := step.Arrives
	if len(step.Ends) > 0 {
		if err := end(ctx, r.client, step.Ends); err != nil {
			return Outcome{}, err
		}
		if err := sleep(ctx, settle); err != nil {
			return Outcome{}, err
		}
	}
	state, err := readState(ctx, r.client)
	if err != nil {
		return Outcome{}, err
	}
	ranking := r.judge.Rank(state, job)
	out := Outcome{
		Job: job.Name, Wants: job.Wants(), GPUsWanted: job.GPUs, Optimum: ranking.Best, Tier: -1,
		Guaranteed: job.Guaranteed(), Finished: step.Ends,
	}
	// The stock scheduler knows no guarantees: whatever fits will do.
	couldRun := ranking.Best != nil || name == stockName && ranking.BestFitting != nil
	began := time.Now()
	if err := submit(ctx, r.client, job, schedulerName); err != nil {
		return Outcome{}, err
	}
	v, err := awaitVerdict(ctx, r.client, job, couldRun)
	if err != nil {
		return Outcome{}, err
	}
	out.Milliseconds = time.Since(began).Milliseconds()
	if v.bound {
		err = r.enter(ctx, state, job, ranking, &out)
		return out, err
	}
	out.Message, out.BestNow = v.message, ranking.BestFitting
	out.BestWhenFree = r.judge.Rank(allFree(state), job).BestFitting
	// It would be placed as soon as GPUs become free, at a moment that nobody compares: it leaves.
	return out, end(ctx, r.client, []string{job.Name})
}

// enter reads the job's allocation into the outcome. state is from before the job.
func (r *runner) enter(ctx context.Context, state []livestate.Node, job Job, ranking Ranking, out *Outcome) error {
	nodeName, devices, err := allocation(ctx, r.client, job)
	if err != nil {
		return err
	}
	node := findNode(state, nodeName)
	if node == nil {
		return fmt.Errorf("reading the allocation of %q: node %q has no GPUs", job.Name, nodeName)
	}
	var set topology.Mask
	for _, device := range devices {
		at, ok := node.Find(device)
		if !ok {
			return fmt.Errorf("reading the allocation of %q: node %q has no device %q", job.Name, nodeName, device)
		}
		set = set.With(at)
	}
	if set.Count() != job.GPUs {
		return fmt.Errorf("reading the allocation of %q: %d GPUs were asked for, it got %v", job.Name, job.GPUs, devices)
	}
	if !set.SubsetOf(fitting(node, job)) {
		return fmt.Errorf("reading the allocation of %q: GPUs %s of node %q were not all free", job.Name, set, nodeName)
	}
	got := r.judge.Value(node, set)
	out.Placed = place(node, set, got)
	out.Tier = ranking.Tier(got)
	out.Violated = !Satisfies(job, got)
	return nil
}

// Verdict returns an error that names every job of a run that did not get the best of its moment.
func Verdict(run *RunResult) error {
	var errs []error
	for _, o := range run.Jobs {
		switch {
		case o.Violated:
			errs = append(errs, fmt.Errorf("%s (%s) was placed on %s GPUs %s, which breaks its guarantee", o.Job, o.Wants, o.Placed.Node, FormatGPUs(o.Placed.GPUs)))
		case o.Placed == nil && o.Optimum != nil:
			errs = append(errs, fmt.Errorf("%s (%s) stayed pending although %s GPUs %s were free for it: %s",
				o.Job, o.Wants, o.Optimum.Node, FormatGPUs(o.Optimum.GPUs), o.Message))
		case o.Placed == nil && o.Guaranteed && !eventExplains(o):
			errs = append(errs, fmt.Errorf("%s (%s) is pending, but its event does not say that the best now is %s and the best if GPUs were free is %s: %s",
				o.Job, o.Wants, describe(o.BestNow), describe(o.BestWhenFree), o.Message))
		case o.Placed != nil && o.GPUsWanted > 1 && o.Tier != 0:
			errs = append(errs, fmt.Errorf("%s (%s) got %s GPUs %s with %.1f GB/s, tier %d; the optimum was %s GPUs %s with %.1f GB/s", o.Job, o.Wants,
				o.Placed.Node, FormatGPUs(o.Placed.GPUs), o.Placed.GBps, o.Tier, o.Optimum.Node, FormatGPUs(o.Optimum.GPUs), o.Optimum.GBps))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w under %s: %w", ErrBelowOptimum, run.Scheduler, errors.Join(errs...))
}

// eventExplains tells whether the event of a job that waits for its guarantee names the best that exists now and the best that could
// exist, with the bandwidths that brute force finds.
func eventExplains(o Outcome) bool {
	for _, best := range []*Placement{o.BestNow, o.BestWhenFree} {
		if best != nil && !strings.Contains(o.Message, fmt.Sprintf("%.0f GB/s", best.GBps)) {
			return false
		}
	}
	return strings.Contains(o.Message, "best")
}
