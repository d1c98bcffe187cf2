// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
	"github.com/topodra/topodra/driver/nri"
	"github.com/topodra/topodra/driver/prepare"
)

// ClaimsConfig says how claims are prepared.
type ClaimsConfig struct {
	// StateDir holds what the driver remembers, and what containers mount from
	// it. It must have the same path for the container runtime. It is made if
	// needed.
	StateDir string

	// CDIDir is where the container runtime reads CDI specs.
	CDIDir string

	// Paths maps paths of the host into the driver's file system.
	Paths cdi.PathMap

	// Base knows what containers need in order to use the source's devices.
	Base cdi.Base

	// Enforcer keeps limits; nil refuses claims with shares. Its Setup, if it has
	// one, is called at the start and, while it fails, again.
	Enforcer enforce.Enforcer

	// NRISocket of the container runtime; "" does without NRI.
	NRISocket string

	// Processes tells what GPUs and processes on them use; nil does not watch whether
	// containers keep to their limits. OnViolation is what is done when one does
	// not; "" is OnViolationTell.
	Processes   watch.Source
	OnViolation OnViolation

	// PodUID of the driver's own pod lets the next version of the driver run
	// beside it during an update; "" does without.
	PodUID types.UID

	// ReconcilePeriod is the time between two comparisons of what is there with
	// what should be. 0 means DefaultReconcilePeriod.
	ReconcilePeriod time.Duration
}

// DefaultReconcilePeriod bounds how long something stays that the kubelet has
// forgotten to unprepare, as it can when it and the driver restart at the same
// time. A reconciliation lists the node's pods, reads their claims, and writes only
// what has changed.
const DefaultReconcilePeriod = time.Minute

// ownersDir is the directory below the state directory in which containers with
// GPUs are remembered.
const ownersDir = "containers"

// Times of the background work.
const (
	// firstReconcileTime bounds the reconciliation before the kubelet is told
	// that the driver is there. It is worth a moment, since it repairs what the
	// kubelet will build on, but not more: the API server may be away.
	firstReconcileTime = 10 * time.Second

	// retryPeriod is for a reconciliation or a setup that has failed.
	retryPeriod = 15 * time.Second
)

// ReasonCannotEnforce is the reason of the event that says that no shares of
// GPUs can be used on the node.
const ReasonCannotEnforce = "GPULimitsCannotBeEnforced"

// validate reports the first thing that is wrong.
func (c *ClaimsConfig) validate() error {
	switch {
	case !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.CDIDir):
		return fmt.Errorf("state directory %q and CDI directory %q must be absolute paths", c.StateDir, c.CDIDir)
	case c.Base == nil:
		return errors.New("nothing is known about what containers need for GPUs")
	case c.ReconcilePeriod < 0:
		return fmt.Errorf("reconcile period %s is negative", c.ReconcilePeriod)
	}
	if err := validateOnViolation(c.OnViolation); err != nil {
		return err
	}
	return c.Paths.Validate()
}

// setupper is an enforcer that installs something first.
type setupper interface {
	Setup(ctx context.Context) error
}

// claims is everything that works on claims.
type claims struct {
	config  *ClaimsConfig
	manager *prepare.Manager
	status  *prepare.StatusWriter
	runner  *nri.Runner    // nil without NRI
	watcher *watch.Watcher // nil where there is nobody to ask
	events  *eventSink
	group   sync.WaitGroup

	// hurry has room for one request to reconcile at once.
	hurry chan struct{}

	// enforces says that limits could be kept at some time since the start.
	enforces atomic.Bool

	// pruning removes old versions of what limits containers.
	pruning *versions
}

