// SPDX-License-Identifier: Apache-2.0

// Package guard runs calls that may never return, because the kernel driver hangs,
// and does not wait for them for ever.
//
// Concurrency: a Guard is safe for concurrent use. Allowed imports: the standard
// library.
package guard

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// HangError says that a call has not returned.
type HangError struct {
	// Call is what was called last.
	Call string

	// After is how long it was waited for; 0 if an earlier call still hangs.
	After time.Duration
}

// Error implements error.
func (e *HangError) Error() string {
	if e.After == 0 {
		return "an earlier call still has not returned: " + e.Call
	}
	return fmt.Sprintf("no answer after %s from call %s", e.After, e.Call)
}

// Guard runs work by key, of each key one at a time.
type Guard[K comparable, T any] struct {
	mu      sync.Mutex
	hanging map[K]*atomic.Pointer[string] // what was called last
}

// New returns a Guard without work.
func New[K comparable, T any]() *Guard[K, T] {
	return &Guard[K, T]{hanging: map[K]*atomic.Pointer[string]{}}
}

// Do runs work in a goroutine of its own and waits for it until ctx ends or the
// time is up. work tells what it is about to call by the function that it gets. As
// long as earlier work of the key has not ended, Do fails at once.
func (g *Guard[K, T]) Do(ctx context.Context, key K, timeout time.Duration, work func(begin func(string)) (T, error)) (T, error) {
	var none T
	doing := &atomic.Pointer[string]{}
	g.mu.Lock()
	if earlier := g.hanging[key]; earlier != nil {
		g.mu.Unlock()
		return none, &HangError{Call: last(earlier)}
	}
	g.hanging[key] = doing
	g.mu.Unlock()

	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := work(func(what string) { doing.Store(&what) })
		// Before the result is told: who has it may come back at once.
		g.mu.Lock()
		delete(g.hanging, key)
		g.mu.Unlock()
		done <- result{value, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
		return none, &HangError{Call: last(doing), After: timeout}
	case <-ctx.Done():
		return none, fmt.Errorf("interrupted in call %s: %w", last(doing), context.Cause(ctx))
	}
}

// last returns what was called last.
func last(doing *atomic.Pointer[string]) string {
	if what := doing.Load(); what != nil {
		return *what
	}
	return "none"
}
