// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
)

// startTimeout bounds the start of a cluster on a busy machine.
const startTimeout = 3 * time.Minute

// Node is a simulated node.
type Node struct {
	Name string
	// Machine is the name of a recorded machine of package topotest, or the path of a file if it ends in ".json". A node
	// without has no driver.
	Machine string
	// DriverArgs are further arguments of its driver.
	DriverArgs []string
	Labels     map[string]string
}

// Options says what to start.
type Options struct {
	Nodes []Node
	// Scheduler changes the shipped scheduler configuration; nil leaves it as it is.
	Scheduler func(*SchedulerConfig)
	// Cluster changes the control plane.
	Cluster cluster.Options
	// Manifests are files or directories with further objects, relative to the repository.
	Manifests []string
}

// Bed is a running cluster.
type Bed struct {
	Cluster *cluster.Cluster
	Client  kubernetes.Interface
	// Root of the repository.
	Root string

	config    string
	drivers   map[string]*cluster.Process
	scheduler *cluster.Process // nil while none runs
}

// Run starts a cluster, hands it to the tests by bed, runs them and stops everything. It returns the exit status.
func Run(m *testing.M, bed **Bed, options Options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := Start(ctx, options)
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting the test cluster: %v\n", err)
		return 1
	}
	*bed = b
	code := m.Run()
	if err := b.Stop(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "ending the test cluster: %v\n", err)
		return 1
	}
	return code
}

// Start starts a cluster. On error nothing is left running.
func Start(ctx context.Context, options Options) (*Bed, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	config, err := schedulerConfig(root, options.Scheduler)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, options.Cluster)
	if err != nil {
		return nil, err
	}
	b := &Bed{Cluster: c, Client: c.Client(), Root: root, config: config, drivers: map[string]*cluster.Process{}}
	if err := b.bringUp(ctx, options); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return b, nil
}

// bringUp creates the classes and the nodes and starts the scheduler.
func (b *Bed) bringUp(ctx context.Context, options Options) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.Cluster.RunPods(); err != nil {
		return err
	}
	manifests := append([]string{"manifests/base/deviceclasses.yaml"}, options.Manifests...)
	for i := range manifests {
		manifests[i] = filepath.Join(b.Root, manifests[i])
	}
	if err := b.Cluster.Apply(ctx, manifests); err != nil {
		return err
	}
	errs := make([]error, len(options.Nodes)+1)
	var wait sync.WaitGroup
	processes := make([]*cluster.Process, len(options.Nodes))
	for i, node := range options.Nodes {
		wait.Go(func() { processes[i], errs[i] = b.startNode(ctx, node) })
	}
	wait.Go(func() { errs[len(options.Nodes)] = b.StartScheduler(ctx) })
	wait.Wait()
	for i, node := range options.Nodes {
		b.drivers[node.Name] = processes[i]
	}
	return errors.Join(errs...)
}

// AddNode starts a node for the time of one scene.
func (s *Scene) AddNode(node Node) {
	s.t.Helper()
	process, err := s.startNode(s.ctx, node)
	if err != nil {
		s.t.Fatalf("adding node %q: %v", node.Name, err)
	}
	s.drivers[node.Name] = process
	s.Finally(func(ctx context.Context) error {
		delete(s.drivers, node.Name)
		return s.Cluster.RemoveNode(ctx, node.Name)
	})
}

// startNode creates a node and, if it has a machine, starts its driver and waits for what that publishes.
func (b *Bed) startNode(ctx context.Context, node Node) (*cluster.Process, error) {
	if _, err := b.Cluster.AddNode(ctx, cluster.NodeOptions{Name: node.Name, Labels: node.Labels}); err != nil {
		return nil, err
	}
	if node.Machine == "" {
		return nil, nil
	}
	file := node.Machine
	if filepath.Ext(file) != ".json" {
		file = filepath.Join(b.Root, "topology/topotest/machines", node.Machine+".json")
	}
	process, err := b.Cluster.StartDriver(ctx, cluster.DriverOptions{
		Node: node.Name, MachineFile: file, RescanPeriod: time.Hour, ExtraArgs: node.DriverArgs,
	})
	if err != nil {
		return nil, err
	}
	_, err = b.Cluster.WaitForResourceSlices(ctx, node.Name, api.DriverName)
	return process, err
}

// Rescan makes the driver of a node read its machine again.
func (s *Scene) Rescan(node string) {
	s.t.Helper()
	if err := s.drivers[node].Signal(syscall.SIGHUP); err != nil {
		s.t.Fatalf("rescanning node %q: %v", node, err)
	}
}

// StartScheduler starts the scheduler with the bed's configuration.
func (b *Bed) StartScheduler(ctx context.Context) error { return b.StartSchedulerAs(ctx, "") }

// StartSchedulerAs does so as another user and with further arguments.
func (b *Bed) StartSchedulerAs(ctx context.Context, user string, args ...string) error {
	return b.startScheduler(ctx, cluster.SchedulerOptions{ConfigYAML: b.config, User: user, ExtraArgs: args})
}

// StartSchedulerWith does so with another change of the shipped configuration.
func (b *Bed) StartSchedulerWith(ctx context.Context, change func(*SchedulerConfig)) error {
	config, err := schedulerConfig(b.Root, change)
	if err != nil {
		return err
	}
	return b.startScheduler(ctx, cluster.SchedulerOptions{ConfigYAML: config})
}

func (b *Bed) startScheduler(ctx context.Context, options cluster.SchedulerOptions) error {
	options.ExtraArgs = append([]string{"-v=3"}, options.ExtraArgs...)
	process, err := b.Cluster.StartScheduler(ctx, options)
	if err != nil {
		return err
	}
	b.scheduler = process
	return nil
}

// StopScheduler stops the scheduler and checks what it leaves behind, see the package comment.
func (b *Bed) StopScheduler(ctx context.Context) error {
	process := b.scheduler
	if process == nil {
		return nil
	}
	b.scheduler = nil
	metrics, err := readMetrics(ctx, process)
	if err == nil {
		if n := metrics.Sum("topodra_plan_mismatches_total"); n != 0 {
			err = fmt.Errorf("scheduler %q reserved %v times other devices than planned", process.Name, n)
		}
	}
	return errors.Join(err, process.Stop(), noPanic(process))
}

// Scheduler returns the running scheduler.
func (b *Bed) Scheduler(t testing.TB) *cluster.Process {
	t.Helper()
	if b.scheduler == nil {
		t.Fatal("no scheduler runs")
	}
	return b.scheduler
}

// noPanic looks for a panic in the log, also one that was recovered from.
func noPanic(process *cluster.Process) error {
	log, err := os.ReadFile(process.LogPath)
	if err != nil {
		return fmt.Errorf("reading the log of %q: %w", process.Name, err)
	}
	for _, sign := range []string{"panic:", "Observed a panic", "DATA RACE", "goroutine 1 ["} {
		if at := bytes.Index(log, []byte(sign)); at >= 0 {
			return fmt.Errorf("%q panicked: …%.2000s", process.Name, log[at:])
		}
	}
	return nil
}

// Stop ends everything and returns what went wrong while it ran.
func (b *Bed) Stop(ctx context.Context) error {
	var died error
	select {
	case died = <-b.Cluster.Failed():
	default:
	}
	return errors.Join(died, b.StopScheduler(ctx), b.Cluster.Stop())
}
