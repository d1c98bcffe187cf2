// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/topodra/topodra/driver/checkpoint"
)

// containerKind says when in a pod's life a container runs.
type containerKind int

const (
	// kindInit runs alone among init and app containers, to its end.
	kindInit containerKind = iota

	// kindSidecar is an init container that keeps running.
	kindSidecar

	// kindApp runs after all init containers have ended or, as sidecars, begun.
	kindApp
)

// container of a pod that refers to a claim.
type container struct {
	pod       types.UID
	podName   string
	name      string
	kind      containerKind
	order     int // among the pod's init containers
	index     int // see checkpoint.User
	positions []int
	claims    []string // names of all claims that it refers to, in order
}

// String names the container for messages.
func (c *container) String() string { return fmt.Sprintf("container %q of pod %q", c.name, c.podName) }

// overlaps says whether two containers can run at the same time.
func (c *container) overlaps(other *container) bool {
	if c.pod != other.pod {
		return true
	}
	switch {
	case c.kind == kindApp && other.kind == kindApp:
		return true
	case c.kind == kindApp:
		return other.kind == kindSidecar
	case other.kind == kindApp:
		return c.kind == kindSidecar
	case c.order < other.order:
		// Both are init containers. The earlier one is still there only if it is
		// a sidecar.
		return c.kind == kindSidecar
	default:
		return other.kind == kindSidecar
	}
}

// containersOf lists the containers of the pod that refer to the claim, in the
// order in which the pod starts them, with the devices that each gets. A pod of
// the same name as a consumer but another UID must not be passed.
func containersOf(pod *corev1.Pod, claimName string, record *checkpoint.Claim) []container {
	references := podReferences{claimName: claimName, record: record, names: namesOfPodClaims(pod), extended: extendedRequests(pod, claimName)}
	var out []container
	add := func(spec *corev1.Container, kind containerKind, order, index int) {
		c := container{pod: pod.UID, podName: pod.Name, name: spec.Name, kind: kind, order: order, index: index}
		c.claims, c.positions = references.of(spec)
		if len(c.positions) > 0 {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		kind := kindInit
		if spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = kindSidecar
		}
		add(spec, kind, i, len(pod.Spec.Containers)+i)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], kindApp, 0, i)
	}
	return out
}

// podReferences resolves what containers of a pod refer to.
type podReferences struct {
	claimName string
	record    *checkpoint.Claim
	names     map[string]string   // of claims, by their names inside the pod
	extended  map[string][]string // requests of claimName, by container
}

// of returns the claims that the container refers to, and the devices that it
// has of the one claim.
func (r *podReferences) of(spec *corev1.Container) (claims []string, positions []int) {
	used := make([]bool, len(r.record.Devices))
	for _, reference := range spec.Resources.Claims {
		name, ok := r.names[reference.Name]
		if !ok {
			continue
		}
		claims = append(claims, name)
		if name == r.claimName {
			markRequests(used, r.record, reference.Request)
		}
	}
	for _, request := range r.extended[spec.Name] {
		claims = append(claims, r.claimName)
		markRequests(used, r.record, request)
	}
	for i, isUsed := range used {
		if isUsed {
			positions = append(positions, i)
		}
	}
	slices.Sort(claims)
	return slices.Compact(claims), positions
}

// namesOfPodClaims maps names inside the pod to names of ResourceClaims.
func namesOfPodClaims(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		if name, _, err := resourceclaim.Name(pod, podClaim); err == nil && name != nil {
			out[podClaim.Name] = *name
		}
	}
	return out
}

// extendedRequests maps container names to requests of a claim that the
// scheduler has made for extended resources of the pod.
func extendedRequests(pod *corev1.Pod, claimName string) map[string][]string {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil || status.ResourceClaimName != claimName {
		return nil
	}
	out := map[string][]string{}
	for _, mapping := range status.RequestMappings {
		out[mapping.ContainerName] = append(out[mapping.ContainerName], mapping.RequestName)
	}
	return out
}

// markRequests marks the devices of a request, all of them for "".
func markRequests(used []bool, record *checkpoint.Claim, request string) {
	for i := range record.Devices {
		if have := record.Devices[i].Request; request == "" || have == request || resourceclaim.BaseRequestRef(have) == request {
			used[i] = true
		}
	}
}

// checkSharing refuses a share that two containers would use at the same time.
// Each would have all of it as its limit, so that together they could take twice
// what other claims on the GPU have left for them.
func checkSharing(record *checkpoint.Claim, containers []container) *Refusal {
	for i := range containers {
		for j := range i {
			a, b := &containers[j], &containers[i]
			for _, position := range a.positions {
				device := &record.Devices[position]
				if device.Limit == nil || !slices.Contains(b.positions, position) || !a.overlaps(b) {
					continue
				}
				return refuse(ReasonSharedByContainers, "%s and %s can run at the same time and both use request %q, a share of GPU %q: "+
					"each would get all of the share; give each its own request, or the whole GPU to both", a, b, device.Request, device.UUID)
			}
		}
	}
	return nil
}

// groupsForCDI says which devices go together when limits are in the CDI spec:
// there, a device carries the same edits into every container. So a container
// with a limit must have one claim, no limited device may be in two containers,
// and nothing may be counted differently. otherClaims names the claims of this
// driver among those that the container refers to, besides this one.
func groupsForCDI(record *checkpoint.Claim, containers []container, otherClaims func(c *container) []string) ([]checkpoint.Group, *Refusal) {
	owner := map[int]*container{}
	var groups []checkpoint.Group
	for i := range containers {
		c := &containers[i]
		limited := false
		for _, position := range c.positions {
			device := &record.Devices[position]
			if device.Limit == nil {
				continue
			}
			limited = true
			if other := owner[position]; other != nil {
				return nil, refuse(ReasonNeedsNRI, "%s and %s both use request %q, a share of GPU %q, and each needs its own record of what it uses: "+
					"that takes NRI, which the container runtime does not offer; give each its own request or turn on NRI", other, c, device.Request, device.UUID)
			}
			owner[position] = c
		}
		if !limited {
			continue
		}
		if pod, _, _ := strings.Cut(groupContainer(groups), "/"); len(groups) > 0 && pod != string(c.pod) {
			return nil, refuse(ReasonNeedsNRI, "pods %q and %q both use shares of the claim: the second one to come is not known when limits are written for the first, "+
				"so that takes NRI, which the container runtime does not offer; give each pod its own claim or turn on NRI", pod, c.pod)
		}
		if others := otherClaims(c); len(others) > 0 {
			return nil, refuse(ReasonNeedsNRI, "%s uses claim %q and also %q: limits count the GPUs of a container over all its claims, and putting them together "+
				"takes NRI, which the container runtime does not offer; put the requests into one claim or turn on NRI", c, record.Name, strings.Join(others, `", "`))
		}
		groups = append(groups, checkpoint.Group{Container: string(c.pod) + "/" + c.name, Devices: c.positions})
	}
	return groups, nil
}

// groupContainer of the first group; "" without groups.
func groupContainer(groups []checkpoint.Group) string {
	if len(groups) == 0 {
		return ""
	}
	return groups[0].Container
}
