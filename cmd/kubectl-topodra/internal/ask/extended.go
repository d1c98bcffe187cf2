// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// extendedClaim returns the claim for the extended resources of a pod: the one that the pod's status names, or else what the
// scheduler would ask for. Nil if no class backs a resource of the pod.
func extendedClaim(pod *corev1.Pod, world *World) *Claim {
	names := ExtendedResources(pod, world.Classes)
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		c := &Claim{Source: Extended, Name: s.ResourceClaimName, Object: world.Claims[s.ResourceClaimName], Resources: names}
		if c.Object == nil {
			c.Problem = fmt.Sprintf("ResourceClaim %q for its extended resources is gone", c.Name)
		}
		return c
	}
	if len(names) == 0 {
		return nil
	}
	object := &resourceapi.ResourceClaim{}
	object.Namespace = pod.Namespace
	for _, name := range names {
		object.Spec.Devices.Requests = append(object.Spec.Devices.Requests, extendedRequests(pod, name, classOf(name, world.Classes).Name)...)
	}
	slices.SortStableFunc(object.Spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return &Claim{Source: Extended, Object: object, Resources: names}
}

// classOf returns the class that backs a resource: the newest, then the first by name.
func classOf(resource string, classes map[string]*resourceapi.DeviceClass) *resourceapi.DeviceClass {
	var best *resourceapi.DeviceClass
	for _, c := range classes {
		if resource != resourceapi.ResourceDeviceClassPrefix+c.Name && (c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != resource) {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) || best.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < best.Name {
			best = c
		}
	}
	return best
}

// ExtendedResources returns the resources of the pod that device classes back, by name.
func ExtendedResources(pod *corev1.Pod, classes map[string]*resourceapi.DeviceClass) []string {
	var names []string
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				text := string(name)
				if !quantity.IsZero() && strings.Contains(text, "/") && !slices.Contains(names, text) && classOf(text, classes) != nil {
					names = append(names, text)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// extendedRequests returns one request per container that runs as long as the pod and, when an init container needs more devices
// than the containers that start after it or run beside it will have, one more with the difference.
func extendedRequests(pod *corev1.Pod, resource, class string) []resourceapi.DeviceRequest {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	counts := make([]int64, len(containers))
	var requests []resourceapi.DeviceRequest
	request := func(i int, count int64) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{
			Name:    fmt.Sprintf("container-%d-%s", i, containers[i].Name),
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}
	}
	wanted := func(i int) int64 {
		quantity := containers[i].Resources.Requests[corev1.ResourceName(resource)]
		return quantity.Value()
	}
	shortLived := func(i int) bool {
		policy := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways)
	}
	for i := range containers {
		if shortLived(i) {
			continue
		}
		if counts[i] = wanted(i); counts[i] > 0 {
			requests = append(requests, request(i, counts[i]))
		}
	}
	most, at := int64(0), -1
	for i := range containers {
		if !shortLived(i) {
			continue
		}
		missing := wanted(i)
		for _, later := range counts[i:] {
			missing -= later
		}
		if missing > most {
			most, at = missing, i
		}
	}
	if at >= 0 {
		requests = append(requests, request(at, most))
	}
	return requests
}
