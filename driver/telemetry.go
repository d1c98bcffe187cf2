// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/internal/owners"
	gpumetrics "github.com/topodra/topodra/driver/metrics"
	"github.com/topodra/topodra/driver/prepare"
)

// DefaultHTTPAddress is where probes and metrics are served unless it is said
// otherwise.
const DefaultHTTPAddress = ":31995"

// resultRefused is the result of a claim that cannot be prepared as it is.
const resultRefused = "refused"

var (
	prepareSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name: "topodra_driver_prepare_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Time that preparing one claim took by result (ok, refused, failed).", Buckets: metrics.ExponentialBuckets(0.001, 2, 16),
	}, []string{"result"})
	unprepareSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name: "topodra_driver_unprepare_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Time that unpreparing one claim took by result (ok, failed).", Buckets: metrics.ExponentialBuckets(0.001, 2, 16),
	}, []string{"result"})
)

// timed measures how long each claim takes.
type timed struct{ preparer }

// PrepareResourceClaims implements preparer.
func (t timed) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		start := time.Now()
		result, err := t.preparer.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
		prepareSeconds.WithLabelValues(resultOf(errors.Join(err, result[claim.UID].Err))).Observe(time.Since(start).Seconds())
		if err != nil {
			return nil, err
		}
		results[claim.UID] = result[claim.UID]
	}
	return results, nil
}

// UnprepareResourceClaims implements preparer.
func (t timed) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		start := time.Now()
		result, err := t.preparer.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{claim})
		unprepareSeconds.WithLabelValues(resultOf(errors.Join(err, result[claim.UID]))).Observe(time.Since(start).Seconds())
		if err != nil {
			return nil, err
		}
		results[claim.UID] = result[claim.UID]
	}
	return results, nil
}

// resultOf returns the value of the label "result".
func resultOf(err error) string {
	if err == nil {
		return resultOK
	}
	if _, refused := errors.AsType[*prepare.Refusal](err); refused {
		return resultRefused
	}
	return resultFailed
}

// telemetry is what one run of the driver tells Prometheus. What is counted over
// the life of the process is in legacyregistry.
type telemetry struct {
	registry  *prometheus.Registry
	collector *gpumetrics.Collector
}

// newTelemetry returns telemetry that tells nothing of GPUs yet.
func newTelemetry() *telemetry { return &telemetry{registry: prometheus.NewRegistry()} }

// maxScrapes is how many may be answered at a time.
const maxScrapes = 4

// handler answers scrapes.
func (t *telemetry) handler() http.Handler {
	return metrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, t.registry},
		metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError, MaxRequestsInFlight: maxScrapes})
}

// start begins to tell about GPUs. claims and watch may be nil.
func (t *telemetry) start(config *Config, claims *claims, watch *healthWatch) error {
	options := gpumetrics.Options{NodeName: config.Publish.NodeName, HAMiAliases: config.HAMiMetricAliases}
	if claims != nil {
		containers := owners.NewStore(filepath.Join(config.Claims.StateDir, ownersDir))
		options.Checkpoint = checkpoint.NewStore(config.Claims.StateDir, config.Publish.NodeName).Load
		options.Containers = containers.List
		options.Regions = &gpumetrics.Regions{OfContainer: claims.manager.ContainerRegion, OfClaim: claims.manager.ClaimRegion}
		if claims.watcher != nil {
			options.Usage = claims.watcher
		}
	}
	if watch != nil {
		options.Health = watch.gauges
	}
	var err error
	if t.collector, err = gpumetrics.New(options); err != nil {
		return err
	}
	return t.registry.Register(t.collector)
}

// described hears what is published.
func (t *telemetry) described(snapshot *device.Snapshot, resources *resourceslice.DriverResources) {
	t.collector.SetDevices(gpumetrics.Devices(snapshot, resources))
}

// gauges tells the health of published devices.
func (h *healthWatch) gauges() []gpumetrics.Health {
	return healthGauges(h.monitor.Report(), h.monitor.Ledger().Conditions())
}

// healthGauges counts the conditions of each device, those of its GPU and of all
// devices among them.
func healthGauges(devices []health.DeviceHealth, conditions []health.Condition) []gpumetrics.Health {
	states := map[health.State]string{health.Healthy: gpumetrics.StateHealthy, health.Unhealthy: gpumetrics.StateUnhealthy}
	out := make([]gpumetrics.Health, 0, len(devices))
	for i := range devices {
		d := &devices[i]
		one := gpumetrics.Health{UUID: string(d.UUID), State: states[d.State], Conditions: map[string]int{}}
		for c := range conditions {
			if target := conditions[c].Target; target == d.UUID || target == health.AllDevices || (d.Parent != "" && target == d.Parent) {
				one.Conditions[string(conditions[c].Kind)]++
			}
		}
		out = append(out, one)
	}
	return out
}
