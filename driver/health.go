// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
)

// HealthConfig says how GPUs are watched, and what keeps new work away from them.
type HealthConfig struct {
	// StateDir holds what is remembered. It is made if needed.
	StateDir string

	// Prober looks at the GPUs of the source; nil does not watch their health.
	Prober health.Prober

	// Policy says which taints GPUs get.
	Policy health.Policy

	// Period between two looks; 0 is health.DefaultPeriod. CleanLooks is how many
	// in a row must find nothing before a taint goes; 0 is
	// health.DefaultCleanLooks.
	Period     time.Duration
	CleanLooks int

	// OtherAllocators are names of extended resources by which somebody else hands
	// out the same GPUs; a name may end with "*". OtherAllocatorPeriod is how often
	// the node is asked for them; 0 is DefaultOtherAllocatorPeriod.
	OtherAllocators      []string
	OtherAllocatorPeriod time.Duration
}

// Sources of conditions besides those of the monitor.
const (
	sourceProbe          = "probe" // that of health.Monitor
	sourceOtherAllocator = "node-allocatable"
	sourceViolations     = "memory-watch"
)

// Reasons of events about the health of GPUs.
const (
	// ReasonUnhealthy: a GPU, or a GPU of the pod, got a taint.
	ReasonUnhealthy = "GPUUnhealthy"

	// ReasonRecovered: a taint is gone.
	ReasonRecovered = "GPURecovered"

	// ReasonHealthForgotten: what was remembered could not be read.
	ReasonHealthForgotten = "GPUHealthForgotten"
)

const (
	// firstLookTime bounds what is found out before the first publication, so that
	// GPUs are not offered for the moment between it and the first look.
	firstLookTime = 10 * time.Second

	// resendPeriod keeps the kubelet from calling devices Unknown, which it does
	// after kubeletHealthTimeout.
	resendPeriod         = 10 * time.Second
	kubeletHealthTimeout = 30 * time.Second
)

// validate reports the first thing that is wrong.
func (c *HealthConfig) validate() error {
	switch {
	case !filepath.IsAbs(c.StateDir):
		return fmt.Errorf("state directory %q must be an absolute path", c.StateDir)
	case c.Period < 0 || c.OtherAllocatorPeriod < 0:
		return fmt.Errorf("period %s or %s of looks at GPUs is negative", c.Period, c.OtherAllocatorPeriod)
	case c.CleanLooks < 0:
		return fmt.Errorf("number %d of clean looks is negative", c.CleanLooks)
	default:
		return checkPatterns(c.OtherAllocators)
	}
}

// podUsers tells which pods use a device.
type podUsers func(uuid device.UUID) ([]podUser, error)

// podUser is a pod that uses a device.
type podUser struct {
	namespace, name string
	uid             types.UID
}

// healthWatch is everything about the health of GPUs.
type healthWatch struct {
	monitor *health.Monitor
	events  *eventSink
	pods    podEvents
	users   podUsers
	reports bool // somebody looks at GPUs, so their health can be told
	group   sync.WaitGroup
}

// startHealth continues with what was remembered, looks for the first time, and
// starts what works in the background until ctx ends; wait then returns when it has
// stopped.
func startHealth(ctx context.Context, config *Config, events *eventSink, pods podEvents) (*healthWatch, error) {
	c := config.Health
	if err := os.MkdirAll(c.StateDir, 0o750); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	bootID, err := checkpoint.ReadBootID(checkpoint.BootIDPath)
	if err != nil {
		return nil, err
	}
	store := health.NewStore(c.StateDir, config.Publish.NodeName)
	document, problem, err := store.Load(bootID, time.Now())
	if err != nil {
		return nil, err
	}
	if problem != nil {
		klog.FromContext(ctx).Error(problem, "The health of GPUs has to be found out anew")
		events.warn(ReasonHealthForgotten, problem.Error())
	}
	ledger := health.NewLedger(c.Policy, document, store, nil)
	ledger.SetCleanLooks(sourceProbe, max(c.CleanLooks, 0))
	if c.CleanLooks == 0 {
		ledger.SetCleanLooks(sourceProbe, health.DefaultCleanLooks)
	}
	// The API server's word is not a measurement: it holds at once.
	ledger.SetCleanLooks(sourceOtherAllocator, 1)
	monitor, err := health.New(health.Options{Prober: c.Prober, Ledger: ledger, Period: c.Period})
	if err != nil {
		return nil, err
	}
	h := &healthWatch{monitor: monitor, events: events, pods: pods, users: usersOf(config), reports: c.Prober != nil}
	ledger.Listen(func(change health.Change) { h.tell(ctx, change) })
	others := newOtherAllocators(config, ledger)
	first, cancel := context.WithTimeout(ctx, firstLookTime)
	defer cancel()
	others.check(first)
	forgetViolations(config, ledger)
	monitor.Look(first)
	h.group.Go(func() { monitor.Run(ctx) })
	h.group.Go(func() { others.run(ctx) })
	return h, nil
}

