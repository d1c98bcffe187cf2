// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/publish"
)

// Delays between attempts while the source fails. They double from the first to
// the last, which keeps a driver that waits for kernel modules quick and cheap.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// publisher takes what the node offers. It is the helper, but for tests.
type publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// warner writes an event.
type warner interface {
	warn(reason, message string)
}

// scanner asks the source and publishes what has changed. It belongs to one
// goroutine.
type scanner struct {
	config    *Config
	publisher publisher
	published func(resources *resourceslice.DriverResources)                            // hears what is handed to publisher; may be nil
	described func(snapshot *device.Snapshot, resources *resourceslice.DriverResources) // hears it with what it is made from; may be nil
	wholeOnly func() bool                                                               // says that shares cannot be limited now; may be nil
	health    *health.Monitor                                                           // knows what is missing, and taints; may be nil
	tainted   <-chan struct{}                                                           // delivers when taints have changed; may be nil
	changed   <-chan struct{}                                                           // delivers when GPUs or links have changed; may be nil
	events    warner
	status    *status

	snapshot *device.Snapshot               // of the last success, with what is missing
	last     *resourceslice.DriverResources // nil before the first success
	warnings []string                       // of the last successful scan
	failure  string                         // of the last scan, "" after success
	retry    time.Duration
}

// watchHealth lets what is known about the health of GPUs take part, until the
// returned function is called. watch may be nil.
func (s *scanner) watchHealth(watch *healthWatch) (stop func()) {
	if watch == nil {
		return func() {}
	}
	s.health, s.changed = watch.monitor, watch.monitor.Changed()
	s.tainted, stop = watch.monitor.Ledger().Subscribe()
	return stop
}

// discovery is what the source has answered.
type discovery struct {
	snapshot *device.Snapshot
	err      error
}

// run scans until ctx ends. It returns an error only when publishing is not
// possible at all. Taints are published while the source is being asked, which may
// take long when a GPU is in trouble.
func (s *scanner) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var answer chan discovery // nil while nobody is asked
	for {
		rescan, changed, tick := s.config.Rescan, s.changed, timer.C
		if answer != nil {
			rescan, changed, tick = nil, nil, nil // One after the other.
		}
		select {
		case <-ctx.Done():
			if answer != nil {
				<-answer
			}
			return nil
		case <-rescan:
			klog.FromContext(ctx).Info("Rescanning on request")
			answer = s.ask(ctx)
		case <-changed:
			klog.FromContext(ctx).Info("Rescanning because GPUs or links have changed")
			answer = s.ask(ctx)
		case <-tick:
			answer = s.ask(ctx)
		case <-s.tainted:
			if err := s.republish(ctx); err != nil {
				return err
			}
		case found := <-answer:
			answer = nil
			delay, err := s.take(ctx, found)
			if err != nil {
				return err
			}
			timer.Stop()
			if delay > 0 {
				timer.Reset(delay)
			}
		}
	}
}

// ask asks the source in the background.
func (s *scanner) ask(ctx context.Context) chan discovery {
	answer := make(chan discovery, 1)
	go func() { answer <- s.discover(ctx) }()
	return answer
}

// scan scans once. It returns when to scan again; 0 means not by itself.
func (s *scanner) scan(ctx context.Context) (time.Duration, error) {
	return s.take(ctx, s.discover(ctx))
}

// discover asks the source.
func (s *scanner) discover(ctx context.Context) discovery {
	start := time.Now()
	snapshot, err := s.config.Source.Discover(ctx)
	scanSeconds.Observe(time.Since(start).Seconds())
	return discovery{snapshot, err}
}

