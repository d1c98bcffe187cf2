// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// pollEvery is short against a scheduling attempt and long against a request to the API server.
	pollEvery = 20 * time.Millisecond
	// Patience bounds every wait for something that has to come.
	Patience = 45 * time.Second
	// logLines of the scheduler are shown with a failure.
	logLines = 60
)

// Scene is the stage of one test.
type Scene struct {
	*Bed

	// Namespace of the test.
	Namespace string

	t     testing.TB
	ctx   context.Context
	later []func(ctx context.Context) error
}

// Scene makes a namespace for a test and arranges for its end. labels are those of the namespace, as key and value in turn.
func (b *Bed) Scene(t testing.TB, labels ...string) *Scene {
	t.Helper()
	s := &Scene{Bed: b, t: t, ctx: t.Context()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scene-", Labels: map[string]string{}}}
	for i := 0; i+1 < len(labels); i += 2 {
		namespace.Labels[labels[i]] = labels[i+1]
	}
	created, err := b.Client.CoreV1().Namespaces().Create(s.ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	s.Namespace = created.Name
	t.Cleanup(func() { s.end(context.WithoutCancel(s.ctx)) })
	return s
}

// end checks the bookings, explains a failure and removes what the test made.
func (s *Scene) end(ctx context.Context) {
	s.ctx = ctx // that of the test has ended
	if err := s.checkBookings(ctx); err != nil {
		s.t.Errorf("checking what is allocated: %v", err)
	}
	if s.t.Failed() {
		s.t.Log(s.describe(ctx))
	}
	err := s.removeAll(ctx)
	for _, f := range slices.Backward(s.later) {
		err = errors.Join(err, f(ctx))
	}
	err = errors.Join(err, s.Client.CoreV1().Namespaces().Delete(ctx, s.Namespace, metav1.DeleteOptions{}))
	if err != nil {
		s.t.Errorf("cleaning up namespace %q: %v", s.Namespace, err)
	}
}

// Finally arranges for f to run when the test has ended and its pods and claims are gone, the last one first.
func (s *Scene) Finally(f func(ctx context.Context) error) { s.later = append(s.later, f) }

// removeAll deletes the workloads, pods and claims of the scene and waits until none is left.
func (s *Scene) removeAll(ctx context.Context) error {
	now := *metav1.NewDeleteOptions(0)
	all := metav1.ListOptions{}
	withPods := *metav1.NewDeleteOptions(0)
	withPods.PropagationPolicy = new(metav1.DeletePropagationBackground)
	err := errors.Join(
		s.Client.AppsV1().ReplicaSets(s.Namespace).DeleteCollection(ctx, withPods, all),
		s.Client.BatchV1().Jobs(s.Namespace).DeleteCollection(ctx, withPods, all),
	)
	if err != nil {
		return fmt.Errorf("deleting workloads: %w", err)
	}
	pods, claims := s.Client.CoreV1().Pods(s.Namespace), s.Client.ResourceV1().ResourceClaims(s.Namespace)
	return poll(ctx, Patience, func(ctx context.Context) (bool, error) {
		// Repeatedly, because a controller may be in the middle of making another one.
		if err := errors.Join(pods.DeleteCollection(ctx, now, all), claims.DeleteCollection(ctx, now, all)); err != nil {
			return false, fmt.Errorf("deleting pods and claims: %w", err)
		}
		podsLeft, err := pods.List(ctx, all)
		if err != nil {
			return false, fmt.Errorf("listing pods: %w", err)
		}
		claimsLeft, err := claims.List(ctx, all)
		if err != nil {
			return false, fmt.Errorf("listing claims: %w", err)
		}
		return len(podsLeft.Items)+len(claimsLeft.Items) == 0, nil
	})
}

// errPatience is the cause of a wait that took too long.
var errPatience = errors.New("waiting took too long")

// poll calls done until it returns true or an error, or limit has passed.
func poll(ctx context.Context, limit time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errPatience)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		ok, err := done(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ok || err != nil:
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Eventually waits until check returns nothing; what it returns says what is still wrong.
func (s *Scene) Eventually(check func(ctx context.Context) string) {
	s.t.Helper()
	problem := "never checked"
	err := poll(s.ctx, Patience, func(ctx context.Context) (bool, error) {
		if p := check(ctx); ctx.Err() == nil {
			problem = p
		}
		return problem == "", nil
	})
	if err != nil {
		s.t.Fatalf("%v after %s: %s", err, Patience, problem)
	}
}

// CreateClaim creates a claim.
func (s *Scene) CreateClaim(c Claim) *resourceapi.ResourceClaim {
	s.t.Helper()
	object, err := c.object()
	if err != nil {
		s.t.Fatal(err)
	}
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Create(s.ctx, object, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatalf("creating claim %q: %v", c.Name, err)
	}
	return claim
}

// CreateTemplate creates a template of claims.
func (s *Scene) CreateTemplate(c Claim) {
	s.t.Helper()
	claim, err := c.object()
	if err != nil {
		s.t.Fatal(err)
	}
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: claim.Annotations}, Spec: claim.Spec,
		},
	}
	if _, err := s.Client.ResourceV1().ResourceClaimTemplates(s.Namespace).Create(s.ctx, template, metav1.CreateOptions{}); err != nil {
		s.t.Fatalf("creating claim template %q: %v", c.Name, err)
	}
}

