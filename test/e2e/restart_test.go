// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
)

// survivors is a pod with a share and one with whole GPUs that have to survive whatever happens.
type survivors struct {
	share, whole       *corev1.Pod
	wantShare, wantGPU []share
	ids                []string
}

// startSurvivors runs them.
func (f *fixture) startSurvivors() survivors {
	f.Helper()
	f.claim("old-share", request{memory: "4Gi", cores: "50"})
	f.claim("old-whole", request{count: 2})
	s := survivors{share: f.run(f.simplePod("old-share", "old-share")), whole: f.run(f.simplePod("old-whole", "old-whole"))}
	s.wantShare, s.wantGPU = f.check(s.share, "main"), f.check(s.whole, "main")
	s.ids = f.containerIDs(s)
	return s
}

func (f *fixture) containerIDs(s survivors) []string {
	f.Helper()
	var ids []string
	for _, pod := range []*corev1.Pod{s.share, s.whole} {
		containers, err := f.node.Containers(f.ctx, pod.UID)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range containers {
			if c.Running {
				ids = append(ids, c.ID)
			}
		}
	}
	return ids
}

// checkSurvivors checks that the pods are as they were, in the same containers, and that a new pod finds a place beside them.
func (f *fixture) checkSurvivors(s survivors, newPod string) {
	f.Helper()
	if diff := cmp.Diff(s.ids, f.containerIDs(s)); diff != "" {
		f.Errorf("containers (-before +after):\n%s", diff)
	}
	f.checkSame(s)
	f.claim(newPod, request{memory: "2Gi"})
	f.check(f.run(f.simplePod(newPod, newPod)), "main")
}

// checkSame checks that the pods have the GPUs that they had.
func (f *fixture) checkSame(s survivors) {
	f.Helper()
	if diff := cmp.Diff(s.wantShare, f.check(s.share, "main")); diff != "" {
		f.Errorf("shares (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(s.wantGPU, f.check(s.whole, "main")); diff != "" {
		f.Errorf("whole GPUs (-before +after):\n%s", diff)
	}
}

// TestDriverKilled: what runs goes on, and is cleaned up by the next process.
func TestDriverKilled(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	if err := f.driver.kill(); err != nil {
		t.Fatal(err)
	}
	f.checkSame(s)
	// Created while there is no driver: it waits.
	f.claim("waiting", request{memory: "2Gi"})
	f.create(f.simplePod("waiting", "waiting"))
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.check(f.running("waiting"), "main")
	f.checkSurvivors(s, "new")
	// Deleted while there is no driver: it goes when there is one.
	if err := f.driver.kill(); err != nil {
		t.Fatal(err)
	}
	f.delete("old-share")
	time.Sleep(3 * time.Second) // longer than the containers take to stop
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.gone("old-share")
}

// TestDriverKilledBetweenSteps kills the driver at the first, second, … file that it makes or removes while a claim is
// prepared, and again while it is unprepared, until it gets through. The pod runs in the end, and nothing is left.
func TestDriverKilledBetweenSteps(t *testing.T) {
	f := newFixture(t)
	for step, died := 1, true; died; step++ {
		name := fmt.Sprintf("prepare-%d", step)
		f.claim(name, request{memory: "4Gi", cores: "50"})
		died = f.killAtStep(step, name, func() { f.create(f.simplePod(name, name)) }, func() error {
			_, err := f.isRunning(name)
			return err
		})
		f.checkDied("Prepare", step, died)
		f.check(f.running(name), "main")
		f.remove(name)
		f.removeClaim(name)
		f.waitFor("nothing to be left", f.nothingLeft)
	}
	for step, died := 1, true; died; step++ {
		name := fmt.Sprintf("unprepare-%d", step)
		f.claim(name, request{memory: "4Gi", cores: "50"})
		f.check(f.run(f.simplePod(name, name)), "main")
		died = f.killAtStep(step, name, func() { f.delete(name) }, func() error { return f.isGone(name) })
		f.checkDied("Unprepare", step, died)
		f.removeClaim(name)
		f.waitFor("nothing to be left", f.nothingLeft)
	}
}

// checkDied fails the test if there was nothing to interrupt at all.
func (f *fixture) checkDied(what string, step int, died bool) {
	f.Helper()
	f.Logf("%s, file %d: driver killed: %t", what, step, died)
	if step == 1 && !died {
		f.Errorf("%s changes nothing on disk, so there was nothing to interrupt", what)
	}
}

// killAtStep calls begin, kills the driver when it makes or removes the given file on disk, counted from 1, starts it again,
// and waits until done has no error, which it will have when the kubelet is through with the pod. It reports whether there were as many files.
func (f *fixture) killAtStep(step int, pod string, begin func(), done func() error) bool {
	f.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.Fatal(err)
	}
	for _, dir := range []string{f.driver.stateDir, f.node.CDIDir(), f.path("regions"), f.path("regions", "claims"), f.path("regions", "containers"), f.path("containers")} {
		if _, err := os.Stat(dir); err == nil {
			if err := watcher.Add(dir); err != nil {
				f.Fatal(err)
			}
		}
	}
	victim := f.driver.current
	reached := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		seen := 0
		for event := range watcher.Events { // until the watcher is closed
			// Files get their content before they get their name, so what counts is names that come and go.
			// The device that tells whether the driver is connected has nothing to do with claims.
			if !event.Has(fsnotify.Create|fsnotify.Remove) || strings.HasPrefix(filepath.Base(event.Name), cdi.GuardDeviceDir) {
				continue
			}
			if seen++; seen == step {
				_ = victim.Signal(syscall.SIGKILL) // it cannot have ended before
				close(reached)
			}
		}
	})
	died := false
	restart := func() {
		select {
		case <-reached:
		default:
			return
		}
		if !died {
			died = true
			f.driver.forget()
			if err := errors.Join(victim.Stop(), f.driver.start(f.ctx)); err != nil {
				f.Fatal(err)
			}
		}
	}
	begin()
	f.waitFor("the driver to get through", func() error {
		restart()
		return done()
	}, pod)
	if err := watcher.Close(); err != nil {
		f.Fatal(err)
	}
	watching.Wait()
	restart() // it may have been the last change that killed it
	return died
}

