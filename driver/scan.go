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
	published func(resources *resourceslice.DriverResources) // hears what is handed to publisher; may be nil
	wholeOnly func() bool                                    // says that shares cannot be limited now; may be nil
	events    warner
	status    *status

	last     *resourceslice.DriverResources // nil before the first success
	warnings []string                       // of the last successful scan
	failure  string                         // of the last scan, "" after success
	retry    time.Duration
}

// run scans until ctx ends. It returns an error only when publishing is not
// possible at all.
func (s *scanner) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.config.Rescan:
			klog.FromContext(ctx).Info("Rescanning on request")
		case <-timer.C:
		}
		delay, err := s.scan(ctx)
		if err != nil {
			return err
		}
		timer.Stop()
		if delay > 0 {
			timer.Reset(delay)
		}
	}
}

// scan scans once. It returns when to scan again; 0 means not by itself.
func (s *scanner) scan(ctx context.Context) (time.Duration, error) {
	published, err := s.discover(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil //nolint:nilerr // the driver is being stopped
		}
		return s.failed(ctx, err), nil
	}
	s.report(ctx, published)
	if s.published != nil {
		s.published(&published.Resources)
	}
	if s.last == nil || !apiequality.Semantic.DeepEqual(*s.last, published.Resources) {
		if err := s.publisher.PublishResources(ctx, *published.Resources.DeepCopy()); err != nil {
			if ctx.Err() != nil {
				return 0, nil //nolint:nilerr // the driver is being stopped
			}
			return 0, fmt.Errorf("publishing ResourceSlices: %w", err)
		}
		s.last = &published.Resources
		updates.Inc()
		klog.FromContext(ctx).Info("Publishing devices", "devices", countDevices(published))
	}
	scans.WithLabelValues(resultOK).Inc()
	devices.Set(float64(countDevices(published)))
	s.status.succeeded()
	return s.config.RescanPeriod, nil
}

// discover asks the source and describes its answer.
func (s *scanner) discover(ctx context.Context) (*publish.Published, error) {
	start := time.Now()
	snapshot, err := s.config.Source.Discover(ctx)
	scanSeconds.Observe(time.Since(start).Seconds())
	if err != nil {
		return nil, err
	}
	options := s.config.Publish
	options.WholeOnly = options.WholeOnly || (s.wholeOnly != nil && s.wholeOnly())
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
