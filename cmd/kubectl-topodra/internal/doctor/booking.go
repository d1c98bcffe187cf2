// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
)

// grace is how long Kubernetes may take to tidy a claim up.
const grace = 5 * time.Minute

// taintOther is the key of the taint that the driver puts on GPUs that another agent advertises, too.
const taintOther = api.DriverName + "/other-allocator"

// otherAgent returns the resources by which another agent hands out NVIDIA GPUs of a node, by name.
func otherAgent(n *corev1.Node) []string {
	var names []string
	for name, q := range n.Status.Allocatable {
		text := string(name)
		if !q.IsZero() && (text == "nvidia.com/gpu" || text == "nvidia.com/gpu.shared" || strings.HasPrefix(text, "nvidia.com/mig-")) {
			names = append(names, fmt.Sprintf("%s: %s", text, q.String()))
		}
	}
	slices.Sort(names)
	return names
}

func checkOtherAllocators(s *Snapshot) []Finding {
	var out []Finding
	for _, name := range s.publishers() {
		n := s.node(name)
		if n == nil {
			continue
		}
		resources := otherAgent(n)
		if len(resources) == 0 {
			continue
		}
		f := Finding{
			Level: Error, Object: "node " + name,
			Problem: "another agent advertises its GPUs, too (" + strings.Join(resources, ", ") + "), and ours are not tainted",
			Why:     "the two do not see each other: one GPU can go to two pods",
			Mend:    "keep NVIDIA's device plugin or HAMi off the node: kubectl get daemonsets -A; then kubectl label node " + name + " with what its nodeSelector excludes",
		}
		if tainted(s.Slices, name) {
			f.Level = Warning
			f.Problem = "another agent advertises its GPUs, too (" + strings.Join(resources, ", ") + "); ours are tainted, so no new claim gets them"
			f.Why = "claims wait that could have its GPUs"
		}
		out = append(out, f)
	}
	return out
}

// tainted tells whether every device of a node has the taint that keeps claims away from it.
func tainted(published []resourceapi.ResourceSlice, node string) bool {
	for i := range published {
		spec := &published[i].Spec
		if spec.NodeName == nil || *spec.NodeName != node {
			continue
		}
		for k := range spec.Devices {
			if !slices.ContainsFunc(spec.Devices[k].Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taintOther }) {
				return false
			}
		}
	}
	return true
}

// checkOtherSchedulers finds pods with our claims that name different schedulers.
func checkOtherSchedulers(s *Snapshot) []Finding {
	holders := map[string]string{} // pod UID → claim
	for i := range s.Claims {
		if len(ourResults(&s.Claims[i])) == 0 {
			continue
		}
		for _, ref := range s.Claims[i].Status.ReservedFor {
			holders[string(ref.UID)] = s.Claims[i].Namespace + "/" + s.Claims[i].Name
		}
	}
	byName := map[string][]string{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if _, ok := holders[string(p.UID)]; ok && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			byName[p.Spec.SchedulerName] = append(byName[p.Spec.SchedulerName], p.Namespace+"/"+p.Name)
		}
	}
	if len(byName) < 2 {
		return nil
	}
	var out []Finding
	for name, pods := range byName {
		if name == api.SchedulerName {
			continue
		}
		slices.Sort(pods)
		out = append(out, Finding{
			Level: Error, Object: "scheduler " + name,
			Problem: fmt.Sprintf("it has placed %s with our GPUs besides topodra-scheduler, such as %s", several(len(pods), "pod"), pods[0]),
			Why:     "two schedulers that allocate the same GPUs can book one twice; guarantees do not hold for such pods",
			Mend:    "set spec.schedulerName to topodra-scheduler in their manifests and create them again; the policy topodra-allocation refuses it in future",
		})
	}
	return out
}

// ourResults are the results of a claim for devices of our driver that it does not only look at.
func ourResults(c *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == api.DriverName && (r.AdminAccess == nil || !*r.AdminAccess) {
			out = append(out, r)
		}
	}
	return out
}

// booked is who has a device.
type booked struct {
	claims []string
	// exclusive is set when one of them has all of it.
	exclusive bool
	consumed  map[resourceapi.QualifiedName]resource.Quantity
}

// checkBookings adds up what claims have of each device.
func checkBookings(s *Snapshot) []Finding {
	devices := map[[2]string]*resourceapi.Device{}
	for i := range s.Slices {
		for k := range s.Slices[i].Spec.Devices {
			devices[[2]string{s.Slices[i].Spec.Pool.Name, s.Slices[i].Spec.Devices[k].Name}] = &s.Slices[i].Spec.Devices[k]
		}
	}
	bookings := map[[2]string]*booked{}
	for i := range s.Claims {
		for _, r := range ourResults(&s.Claims[i]) {
			key := [2]string{r.Pool, r.Device}
			if bookings[key] == nil {
				bookings[key] = &booked{consumed: map[resourceapi.QualifiedName]resource.Quantity{}}
			}
			bookings[key].add(s.Claims[i].Namespace+"/"+s.Claims[i].Name, r.ConsumedCapacity)
		}
	}
	var out []Finding
	for key, b := range bookings {
		problem := b.problem(devices[key])
		if problem == "" {
			continue
		}
		slices.Sort(b.claims)
		out = append(out, Finding{
			Level: Error, Object: "device " + key[0] + "/" + key[1], Problem: problem + ": claims " + strings.Join(slices.Compact(b.claims), ", "),
			Why: "their pods disturb each other: memory runs out, limits do not hold", Mend: "delete the pods of all of these claims but one; then see \"other schedulers\" and \"policies\"",
		})
	}
	return out
}

