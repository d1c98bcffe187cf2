// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/topodra/topodra/test/cluster"
)

const (
	// driverName is what the driver calls itself in its ResourceSlices.
	driverName = "gpu.topodra.dev"
	// publishTimeout is how long a driver may take from its start to its ResourceSlices.
	publishTimeout = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once, and the kernel ends its children.
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute returns the exit status: 0 after an end by ctx, 2 for a bad command line, 1 for everything else.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	config, err := parseArgs(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "topodra-cluster: %v\n", err)
		return 2
	}
	if err := serve(ctx, config, stdout); err != nil {
		fmt.Fprintf(stderr, "topodra-cluster: %v\n", err)
		return 1
	}
	return 0
}

// node is one simulated node.
type node struct{ name, machine string }

// config is the parsed command line.
type config struct {
	options         cluster.Options
	nodes           []node
	manifests       []string
	schedulerConfig string
	stock, topodra  bool
	driverArgs      []string
}

// parseArgs reads the command line. Messages about unknown flags and the usage go to stderr.
func parseArgs(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("topodra-cluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	nodes := flags.String("nodes", "", "simulated nodes: `NAME=MACHINE.json,…`")
	manifests := flags.String("manifests", "",
		"`FILE,DIRECTORY,…` whose DeviceClasses are created, in this order; default those of the repository, with nvidia.com/gpu as an extended resource")
	flags.StringVar(&c.schedulerConfig, "scheduler-config", "",
		"`file` with the KubeSchedulerConfiguration of our scheduler; default manifests/scheduler/scheduler-config.yaml of the repository")
	flags.BoolVar(&c.topodra, "topodra-scheduler", true, "run our scheduler")
	flags.BoolVar(&c.stock, "stock-scheduler", true, "run the stock scheduler for pods that name none")
	flags.StringVar(&c.options.Dir, "dir", "", "data `directory`, kept at the end; default a temporary one")
	flags.StringVar(&c.options.LogDir, "log-dir", "", "`directory` of the log files; default logs/ in the data directory")
	flags.StringVar(&c.options.FeatureGates, "feature-gates", "", "`A=true,…` for all Kubernetes processes")
	flags.StringVar(&c.options.RuntimeConfig, "runtime-config", "", "`group/version=true,…` for the API server")
	driverArgs := flags.String("driver-args", "", "further `arguments` for every driver, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return config{}, fmt.Errorf("reading the command line: %w", err)
	}
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("reading the command line: unexpected argument %q", flags.Arg(0))
	}
	c.driverArgs = strings.Fields(*driverArgs)
	if *manifests != "" {
		c.manifests = strings.Split(*manifests, ",")
	}
	var err error
	if c.nodes, err = parseNodes(*nodes); err != nil {
		return config{}, err
	}
	return c, c.fillPaths()
}

// fillPaths sets the default paths of the repository.
func (c *config) fillPaths() error {
	if c.manifests != nil && (c.schedulerConfig != "" || !c.topodra) {
		return nil
	}
	root, err := cluster.RepoRoot()
	if err != nil {
		return fmt.Errorf("%w; run inside it, or set --manifests and --scheduler-config", err)
	}
	if c.manifests == nil {
		// The second one replaces a class of the first.
		for _, name := range []string{"deviceclasses.yaml", "deviceclasses-extended-resource.yaml"} {
			c.manifests = append(c.manifests, filepath.Join(root, "manifests", "base", name))
		}
	}
	if c.schedulerConfig == "" {
		c.schedulerConfig = filepath.Join(root, "manifests", "scheduler", "scheduler-config.yaml")
	}
	return nil
}

