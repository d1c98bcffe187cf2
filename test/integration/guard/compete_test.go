// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
)

// advice is what the owner of a refused pod reads.
const advice = `set "schedulerName: topodra-scheduler" in the pod, or in the template of what makes the pod, and create it again`

// copyName is the schedulerName of a profile that only the copy of our scheduler has.
const copyName = "topodra-copy"

// sleep waits a moment, or until ctx ends.
func sleep(ctx context.Context) {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
}

// place tries every GPU for a pod's claim, and binds the pod or says why not.
func (b *batchScheduler) place(ctx context.Context, pod *corev1.Pod) {
	claims := b.client.ResourceV1().ResourceClaims(pod.Namespace)
	claim, err := claims.Get(ctx, *pod.Spec.ResourceClaims[0].ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		return
	}
	for _, device := range bed.devices {
		if b.given[device] {
			continue
		}
		claim.Status.Allocation = allocation(result(gpuNode, device))
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		if _, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			continue
		}
		b.given[device] = true
		err = b.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: gpuNode}}, metav1.CreateOptions{})
		break
	}
	if err != nil {
		_, _ = b.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{ // told again with the next try
			ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Reason:         "FailedScheduling", Message: err.Error(), Type: corev1.EventTypeWarning,
		}, metav1.CreateOptions{})
	}
}

// schedulers starts ours, Kubernetes' own, and a copy of ours under another service account that takes the same pods and some
// of its own.
func schedulers(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(bed.root, "manifests/scheduler/scheduler-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours := string(data)
	profiles := ours[strings.Index(ours, "profiles:\n")+len("profiles:\n"):]
	second := strings.Replace(profiles, "schedulerName: topodra-scheduler", "schedulerName: "+copyName, 1)
	if second == profiles {
		t.Fatal("the shipped configuration has no profile topodra-scheduler")
	}
	for _, options := range []cluster.SchedulerOptions{
		{ConfigYAML: ours},
		{Binary: cluster.StockScheduler},
		{Name: "copy", ConfigYAML: strings.TrimRight(ours, "\n") + "\n" + second, User: copyUser},
	} {
		process, err := bed.StartScheduler(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := process.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	runBatchScheduler(t)
}

// submit creates a claim for a GPU and a pod of the same name.
func submit(t *testing.T, namespace, name, scheduler string) {
	t.Helper()
	if _, err := bed.Client().ResourceV1().ResourceClaims(namespace).Create(t.Context(), newClaim(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.Client().CoreV1().Pods(namespace).Create(t.Context(), newPod(name, scheduler, name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// finish deletes pods and the claims of their names and waits until they are gone.
func finish(t *testing.T, namespace string, names ...string) {
	t.Helper()
	client := bed.Client()
	for _, name := range names {
		if err := client.CoreV1().Pods(namespace).Delete(t.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		if err := client.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		eventually(t.Context(), t, func() string {
			_, err := client.ResourceV1().ResourceClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprintf("claim %q is still there: %v", name, err)
		})
	}
}

// bound waits until a pod is bound.
func bound(t *testing.T, namespace, name string) {
	t.Helper()
	eventually(t.Context(), t, func() string {
		pod, err := bed.Client().CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName == gpuNode {
			return ""
		}
		return fmt.Sprintf("pod %q is on node %q: %v", name, pod.Spec.NodeName, pod.Status.Conditions)
	})
}

// told waits for an event of a pod that contains all the parts.
func told(t *testing.T, namespace, name string, parts ...string) {
	t.Helper()
	eventually(t.Context(), t, func() string {
		list, err := bed.Client().CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var seen []string
		for i := range list.Items {
			event := &list.Items[i]
			if event.InvolvedObject.Name != name || event.Reason != "FailedScheduling" {
				continue
			}
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event.Message, part) }) {
				return ""
			}
			seen = append(seen, event.Message)
		}
		return fmt.Sprintf("no event of pod %q contains %q; there are %q", name, parts, seen)
	})
}

// Ours, Kubernetes' own scheduler, one that allocates without looking, and a copy of ours compete for the last GPU.
func TestLastGPU(t *testing.T) {
	namespace := bed.namespace(t)
	schedulers(t)
	owner := watchOwners(t)
	losers := map[string]string{"stock": corev1.DefaultSchedulerName, "third": thirdParty, "copied": copyName}

	t.Run("free", func(t *testing.T) {
		// All three GPUs are free, and still nobody but us gets one.
		for _, name := range []string{"copied", "stock", "third"} {
			submit(t, namespace, name, losers[name])
		}
		for name := range losers {
			told(t, namespace, name, advice)
		}
		if got := owner.of(namespace); len(got) != 0 {
			t.Errorf("claims %q have GPUs, want none", got)
		}
		// The advice is good.
		finish(t, namespace, "stock")
		submit(t, namespace, "stock", api.SchedulerName)
		bound(t, namespace, "stock")
		finish(t, namespace, "copied", "stock", "third")
	})

	for _, name := range []string{"busy-0", "busy-1"} {
		submit(t, namespace, name, api.SchedulerName)
		bound(t, namespace, name)
	}
	for round, order := range [][]string{
		{"ours", "stock", "third", "copied"}, {"copied", "third", "stock", "ours"}, {"third", "ours", "copied", "stock"}, {"stock", "copied", "ours", "third"},
	} {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			for _, name := range order {
				scheduler := losers[name]
				if name == "ours" {
					scheduler = api.SchedulerName
				}
				submit(t, namespace, name, scheduler)
			}
			bound(t, namespace, "ours")
			told(t, namespace, "third", advice)
			if got, want := owner.of(namespace), []string{"busy-0", "busy-1", "ours"}; !slices.Equal(got, want) {
				t.Errorf("claims %q have GPUs, want %q", got, want)
			}
			finish(t, namespace, order...)
		})
	}
	finish(t, namespace, "busy-0", "busy-1")
}

// A claim that is ours and allocated may be used by pods of other schedulers too: no second allocation is made.
func TestSharedClaim(t *testing.T) {
	namespace := bed.namespace(t)
	schedulers(t)
	owner := watchOwners(t)
	submit(t, namespace, "first", api.SchedulerName)
	bound(t, namespace, "first")
	if _, err := bed.Client().CoreV1().Pods(namespace).Create(t.Context(), newPod("second", corev1.DefaultSchedulerName, "first"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound(t, namespace, "second")
	if got := owner.of(namespace); !slices.Equal(got, []string{"first"}) {
		t.Errorf("claims %q have GPUs, want the first only", got)
	}
	// Both end; the controllers release the GPU, whoever placed the pods.
	for _, name := range []string{"first", "second"} {
		if err := bed.Client().CoreV1().Pods(namespace).Delete(t.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t.Context(), t, func() string {
		if got := owner.of(namespace); len(got) != 0 {
			return fmt.Sprintf("claims %q still have GPUs", got)
		}
		return ""
	})
}
