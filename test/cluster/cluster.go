// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options says how to start a cluster. The zero value is a good default.
type Options struct {
	// BinDir holds the binaries; default: what the function [BinDir] returns.
	BinDir string
	// Dir is the data directory: etcd's data, certificates, kubeconfigs, logs. Default: a new temporary one, removed by
	// Stop. One that is named here is created if missing, must be empty, and is kept. A short path is better: unix sockets
	// below it may have 107 bytes at most.
	Dir string
	// LogDir receives one log file per process; default: logs/ in the data directory.
	LogDir string
	// FeatureGates goes to every Kubernetes process as --feature-gates ("A=true,B=false"), schedulers included.
	FeatureGates string
	// RuntimeConfig goes to the API server as --runtime-config ("resource.k8s.io/v1beta1=true").
	RuntimeConfig string
	// Controllers are those that the controller manager runs; default: what [DefaultControllers] returns.
	Controllers []string
	// Users are further users with a static token: name to groups. They have no rights unless they are granted some.
	Users map[string][]string
	// APIServerArgs are further arguments for kube-apiserver; they win over the package's own.
	APIServerArgs []string
	// ControllerManagerArgs are further arguments for kube-controller-manager; they win over the package's own.
	ControllerManagerArgs []string

	// pickPort replaces freePort in tests.
	pickPort func() (int, error)
}

// stage orders the processes for Stop: lower ones end first.
type stage int

const (
	stageClients stage = iota // schedulers, drivers
	stageControllerManager
	stageAPIServer
	stageEtcd
	stageCount
)

// Cluster is a running control plane.
type Cluster struct {
	opts     Options
	dir      string // absolute
	ownDir   bool   // dir is removed at the end
	logDir   string
	binDir   string
	pickPort func() (int, error)
	tokens   map[string]string // user name → static token
	admin    *rest.Config
	client   *kubernetes.Clientset

	failed   chan error // first unexpected end of a process
	stopOnce sync.Once
	stopped  chan struct{} // closed when everything has ended
	stopErr  error         // valid once stopped is closed

	background       context.Context // ends when Stop begins
	cancelBackground context.CancelFunc
	work             sync.WaitGroup // background goroutines

	mu       sync.Mutex
	stopping bool                   // no further process may start
	stages   [stageCount][]*Process // what runs or ran, in order of start
	names    map[string]int         // how many processes have had a name
	drivers  map[string][]*Process  // node name → its drivers
}

// Start starts etcd, the API server and the controller manager, and returns when all of them are ready and the package's
// RBAC objects exist. When ctx ends, the cluster stops. On error nothing is left behind.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	c, err := newCluster(opts)
	if err != nil {
		return nil, fmt.Errorf("preparing a control plane: %w", err)
	}
	if err := c.bringUp(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a control plane: %w", err), c.Stop())
	}
	context.AfterFunc(ctx, func() { _ = c.Stop() }) // its error is what a later Stop returns
	return c, nil
}

// newCluster makes the directories. On error nothing is left behind.
func newCluster(opts Options) (*Cluster, error) {
	c := &Cluster{
		opts:     opts,
		pickPort: opts.pickPort,
		tokens:   map[string]string{},
		failed:   make(chan error, 1),
		stopped:  make(chan struct{}),
		names:    map[string]int{},
		drivers:  map[string][]*Process{},
	}
	if c.pickPort == nil {
		c.pickPort = freePort
	}
	c.background, c.cancelBackground = context.WithCancel(context.Background())
	if err := c.makeDirs(); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// makeDirs resolves and creates the directories of the cluster.
func (c *Cluster) makeDirs() error {
	var err error
	if c.binDir = c.opts.BinDir; c.binDir == "" {
		if c.binDir, err = BinDir(); err != nil {
			return err
		}
	}
	// Processes run in the data directory, so every path they get has to be absolute.
	if c.binDir, err = filepath.Abs(c.binDir); err != nil {
		return fmt.Errorf("resolving the directory of the binaries: %w", err)
	}
	if err := c.makeDataDir(); err != nil {
		return err
	}
	c.logDir = filepath.Join(c.dir, "logs")
	if c.opts.LogDir != "" {
		if c.logDir, err = filepath.Abs(c.opts.LogDir); err != nil {
			return fmt.Errorf("resolving the log directory: %w", err)
		}
	}
	for _, dir := range []string{c.logDir, c.path("kubeconfigs"), c.path("certs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating directories: %w", err)
		}
	}
	return nil
}