// TestKubeletRestart: the kubelet prepares anew what it does not remember; nothing changes for the pods.
func TestKubeletRestart(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	if err := f.node.RestartKubelet(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.checkSurvivors(s, "new")
	// Deleted while there is no kubelet.
	if err := f.node.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	f.delete("old-share")
	if err := f.node.StartKubelet(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.gone("old-share")
}

// TestForgottenByKubelet: what the kubelet does not remember at all, and so never has unprepared, is removed by the driver.
func TestForgottenByKubelet(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	f.claim("forgotten", request{memory: "4Gi"})
	forgotten := f.run(f.simplePod("forgotten", "forgotten"))
	spec := f.specOf("forgotten")
	if err := f.node.StopKubelet(); err != nil {
		t.Fatal(err)
	}
	// The pod and its claim are deleted by force, and the kubelet loses its notes about claims.
	now := int64(0)
	if err := f.client.CoreV1().Pods(f.ns).Delete(f.ctx, forgotten.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	f.removeClaim("forgotten")
	f.waitFor("the claim to be gone", func() error {
		_, err := f.client.ResourceV1().ResourceClaims(f.ns).Get(f.ctx, "forgotten", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errNotYet
		}
		return err
	})
	notes := filepath.Join(f.node.PluginsDir(), "..", "dra_manager_state")
	if err := os.Remove(notes); err != nil {
		t.Fatal(err)
	}
	if err := f.node.StartKubelet(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.waitFor("what is left of the claim to be gone", func() error {
		if err := isNoFile(spec); err != nil {
			return err
		}
		document, err := checkpoint.NewStore(f.driver.stateDir, nodeName).Load()
		if err == nil && len(document.Claims) != 2 {
			err = fmt.Errorf("%d claims are in the checkpoint", len(document.Claims))
		}
		return err
	})
	f.checkSurvivors(s, "new")
}

// TestContainerdRestart: the driver finds containerd again, and new containers are armed.
func TestContainerdRestart(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	if err := f.node.StopContainerd(); err != nil {
		t.Fatal(err)
	}
	if err := f.node.StartContainerd(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.checkSurvivors(s, "new")
}

// TestRollingUpdate: the next driver starts before the old one ends, and pods come and go all the time.
func TestRollingUpdate(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	for round := range 3 {
		old := f.driver.current
		next, err := f.driver.launch(f.ctx)
		if err != nil {
			t.Fatal(err)
		}
		during := fmt.Sprintf("during-%d", round)
		f.claim(during, request{memory: "2Gi"})
		f.check(f.run(f.simplePod(during, during)), "main")
		if err := old.Stop(); err != nil {
			t.Fatal(err)
		}
		f.driver.current = next
		f.checkSurvivors(s, fmt.Sprintf("after-%d", round))
		f.remove(during)
	}
}

// TestReboot: the boot id is another one, the CDI directory is empty. Pods come back with the GPUs that they had.
func TestReboot(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	f.driver.forget()
	if err := f.node.Reboot(f.ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.waitFor("the pods to run again", func() error {
		if ids := f.containerIDs(s); len(ids) != 2 || ids[0] == s.ids[0] || ids[1] == s.ids[1] {
			return fmt.Errorf("containers are %q", ids)
		}
		return nil
	})
	s.share, s.whole = f.running("old-share"), f.running("old-whole")
	s.ids = f.containerIDs(s)
	f.checkSurvivors(s, "new")
}

// apiAway is how long the API server is away.
const apiAway = time.Minute

// TestAPIServerAway: what runs goes on; what was asked for meanwhile happens afterwards.
func TestAPIServerAway(t *testing.T) {
	f := newFixture(t)
	s := f.startSurvivors()
	f.node.Disconnect()
	began := time.Now()
	f.claim("meanwhile", request{memory: "2Gi"})
	f.create(f.simplePod("meanwhile", "meanwhile"))
	f.delete("old-whole")
	for time.Since(began) < apiAway {
		f.checkSame(s)
		if err := f.driver.current.Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
	}
	f.node.Connect()
	f.check(f.running("meanwhile"), "main")
	f.gone("old-whole")
	if err := f.driver.current.Err(); err != nil {
		t.Error(err)
	}
	f.check(s.share, "main")
}

// TestDiskFull: a claim for which the state cannot be written is refused, visibly; what runs goes on; the claim is prepared
// when there is room again.
func TestDiskFull(t *testing.T) {
	f := newFixture(t)
	// The state moves to a small file system of its own for the time of this test.
	if err := f.driver.stop(); err != nil {
		t.Fatal(err)
	}
	// The mount exists in the node's namespace alone.
	if _, err := f.node.Command(f.ctx, "mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "small", f.driver.stateDir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
		defer cancel()
		err := f.driver.stop()
		if err == nil {
			_, err = f.node.Command(ctx, "umount", "--lazy", f.driver.stateDir)
		}
		if err == nil {
			err = f.driver.start(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.claim("before", request{memory: "4Gi"})
	before := f.run(f.simplePod("before", "before"))
	f.check(before, "main")
	ballast := filepath.Join(f.driver.stateDir, "ballast")
	if said, err := f.node.Command(f.ctx, "sh", "-c", "cat /dev/zero >"+ballast+" 2>/dev/null; test -s "+ballast); err != nil {
		t.Fatal(said, err)
	}
	f.claim("late", request{memory: "4Gi"})
	f.create(f.simplePod("late", "late"))
	f.eventually("late", "FailedPrepareDynamicResources", "no space left on device")
	f.check(before, "main")
	if _, err := f.node.Command(f.ctx, "rm", ballast); err != nil {
		t.Fatal(err)
	}
	f.check(f.running("late"), "main")
	f.remove("before")
	f.remove("late")
}