// startClaims prepares for claims, and starts what works in the background until
// ctx ends; wait then returns when it has stopped.
func startClaims(ctx context.Context, config *Config, inventory *inventory, events *eventSink) (*claims, error) {
	if err := os.MkdirAll(config.Claims.StateDir, 0o750); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	c := &claims{config: config.Claims, status: prepare.NewStatusWriter(config.Client), events: events, hurry: make(chan struct{}, 1)}
	var beacon *nri.Beacon
	if c.config.NRISocket != "" {
		beacon = nri.NewBeacon(c.config.StateDir, c.hurryUp)
	}
	recorder := prepare.NewRecorder(events.recorder, events.node)
	containers := owners.NewStore(filepath.Join(c.config.StateDir, ownersDir))
	var listed func() (map[string]*owners.Owner, error)
	if c.config.NRISocket != "" {
		listed = containers.List // Without NRI nobody removes what is listed.
	}
	manager, err := prepare.NewManager(prepare.Options{
		NodeName: config.Publish.NodeName, StateDir: c.config.StateDir, CDIDir: c.config.CDIDir, Paths: c.config.Paths,
		Inventory: inventory, Base: c.config.Base, Enforcer: c.config.Enforcer, NRIOffered: func() bool { return c.runner != nil && c.runner.Offered() },
		GuardDevice: beacon.Device, Containers: listed,
		Cluster: prepare.NewCluster(config.Client), Events: recorder, Status: c.status,
	})
	if err != nil {
		return nil, err
	}
	c.manager = manager
	c.pruning = &versions{enforcer: c.config.Enforcer, cdiDir: c.config.CDIDir, owners: containers, now: time.Now}
	if c.config.NRISocket != "" {
		c.runner = nri.NewRunner(nri.NewPlugin(manager, c.config.Enforcer, recorder, containers), c.config.NRISocket, beacon)
	}
	if c.watcher, err = newWatcher(config, recorder); err != nil {
		return nil, err
	}
	c.setup(ctx)
	first, cancel := context.WithTimeout(ctx, firstReconcileTime)
	defer cancel()
	next := c.reconcile(first)
	c.group.Go(func() { c.status.Run(ctx) })
	if c.runner != nil {
		c.group.Go(func() { c.runner.Run(ctx) })
	}
	if c.watcher != nil {
		c.group.Go(func() { c.watcher.Run(ctx) })
	}
	c.group.Go(func() { c.loop(ctx, next) })
	return c, nil
}

// wait returns when the background work has stopped.
func (c *claims) wait() { c.group.Wait() }

// hurryUp has the loop reconcile soon.
func (c *claims) hurryUp() {
	select {
	case c.hurry <- struct{}{}:
	default: // It will.
	}
}

// loop reconciles, and sets the enforcer up again while that fails.
func (c *claims) loop(ctx context.Context, next time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		case <-c.hurry:
		}
		c.setup(ctx)
		next = c.reconcile(ctx)
	}
}

// setup makes sure that limits can be kept, and tells people when they cannot.
func (c *claims) setup(ctx context.Context) {
	enforcer := c.config.Enforcer
	if enforcer == nil {
		return
	}
	if enforcer.Check(ctx) == nil {
		c.enforces.Store(true)
		return
	}
	err := errors.New("it cannot be set up")
	if s, ok := enforcer.(setupper); ok {
		err = s.Setup(ctx)
	}
	if err == nil {
		err = enforcer.Check(ctx)
	}
	if err == nil {
		c.enforces.Store(true)
		klog.FromContext(ctx).Info("Limits of shares can be enforced", "enforcer", enforcer.Name())
		return
	}
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Limits of shares cannot be enforced, so claims with shares are refused", "enforcer", enforcer.Name())
		c.events.warn(ReasonCannotEnforce, fmt.Sprintf("shares of GPUs cannot be limited on this node, so claims with shares are refused, and GPUs are offered whole if that has been so since the start: %s: %v", enforcer.Name(), err))
	}
}

// wholeOnly says that GPUs are to be published for whole claims only: there is
// something to limit shares with, but it does not work. A taint would keep whole
// claims away, too. Once limits could be kept, shares stay published, since claims
// have them: what fails later is refused claim by claim.
func (c *claims) wholeOnly() bool { return c.config.Enforcer != nil && !c.enforces.Load() }

// reconcile reconciles and returns when to do so again.
func (c *claims) reconcile(ctx context.Context) time.Duration {
	err := c.manager.Reconcile(ctx)
	if err == nil {
		// Specs refer to the present version now, unless a container keeps an old one.
		c.pruning.prune(ctx)
		if c.config.ReconcilePeriod == 0 {
			return DefaultReconcilePeriod
		}
		return c.config.ReconcilePeriod
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		klog.FromContext(ctx).Error(err, "Reconciling claims failed; trying again", "wait", retryPeriod)
	}
	return retryPeriod
}

// healthy says why containers with shares cannot start, or nil.
func (c *claims) healthy() error {
	if c.runner == nil {
		return nil
	}
	return c.runner.Healthy()
}
