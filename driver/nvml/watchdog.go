// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/topodra/topodra/driver/device"
)

// watchdog runs work that may never return, one at a time.
type watchdog struct {
	busy    chan struct{}
	current *atomic.Pointer[string]
}

// newWatchdog returns a watchdog with no work.
func newWatchdog() watchdog {
	return watchdog{busy: make(chan struct{}, 1), current: &atomic.Pointer[string]{}}
}

// run runs work in a goroutine of its own and waits for it until ctx ends or the
// time is up. work tells what it is about to do by the function that it gets. If
// an earlier work still hangs, run fails right away.
func (w watchdog) run(ctx context.Context, timeout time.Duration, work func(begin func(string)) (*device.Snapshot, error)) (*device.Snapshot, error) {
	select {
	case w.busy <- struct{}{}:
	default:
		return nil, fmt.Errorf("an earlier call still has not returned: %s; the kernel driver hangs, a reboot may be needed", w.doing())
	}
	type result struct {
		snapshot *device.Snapshot
		err      error
	}
	done := make(chan result, 1)
	go func() {
		snapshot, err := work(func(what string) { w.current.Store(&what) })
		// Before the result is told: who has it may come back at once.
		<-w.busy
		done <- result{snapshot, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.snapshot, r.err
	case <-timer.C:
		return nil, fmt.Errorf("no answer after %s from call %s", timeout, w.doing())
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted in call %s: %w", w.doing(), context.Cause(ctx))
	}
}

// doing returns what the work did last.
func (w watchdog) doing() string {
	if what := w.current.Load(); what != nil {
		return *what
	}
	return "none"
}
