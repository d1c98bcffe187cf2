// SPDX-License-Identifier: Apache-2.0

package livestate

import (
	"cmp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
)

// hold enters a claim at the GPUs that it holds. Devices that are not in the picture any more are passed over.
func hold(claim *resourceapi.ResourceClaim, find func(pool string) (*pool, *Node)) {
	if claim.Status.Allocation == nil {
		return
	}
	results := claim.Status.Allocation.Devices.Results
	for i := range results {
		r := &results[i]
		if r.Driver != api.DriverName {
			continue
		}
		p, n := find(r.Pool)
		if p == nil {
			continue
		}
		at, ok := p.placed[r.Device]
		if !ok {
			continue
		}
		gpu := &n.GPUs[at]
		holder := Holder{
			Namespace: claim.Namespace, Claim: claim.Name, UID: claim.UID, Request: r.Request, Pods: podsOf(claim),
			Admin: r.AdminAccess != nil && *r.AdminAccess,
		}
		if at := claim.Status.Allocation.AllocationTimestamp; at != nil {
			holder.AllocatedAt = at.Time
		}
		if gpu.Device == r.Device {
			holder.Uses, holder.Whole = uses(r, gpu.Total)
		} else {
			holder.Device = r.Device // a part of a GPU that is not published as a whole
		}
		gpu.Holders = append(gpu.Holders, holder)
	}
}

// uses returns what one result takes of a GPU, and whether that leaves nothing for others. A result without consumed
// capacity is that of a device that cannot be shared.
func uses(r *resourceapi.DeviceRequestAllocationResult, total Capacity) (Capacity, bool) {
	if len(r.ConsumedCapacity) == 0 {
		return total, true
	}
	memory, cores, slots := r.ConsumedCapacity[api.CapacityMemory], r.ConsumedCapacity[api.CapacityCores], r.ConsumedCapacity[api.CapacitySlots]
	// Rounded up: a GPU is never shown emptier than it is.
	used := Capacity{MemoryMiB: (memory.Value() + 1<<20 - 1) >> 20, CoresPercent: cores.Value(), Slots: slots.Value()}
	return used, used.MemoryMiB >= total.MemoryMiB
}

func podsOf(claim *resourceapi.ResourceClaim) []string {
	var pods []string
	for _, ref := range claim.Status.ReservedFor {
		if ref.APIGroup == "" && ref.Resource == "pods" {
			pods = append(pods, ref.Name)
		}
	}
	slices.Sort(pods)
	return pods
}

// finish orders the holders and works out what is left.
func (n *Node) finish() {
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		slices.SortFunc(gpu.Holders, func(a, b Holder) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Claim, b.Claim), strings.Compare(a.Device, b.Device), strings.Compare(a.Request, b.Request))
		})
		for _, h := range gpu.Holders {
			if h.Admin {
				continue
			}
			if h.Whole {
				gpu.Free = Capacity{}
				continue
			}
			gpu.Free.MemoryMiB = max(0, gpu.Free.MemoryMiB-h.Uses.MemoryMiB)
			gpu.Free.CoresPercent = max(0, gpu.Free.CoresPercent-h.Uses.CoresPercent)
			gpu.Free.Slots = max(0, gpu.Free.Slots-h.Uses.Slots)
		}
	}
}
