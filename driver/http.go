// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// Values of the label "result".
const (
	resultOK      = "ok"
	resultFailed  = "failed"
	resultDropped = "fields_dropped"
	resultInvalid = "invalid"
	resultRetried = "retried"
)

var (
	scans = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "topodra_driver_scans_total", StabilityLevel: metrics.ALPHA,
		Help: "Discoveries of GPUs by result (ok, failed).",
	}, []string{"result"})
	scanSeconds = metrics.NewHistogram(&metrics.HistogramOpts{
		Name: "topodra_driver_scan_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Time that a discovery of GPUs took.", Buckets: metrics.ExponentialBuckets(0.001, 2, 16),
	})
	updates = metrics.NewCounter(&metrics.CounterOpts{
		Name: "topodra_driver_updates_total", StabilityLevel: metrics.ALPHA,
		Help: "Discoveries that changed what is published.",
	})
	publishErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "topodra_driver_publish_errors_total", StabilityLevel: metrics.ALPHA,
		Help: "Errors while writing ResourceSlices by result (fields_dropped, invalid, retried).",
	}, []string{"result"})
	devices = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "topodra_driver_devices", StabilityLevel: metrics.ALPHA,
		Help: "Devices in the last successful discovery.",
	})
)

// registerMetrics makes the metrics visible; only the first call has an effect.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(scans, scanSeconds, updates, publishErrors, devices, violations, otherAllocatorDevices, prepareSeconds, unprepareSeconds)
})

// status is what the probes answer. It is safe for concurrent use.
type status struct {
	mu    sync.Mutex
	alive func() error // nil is always
	ready bool
	err   error
}

// succeeded notes a scan that succeeded.
func (s *status) succeeded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready, s.err = true, nil
}

// failed notes a scan that failed.
func (s *status) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready, s.err = false, err
}

// check returns why the driver is not ready, or nil.
func (s *status) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ready:
		return nil
	case s.err != nil:
		return s.err
	default:
		return errors.New("the first discovery is not finished")
	}
}

// setAlive sets the question behind /healthz.
func (s *status) setAlive(alive func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive = alive
}

// live returns why the process should be started anew, or nil.
func (s *status) live() error {
	s.mu.Lock()
	alive := s.alive
	s.mu.Unlock()
	if alive == nil {
		return nil
	}
	return alive()
}

// Timeouts of the HTTP server.
const (
	httpReadTimeout     = 10 * time.Second
	httpShutdownTimeout = 2 * time.Second
)

// serveHTTP serves probes and metrics, which scrapes answers, until the returned
// function is called. With no address it does nothing.
func serveHTTP(ctx context.Context, address string, status *status, scrapes http.Handler) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving probes and metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, status.live()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, status.check()) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: httpReadTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Serving probes and metrics ended")
		}
	}()
	klog.FromContext(ctx).Info("Serving probes and metrics", "address", listener.Addr().String())
	return func() {
		// The context of the driver has ended by now; open requests get a moment of their own.
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpShutdownTimeout)
		defer cancel()
		if server.Shutdown(shutdown) != nil {
			_ = server.Close()
		}
		<-done
	}, nil
}

// answer writes "ok" or why not.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
