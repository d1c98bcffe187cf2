// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/node"
)

// driverTimeout bounds the start of a driver on a busy machine.
const driverTimeout = 2 * time.Minute

// driver is the driver of the node, in however many processes.
type driver struct {
	world      *world
	kubeconfig string
	stateDir   string
	wrapper    []string // a program and its arguments that run the driver's; nil runs it directly

	current *cluster.Process // nil while it is stopped
}

// newDriver starts the driver for the first time.
func newDriver(ctx context.Context, w *world) (*driver, error) {
	d := &driver{world: w, stateDir: filepath.Join(w.node.Dir(), "state")}
	if err := os.Mkdir(d.stateDir, 0o755); err != nil { //nolint:gosec // regions below it are seen from containers
		return nil, fmt.Errorf("setting up the driver: %w", err)
	}
	var err error
	if d.kubeconfig, err = w.node.Kubeconfig(ctx, cluster.Namespace, "topodra-driver"); err != nil {
		return nil, fmt.Errorf("setting up the driver: %w", err)
	}
	if err := d.start(ctx); err != nil {
		return nil, fmt.Errorf("setting up the driver: %w", err)
	}
	return d, nil
}

// dataDir is where the driver's own sockets are.
func (d *driver) dataDir() string { return filepath.Join(d.world.node.PluginsDir(), api.DriverName) }

// args are the driver's command line. A pod UID makes a rolling update possible: each process has sockets of its own.
func (d *driver) args(podUID string, more ...string) []string {
	args := []string{
		"--kubeconfig=" + d.kubeconfig,
		"--node-name=" + nodeName,
		"--machine=" + filepath.Join(d.world.root, machineFile),
		"--plugin-registry-dir=" + d.world.node.PluginRegistryDir(),
		"--plugin-data-dir=" + d.dataDir(),
		"--cdi-dir=" + d.world.node.CDIDir(),
		"--state-dir=" + d.stateDir,
		"--hami-core-library=" + d.world.library,
		"--nri-socket=" + d.world.node.NRISocket(),
		"--pod-uid=" + podUID,
		"--rescan-period=10s", "--reconcile-period=15s",
		"--http-address=", // two drivers run side by side
		"-v=4",
	}
	return append(args, more...)
}

// launch starts one process and waits for its registration socket.
func (d *driver) launch(ctx context.Context, more ...string) (*cluster.Process, error) {
	podUID := string(uuid.NewUUID())
	command := append(append(slices.Clone(d.wrapper), filepath.Join(d.world.binDir, cluster.TopoDRADriver)), d.args(podUID, more...)...)
	p, err := d.world.node.Run(node.ProcessOptions{Name: "driver", Path: command[0], Args: command[1:]})
	if err != nil {
		return nil, err
	}
	err = p.WaitReady(ctx, driverTimeout, func(context.Context) error {
		entries, err := os.ReadDir(d.world.node.PluginRegistryDir())
		if err != nil {
			return fmt.Errorf("looking for the registration socket: %w", err)
		}
		for _, entry := range entries {
			if strings.Contains(entry.Name(), podUID) {
				return nil
			}
		}
		return fmt.Errorf("looking for the registration socket: none for %q among %v", podUID, entries)
	})
	return p, err
}

// start starts the driver if it does not run.
func (d *driver) start(ctx context.Context, more ...string) error {
	if d.current != nil {
		return nil
	}
	p, err := d.launch(ctx, more...)
	if err == nil {
		d.current = p
	}
	return err
}

// stop ends the driver in order.
func (d *driver) stop() error {
	p := d.current
	d.current = nil
	if p == nil {
		return nil
	}
	return p.Stop()
}

// kill ends the driver without notice.
func (d *driver) kill() error {
	p := d.current
	d.current = nil
	if p == nil {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return p.Stop()
}

// forget takes note that somebody else ended the driver, as a reboot does.
func (d *driver) forget() { d.current = nil }
