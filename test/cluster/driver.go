// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// DriverOptions says which node gets a driver, and what that driver sees.
type DriverOptions struct {
	// Node is the name of an existing node.
	Node string
	// MachineFile is the recorded machine that the driver publishes.
	MachineFile string
	// RescanPeriod is how often the driver reads the machine again; default 10 s.
	RescanPeriod time.Duration
	// Binary is [TopoDRADriver] (the default) or a path with a slash to another one with the same flags.
	Binary string
	// ExtraArgs are further arguments; they win over the package's own.
	ExtraArgs []string
}

// driverFlags is the one place that knows the driver's command line.
type driverFlags struct {
	kubeconfig, node, machine  string
	pluginRegistry, pluginData string
	rescan                     time.Duration
}

func (f driverFlags) args() []string {
	return []string{
		"--kubeconfig=" + f.kubeconfig,
		"--node-name=" + f.node,
		"--machine=" + f.machine,
		"--plugin-registry-dir=" + f.pluginRegistry,
		"--plugin-data-dir=" + f.pluginData,
		"--rescan-period=" + f.rescan.String(),
		// All drivers of a cluster would listen at the same port.
		"--http-address=",
	}
}

// StartDriver starts a driver for a node and returns when it has opened its registration socket, where a kubelet would find
// it. What it publishes comes after that: see [Cluster.WaitForResourceSlices].
func (c *Cluster) StartDriver(ctx context.Context, opts DriverOptions) (*Process, error) {
	flags, err := c.prepareDriver(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("starting the driver of node %q: %w", opts.Node, err)
	}
	p, err := c.start(stageClients, "driver-"+opts.Node, cmp.Or(opts.Binary, TopoDRADriver),
		append(flags.args(), opts.ExtraArgs...), driverGrace)
	if err != nil {
		return nil, err
	}
	err = p.waitReady(ctx, readyTimeout, func(context.Context) error { return hasSocket(flags.pluginRegistry) })
	if err != nil {
		return nil, fmt.Errorf("starting the driver of node %q: %w", opts.Node, joinStop(err, p))
	}
	c.mu.Lock()
	c.drivers[opts.Node] = append(c.drivers[opts.Node], p)
	c.mu.Unlock()
	c.watch(p)
	return p, nil
}

// prepareDriver makes the directories and the credentials of a driver.
func (c *Cluster) prepareDriver(ctx context.Context, opts DriverOptions) (driverFlags, error) {
	if err := checkName(opts.Node); err != nil {
		return driverFlags{}, err
	}
	machine, err := filepath.Abs(opts.MachineFile)
	if err != nil {
		return driverFlags{}, fmt.Errorf("resolving the machine file: %w", err)
	}
	// Short names, because the driver's sockets are below: <dir>/k/<node>/r/<driver>-reg.sock.
	root := c.path("k", opts.Node)
	flags := driverFlags{
		node: opts.Node, machine: machine,
		pluginRegistry: filepath.Join(root, "r"), pluginData: filepath.Join(root, "p"),
		rescan: cmp.Or(opts.RescanPeriod, 10*time.Second),
	}
	// A socket of an earlier driver of this node must not speak for this one.
	if err := os.RemoveAll(flags.pluginRegistry); err != nil {
		return driverFlags{}, fmt.Errorf("removing old sockets: %w", err)
	}
	for _, dir := range []string{flags.pluginRegistry, flags.pluginData} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return driverFlags{}, fmt.Errorf("creating directories: %w", err)
		}
	}
	flags.kubeconfig, err = c.driverKubeconfig(ctx, opts.Node)
	return flags, err
}

// driverKubeconfig writes a kubeconfig with a token of the driver's service account that is bound to the node, as the
// token of a pod on that node would be: the API server then knows for which node the driver speaks.
func (c *Cluster) driverKubeconfig(ctx context.Context, nodeName string) (string, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("getting the node: %w", err)
	}
	token, err := c.serviceAccountToken(ctx, UserTopoDRADriver, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
	})
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig("driver-"+nodeName, UserTopoDRADriver, token)
}

// hasSocket reports, as an error, that a directory has no unix socket in it.
func hasSocket(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for the registration socket: %w", err)
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket }) {
		return fmt.Errorf("looking for the registration socket: none in %q", dir)
	}
	return nil
}

// WaitForResourceSlices waits until a driver's pool of a node is complete, and returns its slices in the order of names. It
// gives up when ctx ends or when a driver that was started for the node ends.
func (c *Cluster) WaitForResourceSlices(ctx context.Context, node, driver string) ([]resourceapi.ResourceSlice, error) {
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node),
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver),
	).String()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	found := 0
	for {
		list, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("listing the ResourceSlices of node %q: %w", node, err)
		}
		found = len(list.Items)
		if pool, ok := completePool(list.Items); ok {
			return pool, nil
		}
		if err := c.driverErr(node); err != nil {
			return nil, fmt.Errorf("waiting for ResourceSlices of node %q: %w", node, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for ResourceSlices of driver %q on node %q: %w; %d slices are there, which is no complete pool%s",
				driver, node, context.Cause(ctx), found, c.driverLogs(node))
		}
	}
}

// completePool returns the slices of the newest generation if all of them are there.
func completePool(items []resourceapi.ResourceSlice) ([]resourceapi.ResourceSlice, bool) {
	var newest int64 = -1
	for i := range items {
		newest = max(newest, items[i].Spec.Pool.Generation)
	}
	pool := slices.DeleteFunc(items, func(s resourceapi.ResourceSlice) bool { return s.Spec.Pool.Generation != newest })
	slices.SortFunc(pool, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return pool, len(pool) > 0 && int64(len(pool)) == pool[0].Spec.Pool.ResourceSliceCount
}

// driverErr returns the error of the node's first driver that ended by itself.
func (c *Cluster) driverErr(node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.drivers[node] {
		if err := p.Err(); err != nil {
			return err
		}
	}
	return nil
}

// driverLogs returns the ends of the logs of a node's drivers, for an error message.
func (c *Cluster) driverLogs(node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var logs strings.Builder
	for _, p := range c.drivers[node] {
		fmt.Fprintf(&logs, "; last lines of %s:\n%s", p.LogPath, p.LogTail())
	}
	return logs.String()
}
