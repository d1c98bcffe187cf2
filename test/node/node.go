// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/test/cluster"
)

// readyTimeout is generous: the machine may be compiling something else on few cores.
const readyTimeout = 3 * time.Minute

// errStopping refuses what would outlive Stop.
var errStopping = errors.New("the node is stopping")

// Node is a running node.
type Node struct {
	opts         Options
	dir          string
	cluster      *cluster.Cluster
	client       kubernetes.Interface // the admin's, past the link that Disconnect cuts
	link         *link
	warden       *warden
	cgroup       string // name of the node's cgroup, the same in every hierarchy
	cgroupMounts []string
	kubeletPort  int

	stopOnce sync.Once
	stopErr  error

	services   sync.Mutex // held while the kubelet or containerd starts or stops
	kubelet    *cluster.Process
	containerd *cluster.Process
	cri        *criClient

	mu        sync.Mutex
	stopping  bool // nothing further may start
	names     map[string]int
	processes []*cluster.Process // all that ever ran, in order of start
}

// Start starts containerd and a kubelet, and returns when the node is Ready. When ctx ends, the node stops. On error nothing
// is left behind. The node has to be stopped before the cluster.
func Start(ctx context.Context, c *cluster.Cluster, opts Options) (*Node, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, fmt.Errorf("preparing node %q: %w", opts.Name, err)
	}
	n := &Node{opts: opts, cluster: c, client: c.Client(), names: map[string]int{}}
	if err := n.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing node %q: %w", opts.Name, err), n.Stop())
	}
	if err := n.bringUp(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting node %q: %w", opts.Name, err), n.Stop())
	}
	context.AfterFunc(ctx, func() { _ = n.Stop() }) // its error is what a later Stop returns
	return n, nil
}

// prepare makes directories, cgroups and the mount namespace, and opens the link to the API server.
func (n *Node) prepare() error {
	if err := n.opts.makeDir(); err != nil {
		return err
	}
	n.dir = n.opts.Dir
	for _, dir := range []string{
		n.opts.LogDir, n.path("tmp"), n.path("images"), n.path("cni"), n.PluginRegistryDir(), n.PluginsDir(), n.CDIDir(),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // seen from within containers
			return fmt.Errorf("creating directories: %w", err)
		}
	}
	mountinfo, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("looking for cgroups: %w", err)
	}
	defer mountinfo.Close()
	if n.cgroupMounts, err = cgroupMounts(mountinfo); err != nil {
		return fmt.Errorf("looking for cgroups: %w", err)
	}
	n.cgroup = "topodra-node-" + strings.ToLower(rand.Text()[:10])
	if n.warden, err = startWarden(append([]string{n.dir}, n.opts.RemoveToo...), cgroupPaths(n.cgroupMounts, n.cgroup)); err != nil {
		return err
	}
	n.link, err = startLink(n.cluster.AdminConfig().Host)
	return err
}

// bringUp starts containerd, imports the image of the pods' sandboxes, and starts the kubelet.
func (n *Node) bringUp(ctx context.Context) error {
	if err := n.writeConfigs(); err != nil {
		return err
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	pause, err := PauseImage(ctx, n.path("tmp"))
	if err != nil {
		return err
	}
	if err := n.ImportImage(ctx, pause); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// Stop ends everything on the node, pods included, and removes what it left on this machine, its Node object and its
// ResourceSlices. Pod objects stay. Further calls wait for the first one and return the same error.
func (n *Node) Stop() error {
	n.stopOnce.Do(func() { n.stopErr = n.stop() })
	return n.stopErr
}

func (n *Node) stop() error {
	n.mu.Lock()
	n.stopping = true
	processes := slices.Clone(n.processes)
	n.mu.Unlock()
	var errs []error
	// Latest first: drivers before the kubelet, the kubelet before containerd. What is still being started ends, too, so that
	// whoever waits for it gives the lock back.
	for _, p := range slices.Backward(processes) {
		errs = append(errs, p.Stop())
	}
	n.services.Lock()
	defer n.services.Unlock()
	if n.cri != nil {
		errs = append(errs, n.cri.close())
	}
	if n.link != nil {
		errs = append(errs, n.link.close())
	}
	if n.warden != nil {
		errs = append(errs, n.warden.command("keep"), n.warden.end())
	} else if n.dir != "" {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping node %q: %w", n.opts.Name, err)
	}
	return n.forget()
}

// forget removes the node from the API, if there still is one.
func (n *Node) forget() error {
	select {
	case <-n.cluster.Done():
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := n.cluster.RemoveNode(ctx, n.opts.Name)
	select {
	case <-n.cluster.Done(): // it stopped meanwhile: nobody will see the object
		return nil
	default:
		return err
	}
}

func (n *Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.opts.Name }

// Dir returns the node's directory; [Node.Stop] removes it. Everything that is on the node's disk is below it.
func (n *Node) Dir() string { return n.dir }

// LogDir returns the directory of the log files.
func (n *Node) LogDir() string { return n.opts.LogDir }

// PluginRegistryDir is where the kubelet looks for the registration sockets of drivers.
func (n *Node) PluginRegistryDir() string { return n.path("k", "plugins_registry") }

// PluginsDir is where drivers have directories of their own.
func (n *Node) PluginsDir() string { return n.path("k", "plugins") }

// CDIDir is where containerd looks for CDI specs. A reboot empties it.
func (n *Node) CDIDir() string { return filepath.Join(n.volatileDir(), "cdi") }

// NRISocket is containerd's socket for NRI plugins.
func (n *Node) NRISocket() string { return n.path("nri.sock") }

// ContainerdSocket is containerd's own socket, with the CRI.
func (n *Node) ContainerdSocket() string { return n.path("c.sock") }

// Err returns the error of the first process that ended although nobody stopped it.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.processes {
		if err := p.Err(); err != nil {
			return err
		}
	}
	return nil
}
