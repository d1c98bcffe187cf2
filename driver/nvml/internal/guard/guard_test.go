// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// TestGuard: work that hangs is named, is not started again before it has ended, does
// not hold back other keys, and does not outlast its context for the caller.
func TestGuard(t *testing.T) {
	t.Parallel()
	g := New[string, int]()
	release, calls := make(chan struct{}), &atomic.Int32{}
	hang := func(begin func(string)) (int, error) {
		calls.Add(1)
		begin("first")
		begin("second")
		<-release
		return 7, nil
	}
	var hanging *HangError
	if _, err := g.Do(t.Context(), "a", 10*time.Millisecond, hang); !errors.As(err, &hanging) || *hanging != (HangError{"second", 10 * time.Millisecond}) || err.Error() != "no answer after 10ms from call second" {
		t.Errorf("got error %v", err)
	}
	if _, err := g.Do(t.Context(), "a", time.Minute, hang); !errors.As(err, &hanging) || *hanging != (HangError{Call: "second"}) || err.Error() != "an earlier call still has not returned: second" {
		t.Errorf("again: got error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := g.Do(ctx, "b", time.Minute, func(func(string)) (int, error) {
		cancel()
		<-release
		return 0, nil
	})
	if !errors.Is(err, context.Canceled) || err.Error() != "interrupted in call none: context canceled" {
		t.Errorf("interrupted: got error %v", err)
	}
	wrong := errors.New("wrong")
	if value, err := g.Do(t.Context(), "c", time.Minute, func(func(string)) (int, error) { return 3, wrong }); value != 3 || !errors.Is(err, wrong) {
		t.Errorf("other key: got %d, %v", value, err)
	}
	if calls.Load() != 1 {
		t.Errorf("started %d times", calls.Load())
	}
	close(release)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		value, err := g.Do(t.Context(), "a", time.Minute, hang)
		if err == nil && value == 7 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestReturned: work that has returned does not stand in the way of the next, however
// soon that comes.
func TestReturned(t *testing.T) {
	t.Parallel()
	g := New[int, int]()
	for i := range 20_000 {
		if _, err := g.Do(t.Context(), 0, time.Minute, func(func(string)) (int, error) { return 0, nil }); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
}