// GeneratedClaim returns the name of the claim that was made for a pod from a template.
func (s *Scene) GeneratedClaim(pod, template string) string {
	s.t.Helper()
	object := s.pod(pod)
	for _, status := range object.Status.ResourceClaimStatuses {
		if status.Name == template && status.ResourceClaimName != nil {
			return *status.ResourceClaimName
		}
	}
	s.t.Fatalf("pod %q has no claim from template %q", pod, template)
	return ""
}

// ExtendedClaim returns the name of the claim that the scheduler made for a pod's extended resources.
func (s *Scene) ExtendedClaim(pod string) string {
	s.t.Helper()
	status := s.pod(pod).Status.ExtendedResourceClaimStatus
	if status == nil {
		s.t.Fatalf("pod %q has no claim for extended resources", pod)
	}
	return status.ResourceClaimName
}

// pod reads a pod.
func (s *Scene) pod(name string) *corev1.Pod {
	s.t.Helper()
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatalf("reading pod %q: %v", name, err)
	}
	return pod
}

// CreatePod creates a pod.
func (s *Scene) CreatePod(p Pod) *corev1.Pod {
	s.t.Helper()
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Create(s.ctx, p.object(), metav1.CreateOptions{})
	if err != nil {
		s.t.Fatalf("creating pod %q: %v", p.Name, err)
	}
	return pod
}

// Submit creates a claim and a pod of the same name that holds it and may run on some nodes.
func (s *Scene) Submit(c Claim, nodes ...string) {
	s.t.Helper()
	s.CreateClaim(c)
	s.CreatePod(Pod{Name: c.Name, Nodes: nodes, Claims: []string{c.Name}})
}

// Place submits a claim and waits until its pod is bound.
func (s *Scene) Place(c Claim, nodes ...string) Allocation {
	s.t.Helper()
	s.Submit(c, nodes...)
	s.WaitBound(c.Name)
	return s.Allocation(c.Name)
}

// Occupy takes whole GPUs of a node, each by a pod of its own, named like the GPU: "busy-NODE-POSITION".
func (s *Scene) Occupy(node string, positions ...int) {
	s.t.Helper()
	for _, position := range positions {
		s.Submit(Claim{Name: busy(node, position), Requests: Requests(GPUs("gpu", 1, At(position)))}, node)
	}
	for _, position := range positions {
		s.WaitBound(busy(node, position))
	}
}

// Vacate ends what Occupy started for some GPUs.
func (s *Scene) Vacate(node string, positions ...int) {
	s.t.Helper()
	for _, position := range positions {
		s.Finish(busy(node, position))
	}
}

func busy(node string, position int) string { return fmt.Sprintf("busy-%s-%d", node, position) }

// Finish deletes pods and the claims of the same names and waits until they are gone.
func (s *Scene) Finish(names ...string) {
	s.t.Helper()
	pods, claims := s.Client.CoreV1().Pods(s.Namespace), s.Client.ResourceV1().ResourceClaims(s.Namespace)
	for _, name := range names {
		if err := pods.Delete(s.ctx, name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatalf("deleting pod %q: %v", name, err)
		}
		if err := claims.Delete(s.ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatalf("deleting claim %q: %v", name, err)
		}
	}
	for _, name := range names {
		s.Eventually(func(ctx context.Context) string {
			_, podErr := pods.Get(ctx, name, metav1.GetOptions{})
			_, claimErr := claims.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(podErr) && apierrors.IsNotFound(claimErr) {
				return ""
			}
			return fmt.Sprintf("pod or claim %q is still there (%v, %v)", name, podErr, claimErr)
		})
	}
}

