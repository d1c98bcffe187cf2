// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// stall holds back one of the questions that are asked with its context.
type stall struct {
	at      int // counted from 0
	asked   int
	reached chan struct{}
	release chan struct{}
}

type stallKey struct{}

// slowCluster is an API server that answers some questions late.
type slowCluster struct{ Cluster }

// wait holds back the question if its context says so.
func (slowCluster) wait(ctx context.Context) {
	s, ok := ctx.Value(stallKey{}).(*stall)
	if !ok {
		return
	}
	if s.asked == s.at {
		close(s.reached)
		<-s.release
	}
	s.asked++
}

func (c slowCluster) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	c.wait(ctx)
	return c.Cluster.Claim(ctx, namespace, name)
}

func (c slowCluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	c.wait(ctx)
	return c.Cluster.Pod(ctx, namespace, name)
}

func (c slowCluster) PodsOfNode(ctx context.Context, node string) ([]corev1.Pod, error) {
	c.wait(ctx)
	return c.Cluster.PodsOfNode(ctx, node)
}

// eachStall runs act once for each of its questions, with that one held back
// until meanwhile has returned. begin comes before, and check after.
func eachStall(t *testing.T, f *fixture, begin func(m *Manager), act func(ctx context.Context, m *Manager) error, meanwhile, check func(m *Manager)) {
	t.Helper()
	for at := 0; ; at++ {
		manager := f.manager()
		manager.options.Cluster = slowCluster{f.cluster}
		begin(manager)
		s := &stall{at: at, reached: make(chan struct{}), release: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- act(context.WithValue(t.Context(), stallKey{}, s), manager) }()
		var err error
		stalled := false
		select {
		case err = <-done:
		case <-s.reached:
			stalled = true
			meanwhile(manager)
			close(s.release)
			err = <-done
		case <-time.After(time.Minute):
			t.Fatalf("question %d: nothing happens", at)
		}
		if err != nil {
			t.Fatalf("question %d was late: %v", at, err)
		}
		check(manager)
		if !stalled {
			if at < 3 {
				t.Errorf("only %d questions", at)
			}
			return
		}
	}
}

// TestSlowServerDelaysNobody: whichever question of a reconciliation is answered
// late, claims are prepared and unprepared meanwhile, and what they have changed
// stays as it is.
func TestSlowServerDelaysNobody(t *testing.T) {
	t.Parallel()
	f, _, b := twoClaims(t)
	pod := ran(podWith("pod-c", "app:main=c"))
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 1, memory: 20})
	gone := claim("gone", []*corev1.Pod{podWith("pod-gone", "app:main=gone")}, result{request: "r", gpu: 2, memory: 20})
	f.cluster.add(pod, c)
	meanwhile := func(m *Manager) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := m.Prepare(ctx, c); err != nil {
			t.Errorf("preparing a claim meanwhile: %v", err)
		}
		if err := m.Unprepare(ctx, b.UID); err != nil {
			t.Errorf("unpreparing a claim meanwhile: %v", err)
		}
	}
	begin := func(m *Manager) {
		// Something to repair, and something to remove.
		if err := errors.Join(m.host.RemoveSpec("uid-a"), m.Unprepare(t.Context(), c.UID)); err != nil {
			t.Fatal(err)
		}
		f.prepare(m, gone, b)
	}
	act := func(ctx context.Context, m *Manager) error { return m.Reconcile(ctx) }
	check := func(m *Manager) {
		t.Helper()
		// The last round, in which nothing was late, is made equal to the others.
		meanwhile(m)
		if diff := cmp.Diff([]string{"record uid-a Completed", "record uid-c Completed", "spec uid-a", "spec uid-c",
			"region claims/uid-a/pod-pod-a_main", "region claims/uid-c/pod-pod-c_main"}, f.world()); diff != "" {
			t.Error(diff)
		}
	}
	eachStall(t, f, begin, act, meanwhile, check)
}

// TestSlowServerAndOverlap: the same while a claim looks whether others that are
// in its way are gone.
func TestSlowServerAndOverlap(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pods := []*corev1.Pod{ran(podWith("old", "app:main=old")), ran(podWith("new", "app:main=new")), ran(podWith("beside", "app:main=beside"))}
	old := claim("old", pods[:1], result{request: "r", gpu: 0, memory: 60})
	next := claim("new", pods[1:2], result{request: "r", gpu: 0, memory: 60})
	beside := claim("beside", pods[2:], result{request: "r", gpu: 1, memory: 60})
	f.cluster.add(pods[0], pods[1], pods[2], next, beside)
	begin := func(m *Manager) {
		f.cluster.add(pods[0])
		if err := m.Unprepare(t.Context(), next.UID); err != nil {
			t.Fatal(err)
		}
		f.prepare(m, old)
		f.cluster.remove(pods[0])
	}
	act := func(ctx context.Context, m *Manager) error {
		_, err := m.Prepare(ctx, next)
		return err
	}
	meanwhile := func(m *Manager) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := m.Prepare(ctx, beside); err != nil {
			t.Errorf("preparing another claim meanwhile: %v", err)
		}
	}
	check := func(m *Manager) {
		t.Helper()
		meanwhile(m)
		if diff := cmp.Diff([]string{"record uid-beside Completed", "record uid-new Completed"}, f.world()[:2]); diff != "" {
			t.Error(diff)
		}
	}
	eachStall(t, f, begin, act, meanwhile, check)
}