// parseNodes reads NAME=MACHINE pairs.
func parseNodes(text string) ([]node, error) {
	var nodes []node
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, machine, ok := strings.Cut(pair, "=")
		if !ok || name == "" || machine == "" {
			return nil, fmt.Errorf("reading --nodes: %q is not of the form NAME=MACHINE.json", pair)
		}
		if slices.ContainsFunc(nodes, func(n node) bool { return n.name == name }) {
			return nil, fmt.Errorf("reading --nodes: node %q is named twice", name)
		}
		if info, err := os.Stat(machine); err != nil || info.IsDir() {
			return nil, fmt.Errorf("reading --nodes: the machine of node %q, %q, is not a file that can be read", name, machine)
		}
		nodes = append(nodes, node{name, machine})
	}
	return nodes, nil
}

// serve runs the cluster until ctx ends or one of its processes fails.
func serve(ctx context.Context, config config, stdout io.Writer) error {
	c, err := cluster.Start(ctx, config.options)
	if err == nil {
		err = run(ctx, c, config, stdout)
		fmt.Fprintln(stdout, "stopping")
		if stopErr := c.Stop(); stopErr != nil {
			return stopErr
		}
	}
	if ctx.Err() != nil {
		err = nil // an interruption explains every error, and is what the user asked for
	}
	return err
}

// run makes the cluster usable, says so, and waits for its end.
func run(ctx context.Context, c *cluster.Cluster, config config, stdout io.Writer) error {
	if err := populate(ctx, c, config, stdout); err != nil {
		return err
	}
	if err := announce(ctx, c, stdout); err != nil {
		return err
	}
	select {
	case err := <-c.Failed():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// populate adds the device classes, the nodes with their drivers, and the schedulers.
func populate(ctx context.Context, c *cluster.Cluster, config config, stdout io.Writer) error {
	fmt.Fprintln(stdout, "control plane is ready")
	if err := c.RunPods(); err != nil {
		return fmt.Errorf("starting the stand-in for kubelets: %w", err)
	}
	if err := c.Apply(ctx, config.manifests, "DeviceClass"); err != nil {
		return err
	}
	for _, n := range config.nodes {
		if err := addNode(ctx, c, n, config.driverArgs, stdout); err != nil {
			return err
		}
	}
	if config.stock {
		if _, err := c.StartScheduler(ctx, cluster.SchedulerOptions{Binary: cluster.StockScheduler}); err != nil {
			return fmt.Errorf("starting the stock scheduler: %w", err)
		}
		fmt.Fprintln(stdout, "stock scheduler is ready (pods without schedulerName)")
	}
	if !config.topodra {
		return nil
	}
	text, err := os.ReadFile(config.schedulerConfig)
	if err != nil {
		return fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	if _, err := c.StartScheduler(ctx, cluster.SchedulerOptions{ConfigYAML: string(text)}); err != nil {
		return fmt.Errorf("starting our scheduler: %w", err)
	}
	fmt.Fprintln(stdout, "our scheduler is ready (schedulerName: topodra-scheduler)")
	return nil
}

// addNode adds a node with a driver and waits for what it publishes.
func addNode(ctx context.Context, c *cluster.Cluster, n node, driverArgs []string, stdout io.Writer) error {
	if _, err := c.AddNode(ctx, cluster.NodeOptions{Name: n.name}); err != nil {
		return err
	}
	if _, err := c.StartDriver(ctx, cluster.DriverOptions{Node: n.name, MachineFile: n.machine, ExtraArgs: driverArgs}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	slices, err := c.WaitForResourceSlices(ctx, n.name, driverName)
	if err != nil {
		return err
	}
	devices := 0
	for i := range slices {
		devices += len(slices[i].Spec.Devices)
	}
	fmt.Fprintf(stdout, "node %s is ready: %d devices of %s\n", n.name, devices, filepath.Base(n.machine))
	return nil
}

// announce prints how to use the cluster.
func announce(ctx context.Context, c *cluster.Cluster, stdout io.Writer) error {
	kubeconfig, err := c.Kubeconfig(ctx, cluster.UserAdmin)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, `
The cluster is ready. In another terminal:

  export KUBECONFIG=%s
  kubectl get nodes,resourceslices

Logs are in %s. Ctrl-C stops everything.
`, kubeconfig, c.LogDir())
	return nil
}
