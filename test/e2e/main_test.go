// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/e2e/vgpudouble"
	"github.com/topodra/topodra/test/node"
)

const (
	nodeName = "node-a"
	// machineFile is what the driver finds: 8 GPUs of a DGX-1, in a cube mesh.
	machineFile = "topology/topotest/machines/dgx1v_8xv100.json"
	gpuCount    = 8
	// setUpTimeout bounds what takes half a minute on an idle machine.
	setUpTimeout = 10 * time.Minute
)

// world is what all tests share.
type world struct {
	dir     string
	root    string // of the repository
	binDir  string
	cluster *cluster.Cluster
	client  kubernetes.Interface
	node    *node.Node
	library string // the double of libvgpu.so
	driver  *driver
	devices map[string]published // what the driver published at first: it is the same machine all the time
}

// shared is set by TestMain.
var shared *world

func TestMain(m *testing.M) {
	// Ctrl-C stops in order; when that fails, the node's warden cleans up.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, m)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int) {
	before, err := node.Footprint()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w, err := setUp(ctx)
	defer func() {
		err := w.tearDown()
		if err == nil {
			err = node.CheckFootprint(before, w.dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	unwatch := context.AfterFunc(ctx, func() {
		fmt.Fprintln(os.Stderr, "interrupted: stopping everything")
		err := w.tearDown()
		fmt.Fprintln(os.Stderr, "stopped:", err)
		os.Exit(1)
	})
	defer unwatch()
	shared = w
	return m.Run()
}

// setUp starts everything. What it returns has to be torn down even after an error.
func setUp(ctx context.Context) (*world, error) {
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	w := &world{}
	if err := w.makeDirs(); err != nil {
		return w, err
	}
	logs := func(name string) string {
		return filepath.Join(cmp.Or(os.Getenv("TOPODRA_E2E_LOGS"), filepath.Join(w.dir, "logs")), name)
	}
	var err error
	// The life of processes is that of the world, not that of this function.
	if w.cluster, err = cluster.Start(context.WithoutCancel(ctx), cluster.Options{Dir: filepath.Join(w.dir, "c"), LogDir: logs("cluster")}); err != nil {
		return w, fmt.Errorf("setting up: %w", err)
	}
	w.client = w.cluster.Client()
	w.node, err = node.Start(context.WithoutCancel(ctx), w.cluster, node.Options{
		Name: nodeName, Dir: filepath.Join(w.dir, "n"), LogDir: logs("node"), RemoveToo: []string{w.dir},
	})
	if err != nil {
		return w, fmt.Errorf("setting up: %w", err)
	}
	if err := w.startScheduler(ctx); err != nil {
		return w, err
	}
	if err := w.makeImages(ctx); err != nil {
		return w, err
	}
	if w.driver, err = newDriver(ctx, w); err != nil {
		return w, err
	}
	w.devices, err = w.published(ctx)
	return w, err
}

// makeDirs finds the repository and makes a short directory, because sockets are below it.
func (w *world) makeDirs() error {
	var err error
	if w.root, err = cluster.RepoRoot(); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if w.binDir, err = cluster.BinDir(); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if w.dir, err = os.MkdirTemp("", "te-"); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return os.Chmod(w.dir, 0o711) // the node's directories below it are seen from containers
}

// startScheduler starts ours with the configuration that users get.
func (w *world) startScheduler(ctx context.Context) error {
	config, err := os.ReadFile(filepath.Join(w.root, "manifests/scheduler/scheduler-config.yaml"))
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := w.cluster.Apply(ctx, []string{filepath.Join(w.root, "manifests/base")}, "DeviceClass"); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	_, err = w.cluster.StartScheduler(ctx, cluster.SchedulerOptions{ConfigYAML: string(config)})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return nil
}

// makeImages builds the double and the image of the test pods.
func (w *world) makeImages(ctx context.Context) error {
	build := filepath.Join(w.dir, "build")
	if err := os.Mkdir(build, 0o700); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	library, err := vgpudouble.Library(ctx, build)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	w.library = library
	image, err := vgpudouble.Image(ctx, build)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := w.node.ImportImage(ctx, image); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return nil
}

// tearDown stops everything that runs and removes what is on disk. It may be called several times.
func (w *world) tearDown() error {
	var errs []error
	if w.node != nil {
		errs = append(errs, w.node.Stop())
	}
	if w.cluster != nil {
		errs = append(errs, w.cluster.Stop())
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tearing down: %w", err)
	}
	return nil
}

// schedulerName is in the configuration that startScheduler applies.
const schedulerName = api.SchedulerName
