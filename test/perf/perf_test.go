// SPDX-License-Identifier: Apache-2.0

//go:build perf

package perf

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/scheduler"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/client-go/ktesting"

	"github.com/topodra/topodra/plugins/topologydra"
	"github.com/topodra/topodra/plugins/topologyscore"
)

// The variables that say what one run of the benchmark is.
const (
	envScheduler = "TOPODRA_PERF_SCHEDULER"
	envCase      = "TOPODRA_PERF_CASE"
	envNodes     = "TOPODRA_PERF_NODES"
	envChurn     = "TOPODRA_PERF_CHURN"
	// envUsage is a file for what this process used while it was measured.
	envUsage = "TOPODRA_PERF_USAGE"
)

func TestMain(m *testing.M) {
	perf.PluginNames = append(perf.PluginNames, topologydra.Name, topologyscore.Name)
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

// BenchmarkPerfScheduling is one run. Its name is what scheduler_perf expects.
func BenchmarkPerfScheduling(b *testing.B) {
	run := runOfEnvironment(b)
	shipped, err := os.ReadFile(filepath.Join("..", "..", "manifests", "scheduler", "scheduler-config.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	config, err := run.Write(b.TempDir(), shipped)
	if err != nil {
		b.Fatal(err)
	}
	meter := &meter{path: os.Getenv(envUsage)}
	perf.RunBenchmarkPerfScheduling(b, config, string(run.Scheduler), frameworkruntime.Registry{
		topologydra.Name: topologydra.New, topologyscore.Name: topologyscore.New,
	}, perf.WithNodeUpdateFn(func(tCtx ktesting.TContext, _ *scheduler.Scheduler, _ *perf.Workload, nodes *v1.NodeList) error {
		marks := 0
		for i := range nodes.Items {
			if nodes.Items[i].Labels[MarkLabel] != "" {
				marks++
			}
		}
		switch marks {
		case 0:
			return populate(tCtx, tCtx.Client(), run)
		case 1:
			return meter.start()
		default:
			return meter.stop()
		}
	}))
}

// runOfEnvironment reads what to run.
func runOfEnvironment(b *testing.B) *Run {
	b.Helper()
	run := &Run{Scheduler: Scheduler(os.Getenv(envScheduler))}
	if run.Scheduler == "" {
		b.Fatalf("%s is not set; make bench-scheduler runs this benchmark", envScheduler)
	}
	var err error
	if run.Case, err = FindCase(os.Getenv(envCase)); err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Sscan(os.Getenv(envNodes), &run.Nodes); err != nil {
		b.Fatalf("reading %s: %v", envNodes, err)
	}
	if run.ChurnTime, err = time.ParseDuration(os.Getenv(envChurn)); err != nil {
		b.Fatalf("reading %s: %v", envChurn, err)
	}
	return run
}

// Usage is what the process used between the marks. API server and controllers run in
// the same process; etcd does not.
type Usage struct {
	// CPUSeconds of user and system time.
	CPUSeconds float64 `json:"cpuSeconds"`
	// HeapBytes is what was live at the end, after a garbage collection.
	HeapBytes uint64 `json:"heapBytes"`
	// GoroutinesGrown is how many more there were at the end than at the start.
	GoroutinesGrown int `json:"goroutinesGrown"`
	// Scheduled is how many pods were given a node.
	Scheduled float64 `json:"scheduled"`
}

// meter measures the time between the marks.
type meter struct {
	path           string
	cpu, scheduled float64
	goroutines     int
}

func (m *meter) start() (err error) {
	runtime.GC()
	m.cpu, m.goroutines = cpuSeconds(), runtime.NumGoroutine()
	m.scheduled, err = scheduledPods()
	return err
}

func (m *meter) stop() error {
	usage := Usage{CPUSeconds: cpuSeconds() - m.cpu, GoroutinesGrown: runtime.NumGoroutine() - m.goroutines}
	scheduled, err := scheduledPods()
	if err != nil {
		return err
	}
	usage.Scheduled = scheduled - m.scheduled
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	usage.HeapBytes = memory.HeapAlloc
	encoded, err := json.Marshal(usage)
	if err != nil {
		return err
	}
	return os.WriteFile(m.path, encoded, 0o600)
}

// scheduledPods is how many attempts have placed a pod by now.
func scheduledPods() (float64, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() != "scheduler_schedule_attempts_total" {
			continue
		}
		sum := 0.0
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "result" && label.GetValue() == "scheduled" {
					sum += metric.GetCounter().GetValue()
				}
			}
		}
		return sum, nil
	}
	return 0, nil
}

// cpuSeconds is what this process has used by now.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