// wait returns when the background work has stopped.
func (h *healthWatch) wait() { h.group.Wait() }

// tell writes an event about the node, and about pods that use an ill GPU.
func (h *healthWatch) tell(ctx context.Context, change health.Change) {
	what := h.describe(change.Target)
	taint := change.Taint()
	logger := klog.FromContext(ctx).WithValues("target", change.Target, "taint", taint.Key, "value", taint.Value, "effect", taint.Effect)
	if change.Ended {
		logger.Info("A taint of GPUs is gone", "since", change.Since)
		h.events.inform(ReasonRecovered, fmt.Sprintf("%s: taint %s=%s is gone: no sign any more of %q", what, taint.Key, taint.Value, change.Message))
		return
	}
	logger.Info("GPUs have a taint", "reason", change.Message)
	message := fmt.Sprintf("%s: %s. It has the taint %s=%s:%s until that is over. What to do: %s", what, change.Message, taint.Key, taint.Value, taint.Effect, change.Advice)
	h.events.warn(ReasonUnhealthy, message)
	if change.State != health.Unhealthy {
		return
	}
	users, err := h.users(change.Target)
	if err != nil {
		logger.Error(err, "Finding the pods that use a GPU failed")
	}
	for _, user := range users {
		h.pods.Pod(user.namespace, user.name, user.uid, ReasonUnhealthy, fmt.Sprintf("%s, which this pod uses: %s. What to do: %s", what, change.Message, change.Advice))
	}
}

// describe names a target for people.
func (h *healthWatch) describe(target device.UUID) string {
	if target == health.AllDevices {
		return "All GPUs of this node"
	}
	for _, d := range h.monitor.Report() {
		if d.UUID == target {
			return fmt.Sprintf("GPU %q (device %q)", target, d.Name)
		}
	}
	return fmt.Sprintf("GPU %q", target)
}

// usersOf reads the checkpoint.
func usersOf(config *Config) podUsers {
	if config.Claims == nil {
		return func(device.UUID) ([]podUser, error) { return nil, nil }
	}
	store := checkpoint.NewStore(config.Claims.StateDir, config.Publish.NodeName)
	return func(uuid device.UUID) ([]podUser, error) {
		document, err := store.Load()
		if err != nil {
			return nil, err
		}
		return usersIn(document, uuid), nil
	}
}

// usersIn lists the pods of claims that have the device or a MIG device of it, each
// once.
func usersIn(document *checkpoint.Document, uuid device.UUID) []podUser {
	var out []podUser
	seen := map[types.UID]bool{}
	for _, claimUID := range document.SortedUIDs() {
		claim := document.Claims[claimUID]
		uses := slices.ContainsFunc(claim.Devices, func(d checkpoint.Device) bool { return d.UUID == string(uuid) || d.ParentUUID == string(uuid) })
		for _, consumer := range claim.Consumers {
			if uses && !seen[consumer.UID] {
				seen[consumer.UID] = true
				out = append(out, podUser{claim.Namespace, consumer.Name, consumer.UID})
			}
		}
	}
	return out
}

// stream sends the health of all devices until ctx ends: at once, after changes,
// and often enough for the kubelet to believe it.
func (h *healthWatch) stream(ctx context.Context, poolName string, reports chan<- kubeletplugin.DeviceHealthReport) error {
	changes, stop := h.monitor.Ledger().Subscribe()
	defer stop()
	ticker := time.NewTicker(resendPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case reports <- healthReport(poolName, h.monitor.Report()):
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes:
		case <-ticker.C:
		}
	}
}

// healthReport translates into the kubelet's terms.
func healthReport(poolName string, devices []health.DeviceHealth) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	for _, d := range devices {
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: poolName, DeviceName: d.Name, Health: kubeletplugin.HealthStatus(d.State),
			LastUpdated: d.At, HealthCheckTimeout: kubeletHealthTimeout, Message: d.Message,
		})
	}
	return report
}

// inform writes an event that is no warning.
func (e *eventSink) inform(reason, message string) {
	e.recorder.Event(e.node, corev1.EventTypeNormal, reason, shorten(message))
}

// errNoHealth is for configurations that need a ledger.
var errNoHealth = errors.New("tainting GPUs for violations of limits needs the watch on their health")
