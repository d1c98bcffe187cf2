// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"
)

// Claims are the claims of a pod, in the order in which the in-tree plugin
// allocates them. All are read-only.
type Claims struct {
	// Pending need an allocation.
	Pending []*resourceapi.ResourceClaim
	// Allocated have one, or share one that is in flight.
	Allocated []AllocatedClaim
	// Extended is true when containers ask for extended resources that device
	// classes back. What has to be allocated for them depends on the node.
	Extended bool
}

// AllocatedClaim is a claim with its allocation, final or in flight.
type AllocatedClaim struct {
	*resourceapi.ResourceClaim
	Allocation *resourceapi.AllocationResult
}

// PodClaims reads the claims of a pod that passed the in-tree PreFilter, which
// has checked that they exist and belong to the pod.
func PodClaims(pod *v1.Pod, manager fwk.SharedDRAManager) (*Claims, error) {
	claims := &Claims{}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, fmt.Errorf("reading claims of pod %q: %w", pod.Namespace+"/"+pod.Name, err)
		}
		if name == nil {
			continue
		}
		claim, err := manager.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil, fmt.Errorf("reading claim %q: %w", pod.Namespace+"/"+*name, err)
		}
		allocation := claim.Status.Allocation
		if allocation == nil {
			allocation = manager.ResourceClaims().GetPendingAllocation(claim.UID)
		}
		if allocation == nil {
			claims.Pending = append(claims.Pending, claim)
		} else {
			claims.Allocated = append(claims.Allocated, AllocatedClaim{claim, allocation})
		}
	}
	for name := range extendedResources(pod) {
		if manager.DeviceClassResolver().GetDeviceClass(name) != nil {
			claims.Extended = true
		}
	}
	return claims, nil
}

// extendedResources returns the pod's names of resources that a class may back.
func extendedResources(pod *v1.Pod) map[v1.ResourceName]bool {
	names := map[v1.ResourceName]bool{}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				if !quantity.IsZero() && schedutil.IsDRAExtendedResourceName(name) {
					names[name] = true
				}
			}
		}
	}
	return names
}

// ExtendedClaim returns a claim with the requests that the in-tree plugin makes
// on this node for the pod's extended resources, nil if there are none: a node
// that offers a resource by a device plugin needs no devices for it.
func ExtendedClaim(pod *v1.Pod, node fwk.NodeInfo, resolver fwk.DeviceClassResolver) *resourceapi.ResourceClaim {
	var requests []resourceapi.DeviceRequest
	names := make([]v1.ResourceName, 0, 1)
	for name := range extendedResources(pod) {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		class := resolver.GetDeviceClass(name)
		if class == nil || node.GetAllocatable().GetScalarResources()[name] != 0 {
			continue
		}
		requests = append(requests, extendedRequests(pod, name, class.Name)...)
	}
	if len(requests) == 0 {
		return nil
	}
	slices.SortStableFunc(requests, func(a, b resourceapi.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name = pod.Namespace, pod.Name+"-extended-resources"
	claim.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	claim.Spec.Devices.Requests = requests
	return claim
}

// extendedRequests returns one request per container that runs as long as the
// pod and, when an init container needs more devices than the containers that
// start after it or run beside it will have, one more with the difference.
func extendedRequests(pod *v1.Pod, name v1.ResourceName, className string) []resourceapi.DeviceRequest {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	counts := make([]int64, len(containers))
	var requests []resourceapi.DeviceRequest
	for i := range containers {
		if shortLived(pod, i, &containers[i]) {
			continue
		}
		counts[i] = wanted(&containers[i], name)
		if counts[i] > 0 {
			requests = append(requests, extendedRequest(i, &containers[i], name, className, counts[i]))
		}
	}
	var extra *resourceapi.DeviceRequest
	for i := range containers {
		if !shortLived(pod, i, &containers[i]) {
			continue
		}
		missing := wanted(&containers[i], name)
		for _, later := range counts[i:] {
			missing -= later
		}
		if missing > 0 && (extra == nil || extra.Exactly.Count < missing) {
			extra = new(extendedRequest(i, &containers[i], name, className, missing))
		}
	}
	if extra != nil {
		requests = append(requests, *extra)
	}
	return requests
}

// shortLived says whether container i ends before the pod's main containers start.
func shortLived(pod *v1.Pod, i int, container *v1.Container) bool {
	sidecar := container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
	return i < len(pod.Spec.InitContainers) && !sidecar
}

// wanted returns how many units a container asks for.
func wanted(container *v1.Container, name v1.ResourceName) int64 {
	quantity, ok := container.Resources.Requests[name]
	if !ok {
		return 0
	}
	count, ok := quantity.AsInt64()
	if !ok {
		return 0
	}
	return count
}

// extendedRequest names the request as the in-tree plugin does: by the position
// of the container, and of the resource among all that the container asks for.
func extendedRequest(i int, container *v1.Container, name v1.ResourceName, className string, count int64) resourceapi.DeviceRequest {
	before := 0
	for other := range container.Resources.Requests {
		if other < name {
			before++
		}
	}
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, before),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: className, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		},
	}
}
