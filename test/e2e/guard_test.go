// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/driver/cdi"
)

// TestDriverAwayAtCreation: a container with a share is refused while nobody is there who sets its limits, when it is created
// and not when it starts, so that even a pod which must not be restarted gets it when the driver is back.
func TestDriverAwayAtCreation(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi"})
	f.claim("once", request{memory: "3Gi", cores: "20"})
	f.claim("whole", request{})
	pod, whole := f.run(f.simplePod("pod", "claim")), f.run(f.simplePod("whole", "whole"))
	f.check(pod, "main")
	// The claim of the pod that runs once is prepared before its init container, which has no part of it.
	once := f.pod("once", []box{{name: "init", command: []string{"/bin/sh", "-c", "until test -e /go; do sleep 0.1; done"}}}, nil,
		[]box{{uses: []use{{claim: "once"}}, command: viewCommand}})
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	once = f.create(once)
	want := f.whenInit(once, "init")
	if err := f.driver.kill(); err != nil {
		t.Fatal(err)
	}
	f.killContainer(pod)
	f.killContainer(whole)
	if result, err := f.node.Exec(f.ctx, once, "init", "touch", "/go"); err != nil || result.ExitCode != 0 {
		t.Fatalf("ending the init container: got %+v, %v", result, err)
	}
	// The claims are prepared, so the kubelet goes on to make containers. The one without limits needs nobody.
	f.restarted("whole")
	f.check(f.running("whole"), "main")
	refused := func(name string) {
		f.waitFor("the container with a share to be refused, for the reason", func() error {
			pod, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			status := pod.Status.ContainerStatuses[0]
			if status.State.Running != nil && status.RestartCount > 0 || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				t.Fatalf("pod %q has a container although nobody has set its limits, or is lost: %s", name, podState(pod))
			}
			if waiting := status.State.Waiting; waiting == nil || waiting.Reason != "CreateContainerError" || !strings.Contains(waiting.Message, cdi.GuardDeviceDir) {
				return fmt.Errorf("its state is %s", podState(pod))
			}
			return nil
		})
	}
	refused("pod")
	refused("once")
	time.Sleep(5 * time.Second) // it is tried again, in vain
	refused("pod")
	refused("once")
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.check(f.running("pod"), "main")
	f.waitFor("the pod that runs once to end well", func() error {
		pod, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, "once", metav1.GetOptions{})
		if err == nil && pod.Status.Phase == corev1.PodFailed {
			t.Fatalf("it has failed: %s", podState(pod))
		}
		if err == nil && pod.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("its state is %s", podState(pod))
		}
		return err
	}, "once")
	f.checkView(once, "main", f.lookBack(once, "main"), want)
}

// whenInit waits for an init container of a pod to run and returns what the pod's container "main" should have.
func (f *fixture) whenInit(pod *corev1.Pod, name string) []share {
	f.Helper()
	f.waitFor("the init container to run", func() error {
		now, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range now.Status.InitContainerStatuses {
			if status.Name == name && status.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("its state is %s", podState(now))
	})
	return f.expected(pod, "main")
}

// TestGuardMount: if the runtime believes that a driver is connected although none is, the container still does not start.
func TestGuardMount(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi"})
	pod := f.run(f.simplePod("pod", "claim"))
	if err := f.driver.kill(); err != nil {
		t.Fatal(err)
	}
	link := f.path(cdi.GuardDeviceDir)
	if _, err := os.Lstat(filepath.Join(link, "null")); !os.IsNotExist(err) {
		t.Errorf("device of a driver that was killed: got %v, want it gone", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev", link); err != nil {
		t.Fatal(err)
	}
	f.killContainer(pod)
	f.waitFor("the container not to start, for the reason", func() error {
		pod, err := f.client.CoreV1().Pods(f.ns).Get(f.ctx, "pod", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := pod.Status.ContainerStatuses[0]; status.State.Running != nil && status.RestartCount > 0 {
			t.Fatal("the container with a share runs although nobody has set its limits")
		}
		if state := podState(pod); !strings.Contains(state, cdi.Missing) {
			return fmt.Errorf("its state is %s", state)
		}
		return nil
	})
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.check(f.running("pod"), "main")
}

// TestOtherProcessIDs: a driver that does not see the runtime's process IDs does without the device that tells whether it is
// connected; limits hold all the same.
func TestOtherProcessIDs(t *testing.T) {
	f := newFixture(t)
	f.claim("before", request{memory: "2Gi"})
	before := f.run(f.simplePod("before", "before"))
	link := f.path(cdi.GuardDeviceDir)
	hasDevice := func(claim string) bool {
		spec, err := os.ReadFile(filepath.Join(f.node.CDIDir(), filepath.Base(f.specOf(claim))))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(spec), link)
	}
	if !hasDevice("before") {
		t.Error("the spec of a claim with a share has no device that tells whether the driver is connected")
	}
	if err := f.driver.stop(); err != nil {
		t.Fatal(err)
	}
	f.driver.wrapper = []string{"/usr/bin/unshare", "--pid", "--fork", "--kill-child=SIGTERM", "--mount-proc", "--"}
	t.Cleanup(func() {
		f.extend(testTimeout)
		f.driver.wrapper = nil
		if err := f.driver.stop(); err != nil {
			t.Error(err)
		}
		if err := f.driver.start(f.ctx); err != nil {
			t.Fatal(err)
		}
		f.waitFor("the device to be there again", func() error {
			_, err := os.Lstat(filepath.Join(link, "null"))
			return err
		})
	})
	if err := f.driver.start(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.waitFor("specs to be without the device", func() error {
		if hasDevice("before") {
			return errNotYet
		}
		return isNoFile(link)
	})
	f.claim("during", request{memory: "3Gi"})
	f.check(f.run(f.simplePod("during", "during")), "main")
	f.killContainer(before)
	f.restarted("before")
	f.check(f.running("before"), "main")
}

// specOf returns the file of a claim's CDI spec.
func (f *fixture) specOf(claim string) string {
	f.Helper()
	object, err := f.client.ResourceV1().ResourceClaims(f.ns).Get(f.ctx, claim, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(f.node.CDIDir(), "*"+string(object.UID)+"*"))
	if err != nil || len(found) != 1 {
		f.Fatalf("CDI specs of claim %q: got %q, %v, want one", claim, found, err)
	}
	return found[0]
}

// killContainer ends the only container of a pod from outside.
func (f *fixture) killContainer(pod *corev1.Pod) {
	f.Helper()
	containers, err := f.node.Containers(f.ctx, pod.UID)
	if err != nil || len(containers) != 1 {
		f.Fatalf("containers: got %v, %v, want one", containers, err)
	}
	if _, err := f.node.Command(f.ctx, filepath.Join(f.binDir, "ctr"), "--address="+f.node.ContainerdSocket(), "--namespace=k8s.io",
		"task", "kill", "--signal=SIGKILL", containers[0].ID); err != nil {
		f.Fatal(err)
	}
}

// restarted waits until a container of a pod runs that is not the first one.
func (f *fixture) restarted(name string) *corev1.Pod {
	f.Helper()
	var pod *corev1.Pod
	f.waitFor("another container", func() (err error) {
		if pod, err = f.isRunning(name); err == nil && pod.Status.ContainerStatuses[0].RestartCount == 0 {
			err = errNotYet
		}
		return err
	})
	return pod
}
