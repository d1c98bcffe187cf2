// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/prepare"
)

// Run runs the driver until ctx ends, which is not an error, or until it cannot
// go on. It stops everything it started before it returns.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	if err := config.prepareDirs(); err != nil {
		return fmt.Errorf("starting the driver: %w", err)
	}
	registerMetrics()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("node", config.Publish.NodeName))

	node, err := config.Client.CoreV1().Nodes().Get(ctx, config.Publish.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("starting the driver: getting its node: %w", err)
	}
	events := newEventSink(ctx, &config, node)
	defer events.shutdown()

	status := &status{}
	telemetry := newTelemetry()
	stopHTTP, err := serveHTTP(ctx, config.HTTPAddress, status, telemetry.handler())
	if err != nil {
		return fmt.Errorf("starting the driver: %w", err)
	}
	defer stopHTTP()

	inventory := newInventory(config.Source, config.Publish)
	config.Source = inventory
	plugin := &plugin{events: events, fatal: cancel}
	wholeOnly := func() bool { return false }
	var watch *healthWatch
	if config.Health != nil {
		if watch, err = startHealth(ctx, &config, events, prepare.NewRecorder(events.recorder, events.node)); err != nil {
			return fmt.Errorf("starting the driver: %w", err)
		}
		defer func() { cancel(nil); watch.wait() }()
		plugin.health, plugin.poolName, config.ledger = watch, config.Publish.NodeName, watch.monitor.Ledger()
	}
	var claims *claims
	if config.Claims != nil {
		if claims, err = startClaims(ctx, &config, inventory, events); err != nil {
			return fmt.Errorf("starting the driver: %w", err)
		}
		defer func() { cancel(nil); claims.wait() }()
		plugin.claims = timed{claims.manager}
		status.setAlive(claims.healthy)
		wholeOnly = claims.wholeOnly
	}
	if err := telemetry.start(&config, claims, watch); err != nil {
		return fmt.Errorf("starting the driver: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, plugin, helperOptions(&config, node)...)
	if err != nil {
		return fmt.Errorf("starting the driver: %w", err)
	}
	defer helper.Stop()

	scanner := &scanner{config: &config, publisher: helper, published: inventory.setPublished, described: telemetry.described, wholeOnly: wholeOnly, events: events, status: status}
	stopWatching := scanner.watchHealth(watch)
	defer stopWatching()
	if err := scanner.run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("running the driver: %w", cause)
	}
	klog.FromContext(ctx).Info("Stopping")
	return nil
}

// helperOptions configure the helper.
func helperOptions(config *Config, node *corev1.Node) []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(api.DriverName),
		kubeletplugin.KubeClient(config.Client),
		kubeletplugin.NodeName(node.Name),
		kubeletplugin.NodeUID(node.UID),
		kubeletplugin.RegistrarDirectoryPath(config.RegistryDir),
		kubeletplugin.PluginDataDirectoryPath(config.DataDir),
		// Claims have a lock of their own, also between processes.
		kubeletplugin.Serialize(false),
	}
	if uid := config.podUID(); uid != "" {
		options = append(options, kubeletplugin.RollingUpdate(uid))
	}
	return options
}

// eventSink writes events of the Node.
type eventSink struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
	node        *corev1.ObjectReference
}

// Reasons of events.
const (
	// ReasonDiscoveryFailed: nothing is known about the node's GPUs.
	ReasonDiscoveryFailed = "GPUDiscoveryFailed"

	// ReasonDiscoveryWarning: something is wrong with a GPU.
	ReasonDiscoveryWarning = "GPUDiscoveryWarning"

	// ReasonFieldsDropped: the API server did not take a part of a slice.
	ReasonFieldsDropped = "ResourceSliceFieldsDropped"

	// ReasonPublishingFailed: the API server did not take a slice.
	ReasonPublishingFailed = "ResourceSlicePublishingFailed"
)

// newEventSink starts to write events; they end with ctx.
func newEventSink(ctx context.Context, config *Config, node *corev1.Node) *eventSink {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: config.Client.CoreV1().Events("")})
	return &eventSink{
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: api.DriverName, Host: node.Name}),
		broadcaster: broadcaster,
		node:        &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	}
}

// warn writes a warning.
func (e *eventSink) warn(reason, message string) {
	e.recorder.Event(e.node, corev1.EventTypeWarning, reason, shorten(message))
}

// shutdown stops writing events.
func (e *eventSink) shutdown() {
	e.broadcaster.Shutdown()
}

// maxEventMessage is the API server's limit.
const maxEventMessage = 1024

// shorten cuts a message to what an event can hold.
func shorten(message string) string {
	const ellipsis = "…"
	if len(message) <= maxEventMessage {
		return message
	}
	end := maxEventMessage - len(ellipsis)
	for end > 0 && message[end]&0xc0 == 0x80 {
		end-- // Not in the middle of a character.
	}
	return message[:end] + ellipsis
}
