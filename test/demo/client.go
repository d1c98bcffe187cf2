// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/internal/livestate"
)

const (
	// pollEvery is short against a scheduling attempt and long against a request to the API server.
	pollEvery = 20 * time.Millisecond
	// settle is what a scheduler's caches get to notice that claims are gone, before the next job arrives. Without it a job
	// could be refused for GPUs that are free already, and wait for its back-off.
	settle = time.Second
	// patience bounds every wait for something that has to come.
	patience = 30 * time.Second
	// standStill is how long a job that cannot be placed is watched after the verdict.
	standStill = time.Second
)

// errSlow is the cause of a wait that took longer than patience.
var errSlow = errors.New("gave up after " + patience.String())

// poll calls done until it returns true or an error, or patience ends.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSlow)
	defer cancel()
	for {
		ok, err := done(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if ok || err != nil {
			return err
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// sleep waits for d or until ctx ends; then it returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readState reads every node with its GPUs and who holds them.
func readState(ctx context.Context, client kubernetes.Interface) ([]livestate.Node, error) {
	slices, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ResourceSlices: %w", err)
	}
	claims, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ResourceClaims: %w", err)
	}
	nodes, err := livestate.Build(slices.Items, claims.Items)
	if err != nil {
		return nil, fmt.Errorf("reading the state of the nodes: %w", err)
	}
	return nodes, nil
}

// submit creates the job's claim and pod.
func submit(ctx context.Context, client kubernetes.Interface, job Job, schedulerName string) error {
	claim, err := claimFor(job)
	if err != nil {
		return err
	}
	if _, err := client.ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the claim of %q: %w", job.Name, err)
	}
	pod := podFor(job, schedulerName)
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the pod of %q: %w", job.Name, err)
	}
	return nil
}

// verdict is what a scheduler decided about a pod.
type verdict struct {
	bound   bool
	message string // why not, in the scheduler's words
}

// awaitVerdict waits until the pod is bound or, if waiting is what the job should do, until the scheduler has said why it is
// not; then it watches for a while that the job stays pending. When the job could be placed, an early refusal does not count: a
// scheduler's caches may lag behind the API server.
func awaitVerdict(ctx context.Context, client kubernetes.Interface, job Job, couldRun bool) (verdict, error) {
	var last verdict
	var refused time.Time
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, job.Name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading the pod: %w", err)
		}
		if pod.Spec.NodeName != "" {
			last = verdict{bound: true}
			return true, nil
		}
		last.message = refusal(pod)
		if last.message == "" {
			return false, nil
		}
		if refused.IsZero() {
			refused = time.Now()
		}
		return !couldRun && time.Since(refused) >= standStill, nil
	})
	if errors.Is(err, errSlow) && last.message != "" {
		return last, nil
	}
	if err != nil {
		return verdict{}, fmt.Errorf("waiting for a decision about %q: %w", job.Name, err)
	}
	return last, nil
}

// refusal returns why the scheduler left the pod pending, or nothing if it has not said so yet.
func refusal(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// allocation returns the node and the names of the devices that the job's claim got.
func allocation(ctx context.Context, client kubernetes.Interface, job Job) (string, []string, error) {
	pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, job.Name, metav1.GetOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("reading the pod of %q: %w", job.Name, err)
	}
	claim, err := client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(ctx, job.Name, metav1.GetOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("reading the claim of %q: %w", job.Name, err)
	}
	if claim.Status.Allocation == nil {
		return "", nil, fmt.Errorf("reading the claim of %q: its pod is bound to %q but the claim has no allocation", job.Name, pod.Spec.NodeName)
	}
	var devices []string
	for i := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, claim.Status.Allocation.Devices.Results[i].Device)
	}
	return pod.Spec.NodeName, devices, nil
}

// end removes jobs and waits until their claims are gone, so that nothing holds their GPUs any more. Names that do not exist are no error.
func end(ctx context.Context, client kubernetes.Interface, names []string) error {
	now := metav1.NewDeleteOptions(0) // no kubelet is there that could confirm the end of a pod
	for _, name := range names {
		if err := client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, *now); ignoreNotFound(err) != nil {
			return fmt.Errorf("deleting the pod of %q: %w", name, err)
		}
		err := client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{})
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("deleting the claim of %q: %w", name, err)
		}
	}
	for _, name := range names {
		err := poll(ctx, func(ctx context.Context) (bool, error) {
			_, err := client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
		if err != nil {
			return fmt.Errorf("waiting until the claim of %q is released: %w", name, err)
		}
	}
	return nil
}

// endAll removes every job and checks that no claim is left in the cluster.
func endAll(ctx context.Context, client kubernetes.Interface) error {
	claims, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	names := make([]string, 0, len(claims.Items))
	for i := range claims.Items {
		names = append(names, claims.Items[i].Name)
	}
	if err := end(ctx, client, names); err != nil {
		return err
	}
	var left *resourceapi.ResourceClaimList
	if left, err = client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	if len(left.Items) > 0 {
		return fmt.Errorf("cleaning up: claim %q is still there", left.Items[0].Name)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