// take publishes what the source has found. It returns when to scan again; 0 means
// not by itself.
func (s *scanner) take(ctx context.Context, found discovery) (time.Duration, error) {
	snapshot, err := found.snapshot, found.err
	var published *publish.Published
	if err == nil {
		if s.health != nil {
			snapshot = s.health.Complete(snapshot, publish.Names)
		}
		published, err = s.describe(snapshot)
	}
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil //nolint:nilerr // the driver is being stopped
		}
		return s.failed(ctx, err), nil
	}
	s.snapshot = snapshot
	s.report(ctx, published)
	if err := s.hand(ctx, published); err != nil {
		return 0, err
	}
	scans.WithLabelValues(resultOK).Inc()
	devices.Set(float64(countDevices(published)))
	s.status.succeeded()
	return s.config.RescanPeriod, nil
}

// republish publishes the last snapshot with the taints of now.
func (s *scanner) republish(ctx context.Context) error {
	if s.snapshot == nil {
		return nil
	}
	published, err := s.describe(s.snapshot)
	if err != nil {
		return nil //nolint:nilerr // the same snapshot was described before
	}
	return s.hand(ctx, published)
}

// hand hands what is published to the API server, unless it is the same as before.
func (s *scanner) hand(ctx context.Context, published *publish.Published) error {
	if s.published != nil {
		s.published(&published.Resources)
	}
	if s.described != nil {
		s.described(s.snapshot, &published.Resources)
	}
	if s.last != nil && apiequality.Semantic.DeepEqual(*s.last, published.Resources) {
		return nil
	}
	if err := s.publisher.PublishResources(ctx, *published.Resources.DeepCopy()); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the driver is being stopped
		}
		return fmt.Errorf("publishing ResourceSlices: %w", err)
	}
	s.last = &published.Resources
	updates.Inc()
	klog.FromContext(ctx).Info("Publishing devices", "devices", countDevices(published))
	return nil
}

// describe turns a snapshot into slices.
func (s *scanner) describe(snapshot *device.Snapshot) (*publish.Published, error) {
	options := s.config.Publish
	options.WholeOnly = options.WholeOnly || (s.wholeOnly != nil && s.wholeOnly())
	if s.health != nil {
		options.Taints = s.health.Ledger().Taints
	}
	published, err := publish.Build(snapshot, options)
	if err != nil {
		return nil, err
	}
	published.Warnings = slices.Concat(snapshot.Warnings, published.Warnings)
	return published, nil
}

// failed reports a scan that failed, once per message, and returns when to try
// again.
func (s *scanner) failed(ctx context.Context, err error) time.Duration {
	scans.WithLabelValues(resultFailed).Inc()
	s.status.failed(err)
	if message := err.Error(); message != s.failure {
		s.failure = message
		klog.FromContext(ctx).Error(err, "Discovering GPUs failed, what is published stays as it is", "publishedBefore", s.last != nil)
		s.events.warn(ReasonDiscoveryFailed, message)
	}
	s.retry = min(max(2*s.retry, firstRetry), lastRetry)
	if s.config.RescanPeriod > 0 {
		return min(s.retry, s.config.RescanPeriod)
	}
	return s.retry
}

// report reports a scan that succeeded, and what is newly wrong.
func (s *scanner) report(ctx context.Context, published *publish.Published) {
	logger := klog.FromContext(ctx)
	if s.failure != "" {
		logger.Info("Discovering GPUs works again")
	}
	s.failure, s.retry = "", 0
	for _, warning := range published.Warnings {
		if !slices.Contains(s.warnings, warning) {
			logger.Info("Discovery warning", "warning", warning)
			s.events.warn(ReasonDiscoveryWarning, warning)
		}
	}
	for _, warning := range s.warnings {
		if !slices.Contains(published.Warnings, warning) {
			logger.Info("Discovery warning is gone", "warning", warning)
		}
	}
	s.warnings = published.Warnings
}

// countDevices counts over all slices.
func countDevices(published *publish.Published) int {
	n := 0
	for _, pool := range published.Resources.Pools {
		for i := range pool.Slices {
			n += len(pool.Slices[i].Devices)
		}
	}
	return n
}
