// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/topodra/topodra/test/perf"
	"github.com/topodra/topodra/test/perf/verdict"
)

// runner runs the benchmark in processes.
type runner struct {
	*options
	progress io.Writer
	// done of total runs.
	done, total int
}

// pairs runs a case on a cluster as often as wanted. Which scheduler goes first
// alternates, so that neither has the warmer machine always.
func (r *runner) pairs(ctx context.Context, c *perf.Case, nodes int) ([]verdict.Pair, error) {
	var pairs []verdict.Pair
	for i := range r.options.pairs {
		order := perf.Schedulers()
		if i%2 == 1 {
			slices.Reverse(order)
		}
		figures := map[perf.Scheduler]*verdict.Figures{}
		for _, scheduler := range order {
			f, err := r.once(ctx, c, nodes, i, scheduler)
			if err != nil {
				return nil, fmt.Errorf("running case %q on %d nodes with %s: %w", c.Name, nodes, scheduler, err)
			}
			figures[scheduler] = f
		}
		pairs = append(pairs, verdict.Pair{InTree: figures[perf.InTree], Ours: figures[perf.TopoDRA]})
	}
	return pairs, nil
}

// once runs the benchmark once.
func (r *runner) once(ctx context.Context, c *perf.Case, nodes, pair int, scheduler perf.Scheduler) (*verdict.Figures, error) {
	r.done++
	dir := filepath.Join(r.out, fmt.Sprintf("%s-%dnodes-%d-%s", c.Name, nodes, pair+1, scheduler))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a directory for the figures: %w", err)
	}
	start := time.Now()
	if err := r.process(ctx, dir, c, nodes, scheduler); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("looking for the figures: %w", err)
	}
	usage := filepath.Join(dir, usageFile)
	files = slices.DeleteFunc(files, func(path string) bool { return path == usage })
	if len(files) != 1 {
		return nil, fmt.Errorf("reading the figures: there are %d files in %s, want 1 besides %s", len(files), dir, usageFile)
	}
	f, err := verdict.Read(files[0], usage)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(r.progress, "%3d/%d %-13s %5d nodes %-8s attempt %8.2f ms, %7.1f pods/s, %d pods in %s\n",
		r.done, r.total, c.Name, nodes, scheduler, f.MeanMilliseconds, f.PodsPerSecond, int(f.Pods), time.Since(start).Round(time.Second))
	return f, err
}

// usageFile is where the benchmark writes what it used.
const usageFile = "usage.json"

// process runs the benchmark and waits for its end. It gets a process group of its own,
// so that its etcd ends with it when this program is interrupted.
func (r *runner) process(ctx context.Context, dir string, c *perf.Case, nodes int, scheduler perf.Scheduler) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return fmt.Errorf("making a log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(ctx, r.binary, "-test.run=^$", "-test.bench=^BenchmarkPerfScheduling$", "-test.benchtime=1x",
		"-test.timeout=30m", "-data-items-dir="+dir)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.source, log, log
	cmd.Env = append(os.Environ(),
		"PATH="+r.tools+string(os.PathListSeparator)+os.Getenv("PATH"),
		"TOPODRA_PERF_SCHEDULER="+string(scheduler), "TOPODRA_PERF_CASE="+c.Name, "TOPODRA_PERF_NODES="+strconv.Itoa(nodes),
		"TOPODRA_PERF_CHURN="+r.churnTime.String(), "TOPODRA_PERF_USAGE="+filepath.Join(dir, usageFile))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w; its log is %s", err, log.Name())
	}
	return nil
}
