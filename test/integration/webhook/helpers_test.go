// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/webhook/templates"
)

// list makes resources of names, without nvidia.com/ where that is the prefix, and values.
func list(pairs ...string) corev1.ResourceList {
	amounts := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		name := pairs[i]
		if !strings.Contains(name, "/") && name != "cpu" {
			name = "nvidia.com/" + name
		}
		amounts[corev1.ResourceName(name)] = resource.MustParse(pairs[i+1])
	}
	return amounts
}

// container makes a container with limits.
func container(name string, limits ...string) corev1.Container {
	return corev1.Container{Name: name, Image: "example.com/nothing", Resources: corev1.ResourceRequirements{Limits: list(limits...)}}
}

// pod makes a pod for the default scheduler with one container.
func pod(name string, limits ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{container("app", limits...)}},
	}
}

// on binds a pod to a node by its label.
func on(node string, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	return p
}

// create makes a pod, which must be admitted.
func create(t *testing.T, s *testbed.Scene, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating pod %q: %v", p.Name, err)
	}
	return created
}

// place makes a pod, waits until it has a node and returns the claim that it got by conversion.
func place(t *testing.T, s *testbed.Scene, p *corev1.Pod) *resourceapi.ResourceClaim {
	t.Helper()
	create(t, s, p)
	s.WaitBound(p.Name)
	return claimOf(t, s, p.Name)
}

// claimOf returns the converted claim of a pod.
func claimOf(t *testing.T, s *testbed.Scene, name string) *resourceapi.ResourceClaim {
	t.Helper()
	found, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range found.Status.ResourceClaimStatuses {
		if strings.HasPrefix(status.Name, "topodra-gpus") {
			claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(t.Context(), *status.ResourceClaimName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return claim
		}
	}
	t.Fatalf("pod %q has no converted claim: %+v", name, found.Spec.ResourceClaims)
	return nil
}

// gpus returns the GPUs that requests of a claim have, by position.
func gpus(s *testbed.Scene, claim *resourceapi.ResourceClaim, requests ...string) topology.Mask {
	allocation := s.Allocation(claim.Name)
	var mask topology.Mask
	for name, devices := range allocation.ByRequest {
		base, _, _ := strings.Cut(name, "/")
		if len(requests) == 0 || slices.Contains(requests, base) {
			mask |= devices
		}
	}
	return mask
}

// consumed is what each device of a claim gives, "memory/cores", sorted.
func consumed(claim *resourceapi.ResourceClaim) string {
	var parts []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		memory, cores := result.ConsumedCapacity[api.CapacityMemory], result.ConsumedCapacity[api.CapacityCores]
		parts = append(parts, memory.String()+"/"+cores.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// templateNames are the templates of a scene.
func templateNames(ctx context.Context, s *testbed.Scene) []string {
	found, err := s.Client.ResourceV1().ResourceClaimTemplates(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: templates.LabelManagedBy + "=" + templates.ManagedBy})
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for i := range found.Items {
		names = append(names, found.Items[i].Name)
	}
	return names
}

// waitTemplates waits until there are so many templates.
func waitTemplates(s *testbed.Scene, n int) {
	s.Eventually(func(ctx context.Context) string {
		if names := templateNames(ctx, s); len(names) != n {
			return fmt.Sprintf("there are templates %q, there should be %d", names, n)
		}
		return ""
	})
}

// requestsOf are the requests of the converted claim that each container uses.
func requestsOf(p *corev1.Pod) map[string]string {
	uses := map[string]string{}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range containers {
			var requests []string
			for _, claim := range c.Resources.Claims {
				requests = append(requests, claim.Request)
			}
			uses[c.Name] = strings.Join(requests, ",")
		}
	}
	return uses
}

// classicLeft are the resources of the vocabulary that a pod still has.
func classicLeft(p *corev1.Pod) []string {
	left := map[string]bool{}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range containers {
			for _, amounts := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				for name := range amounts {
					if strings.HasPrefix(string(name), "nvidia.com/") {
						left[string(name)] = true
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(left))
}

// refused returns why a pod is not admitted.
func refused(t *testing.T, s *testbed.Scene, p *corev1.Pod) string {
	t.Helper()
	_, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err == nil {
		t.Fatalf("pod %q was admitted", p.Name)
	}
	return err.Error()
}