// WaitBound waits until a pod is bound and returns its node.
func (s *Scene) WaitBound(name string) string {
	s.t.Helper()
	var node string
	s.Eventually(func(ctx context.Context) string {
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if node = pod.Spec.NodeName; node != "" {
			return ""
		}
		return fmt.Sprintf("pod %q is not bound: %s", name, refusal(pod))
	})
	return node
}

// WaitPending waits until the scheduler has said of a pod that it is unschedulable in words that contain all the parts, and
// returns the words.
func (s *Scene) WaitPending(name string, parts ...string) string {
	s.t.Helper()
	var message string
	s.Eventually(func(ctx context.Context) string {
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName != "" {
			s.t.Fatalf("pod %q was bound to %q; it has to stay pending with %q", name, pod.Spec.NodeName, parts)
		}
		message = refusal(pod)
		if message == "" {
			return fmt.Sprintf("pod %q has no verdict", name)
		}
		for _, part := range parts {
			if !strings.Contains(message, part) {
				return fmt.Sprintf("pod %q: %q does not contain %q", name, message, part)
			}
		}
		return ""
	})
	return message
}

// WaitVerdict waits until the scheduler has bound a pod or said why not, and returns the node or nothing.
func (s *Scene) WaitVerdict(name string) string {
	s.t.Helper()
	var node string
	s.Eventually(func(context.Context) string {
		pod := s.pod(name)
		if node = pod.Spec.NodeName; node != "" || refusal(pod) != "" {
			return ""
		}
		return fmt.Sprintf("pod %q has no verdict", name)
	})
	return node
}

// Retry runs try with new names until it returns true; the pod and the claim of the name are removed each time. It is for
// waiting until the scheduler has seen a change that only its verdicts show.
func (s *Scene) Retry(try func(name string) bool) {
	s.t.Helper()
	deadline := time.Now().Add(Patience)
	for n := 0; ; n++ {
		name := fmt.Sprintf("probe-%d", n)
		done := try(name)
		s.Finish(name)
		if done {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("after %d tries, the scheduler has not seen the change", n+1)
		}
	}
}

// StillPending checks that a pod is not bound.
func (s *Scene) StillPending(name string) {
	s.t.Helper()
	if node := s.pod(name).Spec.NodeName; node != "" {
		s.t.Fatalf("pod %q was bound to %q; it has to stay pending", name, node)
	}
}

// refusal returns why the scheduler left the pod pending, or nothing if it has not said so.
func refusal(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// WaitEvent waits until an event about a pod contains all the parts.
func (s *Scene) WaitEvent(pod string, parts ...string) {
	s.t.Helper()
	s.Eventually(func(ctx context.Context) string {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var seen []string
		for i := range list.Items {
			event := &list.Items[i]
			if event.InvolvedObject.Name != pod {
				continue
			}
			text := event.Reason + ": " + event.Message
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
				return ""
			}
			seen = append(seen, text)
		}
		return fmt.Sprintf("no event of pod %q contains %q; there are %q", pod, parts, seen)
	})
}

// describe shows everything that helps to understand a failure.
func (s *Scene) describe(ctx context.Context) string {
	var b strings.Builder
	fmt.Fprintf(&b, "State of namespace %q:\n", s.Namespace)
	if pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range pods.Items {
			fmt.Fprintf(&b, "  pod %s: node %q %s\n", pods.Items[i].Name, pods.Items[i].Spec.NodeName, refusal(&pods.Items[i]))
		}
	}
	if claims, err := s.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{}); err == nil {
		for i := range claims.Items {
			claim := &claims.Items[i]
			fmt.Fprintf(&b, "  claim %s/%s:", claim.Namespace, claim.Name)
			if allocation, err := s.read(ctx, claim); err != nil {
				fmt.Fprintf(&b, " %v\n", err)
			} else {
				fmt.Fprintf(&b, " %s\n", allocation)
			}
		}
	}
	if events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range events.Items {
			fmt.Fprintf(&b, "  event %s: %s: %s\n", events.Items[i].InvolvedObject.Name, events.Items[i].Reason, events.Items[i].Message)
		}
	}
	if s.scheduler != nil {
		fmt.Fprintf(&b, "End of %s:\n%s", s.scheduler.LogPath, tail(s.scheduler.LogPath, logLines))
	}
	return b.String()
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