// makeDataDir creates the data directory, or takes the caller's if it is empty.
func (c *Cluster) makeDataDir() error {
	if c.opts.Dir == "" {
		dir, err := os.MkdirTemp("", "topodra-")
		if err != nil {
			return fmt.Errorf("creating a data directory: %w", err)
		}
		c.dir, c.ownDir = dir, true
		return nil
	}
	dir, err := filepath.Abs(c.opts.Dir)
	if err != nil {
		return fmt.Errorf("resolving the data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the data directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the data directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("data directory %q is not empty: remove what is in it, or name another one", dir)
	}
	c.dir = dir
	return nil
}

// path returns a path below the data directory.
func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// Dir returns the data directory.
func (c *Cluster) Dir() string { return c.dir }

// LogDir returns the directory of the log files.
func (c *Cluster) LogDir() string { return c.logDir }

// AdminConfig returns a client configuration with all rights and without a rate limit. The caller owns the copy.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Client returns a client with all rights.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Failed delivers the error of the first process that ends although nobody stopped it.
func (c *Cluster) Failed() <-chan error { return c.failed }

// Done is closed when Stop has ended.
func (c *Cluster) Done() <-chan struct{} { return c.stopped }

// errStopping refuses what would outlive Stop.
var errStopping = errors.New("the cluster is stopping")

// start starts a process and enters it under its stage. A name that was used before gets a number in its log file.
func (c *Cluster) start(st stage, name, binary string, args []string, grace time.Duration) (*Process, error) {
	path, err := findBinary(c.binDir, binary)
	if err != nil {
		return nil, err
	}
	// The lock is held across the fork, so that Stop either sees the process or prevents it.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil, fmt.Errorf("starting %q: %w", name, errStopping)
	}
	c.names[name]++
	logName := name + ".log"
	if n := c.names[name]; n > 1 {
		logName = fmt.Sprintf("%s-%d.log", name, n)
	}
	p, err := spawn(processSpec{
		name: name, path: path, args: args, dir: c.dir, grace: grace,
		logPath: filepath.Join(c.logDir, logName),
	})
	if err != nil {
		return nil, err
	}
	c.stages[st] = append(c.stages[st], p)
	return p, nil
}

// watch reports the end of a process that has become ready. Before that, whoever starts it sees the end.
func (c *Cluster) watch(p *Process) {
	go func() {
		<-p.Done()
		if err := p.Err(); err != nil {
			select {
			case c.failed <- err:
			default: // only the first counts: what follows is often its consequence
			}
		}
	}()
}

// goWork runs f until it returns; Stop ends its context and waits for it.
func (c *Cluster) goWork(f func(context.Context)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return errStopping
	}
	c.work.Go(func() { f(c.background) })
	return nil
}

// Stop ends all processes in order, waits for them, and removes the data directory if the package made it. Further calls
// wait for the first one and return the same error.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		c.stopErr = c.stop()
		close(c.stopped)
	})
	<-c.stopped
	return c.stopErr
}

func (c *Cluster) stop() error {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.cancelBackground()
	c.work.Wait()
	var errs []error
	for st := range stageCount {
		errs = append(errs, stopAll(c.stages[st]))
	}
	if c.ownDir {
		if err := os.RemoveAll(c.dir); err != nil {
			errs = append(errs, fmt.Errorf("removing the data directory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// stopAll stops processes at the same time and waits for all of them.
func stopAll(processes []*Process) error {
	errs := make([]error, len(processes))
	var wg sync.WaitGroup
	for i, p := range processes {
		wg.Go(func() { errs[i] = p.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