func (b *booked) add(claim string, consumed map[resourceapi.QualifiedName]resource.Quantity) {
	b.claims = append(b.claims, claim)
	b.exclusive = b.exclusive || len(consumed) == 0
	for name, q := range consumed {
		sum := b.consumed[name]
		sum.Add(q)
		b.consumed[name] = sum
	}
}

// problem says what is wrong with the bookings of a device, which is nil if it is not published.
func (b *booked) problem(d *resourceapi.Device) string {
	if b.exclusive && len(b.claims) > 1 {
		return "it is booked " + several(len(b.claims), "time") + " although it is for one claim at a time"
	}
	if d == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(b.consumed)) {
		q, has := b.consumed[name], d.Capacity[name]
		if total := has.Value; q.Cmp(total) > 0 && len(b.claims) > 1 {
			return fmt.Sprintf("%s of its %s of %s are booked", q.String(), total.String(), name)
		}
	}
	return ""
}

// checkClaims finds claims that hold GPUs for nobody, or GPUs that are not there.
func checkClaims(s *Snapshot) []Finding {
	var out []Finding
	podUIDs := map[string]bool{}
	for i := range s.Pods {
		podUIDs[string(s.Pods[i].UID)] = true
	}
	for i := range s.Claims {
		c := &s.Claims[i]
		if len(ourResults(c)) == 0 {
			continue
		}
		object := "claim " + c.Namespace + "/" + c.Name
		if f := s.userless(c, podUIDs); f != nil {
			f.Object = object
			out = append(out, *f)
		}
		if c.DeletionTimestamp != nil && s.clock().Sub(c.DeletionTimestamp.Time) > grace {
			out = append(out, Finding{
				Level: Warning, Object: object, Problem: fmt.Sprintf("it is being deleted since %s", s.clock().Sub(c.DeletionTimestamp.Time).Round(time.Minute)),
				Why: "it still holds its GPUs", Mend: fmt.Sprintf("kubectl get resourceclaim -n %s %s -o jsonpath='{.metadata.finalizers} {.status.reservedFor}'", c.Namespace, c.Name),
			})
		}
		if gone := s.unpublished(c); len(gone) > 0 && s.has(Slices) {
			out = append(out, Finding{
				Level: Warning, Object: object, Problem: "it holds devices that are not published any more: " + strings.Join(gone, ", "),
				Why: "its pods may run without these GPUs, or cannot start", Mend: "delete its pods when they can be: kubectl topodra status; the node's driver says what became of the GPU",
			})
		}
	}
	return out
}

// userless says what is wrong with the users of a claim.
func (s *Snapshot) userless(c *resourceapi.ResourceClaim, podUIDs map[string]bool) *Finding {
	mend := fmt.Sprintf("kubectl logs -n kube-system -l component=kube-controller-manager; if the claim is not needed: kubectl delete resourceclaim -n %s %s", c.Namespace, c.Name)
	if len(c.Status.ReservedFor) == 0 {
		at := c.Status.Allocation.AllocationTimestamp
		if at != nil && s.clock().Sub(at.Time) < grace {
			return nil
		}
		return &Finding{Level: Warning, Problem: "it holds GPUs, but no pod uses it", Why: "these GPUs are lost to others; kube-controller-manager should have freed them", Mend: mend}
	}
	if !s.has(Pods) {
		return nil
	}
	for _, owner := range c.OwnerReferences {
		if owner.Kind == "Pod" && !podUIDs[string(owner.UID)] {
			return &Finding{
				Level: Warning, Problem: fmt.Sprintf("it belongs to pod %q, which is gone", owner.Name), Why: "these GPUs are lost to others; garbage collection should have removed it", Mend: mend,
			}
		}
	}
	for _, ref := range c.Status.ReservedFor {
		if ref.Resource == "pods" && podUIDs[string(ref.UID)] || ref.Resource != "pods" {
			return nil
		}
	}
	return &Finding{
		Level: Warning, Problem: fmt.Sprintf("it is reserved for pod %q, which is gone", c.Status.ReservedFor[0].Name),
		Why: "these GPUs are lost to others; kube-controller-manager should have freed them", Mend: mend,
	}
}

// unpublished are devices of a claim that no slice has.
func (s *Snapshot) unpublished(c *resourceapi.ResourceClaim) []string {
	var gone []string
	for _, r := range ourResults(c) {
		found := slices.ContainsFunc(s.Slices, func(sl resourceapi.ResourceSlice) bool {
			return sl.Spec.Pool.Name == r.Pool && slices.ContainsFunc(sl.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == r.Device })
		})
		if !found {
			gone = append(gone, r.Pool+"/"+r.Device)
		}
	}
	slices.Sort(gone)
	return slices.Compact(gone)
}
