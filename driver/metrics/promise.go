// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/internal/owners"
)

// key is what a series of a container is about.
type key struct{ namespace, pod, container, claim, device string }

// labels in the order of ofContainer.
func (k key) labels() []string {
	return []string{k.namespace, k.pod, k.container, k.claim, k.device}
}

// compareKeys orders keys.
func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.container, b.container),
		cmp.Compare(a.claim, b.claim), cmp.Compare(a.device, b.device))
}

// sortedKeys returns the keys in order.
func sortedKeys[V any](m map[key]V) []key { return slices.SortedFunc(maps.Keys(m), compareKeys) }

// amounts of one device, added up over shares.
type amounts struct {
	// memoryBytes and computePercent are booked.
	memoryBytes, computePercent int64

	// shares counts allocation results, without those for admin access.
	shares int

	// memoryLimitBytes and computeLimitPercent are 0 without limit.
	memoryLimitBytes, computeLimitPercent int64

	// unlimited and bestEffort say that one of the shares has no limit at all, or
	// none of compute. The sum then has none, either.
	unlimited, bestEffort bool
}

// add adds a device of a record. offered is the memory of the whole device.
func (a *amounts) add(device *checkpoint.Device, offered int64) {
	memory, compute := booked(device, offered)
	a.memoryBytes += memory
	a.computePercent += compute
	if !device.AdminAccess {
		a.shares++
	}
	limit := device.Limit
	a.unlimited = a.unlimited || limit == nil
	a.bestEffort = a.bestEffort || limit == nil || limit.CoresPercent == 0
	if limit != nil {
		a.memoryLimitBytes += limit.MemoryMiB << 20
		a.computeLimitPercent = min(a.computeLimitPercent+limit.CoresPercent, 100)
	}
	if a.unlimited {
		a.memoryLimitBytes = 0
	}
	if a.bestEffort {
		a.computeLimitPercent = 0
	}
}

// booked returns what an allocation result takes of its device.
func booked(device *checkpoint.Device, offered int64) (memoryBytes, computePercent int64) {
	switch {
	case device.AdminAccess:
		return 0, 0
	case len(device.Consumed) > 0:
		return device.Consumed[string(api.CapacityMemory)], device.Consumed[string(api.CapacityCores)]
	case device.MemoryMiB > 0:
		return device.MemoryMiB << 20, 100
	default:
		return offered, 100
	}
}

// promises is what prepared claims promise.
type promises struct {
	claims int

	// devices by UUID.
	devices map[string]*amounts

	// containers that may use them.
	containers map[key]*amounts

	// index is the position of a container in its pod, where it is known.
	index map[container]int
}

// container names a container.
type container struct{ namespace, pod, name string }

// promise adds up what the document says. known are the containers that exist, by
// ID, and offered the memory of devices by UUID. Pure.
func promise(document *checkpoint.Document, known map[string]*owners.Owner, offered map[string]int64) *promises {
	out := &promises{devices: map[string]*amounts{}, containers: map[key]*amounts{}, index: map[container]int{}}
	if document == nil {
		return out
	}
	out.claims = len(document.Claims)
	byClaim := ownersByClaim(known)
	for _, uid := range document.SortedUIDs() {
		claim := document.Claims[uid]
		for i := range claim.Devices {
			device := &claim.Devices[i]
			get(out.devices, device.UUID).add(device, offered[device.UUID])
		}
		for _, user := range usersOf(claim, byClaim[[2]string{claim.Namespace, claim.Name}]) {
			if user.index >= 0 {
				out.index[container{claim.Namespace, user.pod, user.container}] = user.index
			}
			for _, position := range user.devices {
				device := &claim.Devices[position]
				at := key{claim.Namespace, user.pod, user.container, claim.Name, device.UUID}
				get(out.containers, at).add(device, offered[device.UUID])
			}
		}
	}
	return out
}

// ownersByClaim finds the containers that have devices by a claim, by its namespace
// and name.
func ownersByClaim(known map[string]*owners.Owner) map[[2]string][]*owners.Owner {
	out := make(map[[2]string][]*owners.Owner, len(known))
	for _, owner := range known {
		for i := range owner.GPUs {
			for _, claim := range owner.GPUs[i].Claims {
				at := [2]string{owner.Namespace, claim}
				if have := out[at]; len(have) == 0 || have[len(have)-1] != owner {
					out[at] = append(have, owner)
				}
			}
		}
	}
	return out
}

// get returns the entry, which is made if needed.
func get[K comparable, V any](m map[K]*V, at K) *V {
	if m[at] == nil {
		m[at] = new(V)
	}
	return m[at]
}

// user is a container that uses devices of a claim.
type user struct {
	pod, container string
	index          int // in the pod; -1 when unknown
	devices        []int
}

// usersOf lists the containers that are known to use the claim, in order: those
// that were found when it was prepared, and those that have been made since. A pod of which no container is known has one without a name, so that
// its promises are told at once.
func usersOf(claim *checkpoint.Claim, made []*owners.Owner) []user {
	found := map[[2]string]user{} // by pod and container
	pods := map[types.UID]string{}
	for _, consumer := range claim.Consumers {
		pods[consumer.UID] = consumer.Name
	}
	for _, group := range claim.Groups {
		uid, name, _ := strings.Cut(group.Container, "/")
		if pod, ok := pods[types.UID(uid)]; ok {
			found[[2]string{pod, name}] = user{pod, name, -1, group.Devices}
		}
	}
	for _, u := range claim.Users {
		if pod, ok := pods[u.Pod]; ok {
			found[[2]string{pod, u.Container}] = user{pod, u.Container, u.Index, u.Devices}
		}
	}
	for _, owner := range made {
		if _, ok := found[[2]string{owner.Pod, owner.Container}]; ok {
			continue
		}
		if devices := devicesOf(claim, owner); len(devices) > 0 {
			found[[2]string{owner.Pod, owner.Container}] = user{owner.Pod, owner.Container, -1, devices}
		}
	}
	out := slices.Collect(maps.Values(found))
	for _, pod := range pods {
		if !slices.ContainsFunc(out, func(u user) bool { return u.pod == pod }) {
			all := make([]int, len(claim.Devices))
			for i := range all {
				all[i] = i
			}
			out = append(out, user{pod, "", -1, all})
		}
	}
	slices.SortFunc(out, func(a, b user) int {
		return cmp.Or(cmp.Compare(a.pod, b.pod), cmp.Compare(a.container, b.container))
	})
	return out
}

// devicesOf lists the positions of the claim's devices that the container has.
func devicesOf(claim *checkpoint.Claim, owner *owners.Owner) []int {
	var out []int
	for i := range claim.Devices {
		has := func(g owners.GPU) bool {
			return g.UUID == claim.Devices[i].UUID && slices.Contains(g.Claims, claim.Name)
		}
		if slices.ContainsFunc(owner.GPUs, has) {
			out = append(out, i)
		}
	}
	return out
}

// send tells what containers and devices were promised.
func (p *promises) send(out sink, published []Device) {
	out.send(preparedClaims, float64(p.claims))
	for i := range published {
		uuid, of := published[i].UUID, p.devices[published[i].UUID]
		if of == nil {
			of = &amounts{}
		}
		out.send(gpuMemoryAllocated, float64(of.memoryBytes), uuid)
		out.send(gpuComputeAllocated, ratio(of.computePercent), uuid)
		out.send(gpuShares, float64(of.shares), uuid)
	}
	for at, of := range p.containers {
		out.send(containerMemoryAllocated, float64(of.memoryBytes), at.labels()...)
		out.send(containerComputeAllocated, ratio(of.computePercent), at.labels()...)
		if of.memoryLimitBytes > 0 {
			out.send(containerMemoryLimit, float64(of.memoryLimitBytes), at.labels()...)
		}
		if of.computeLimitPercent > 0 {
			out.send(containerComputeLimit, ratio(of.computeLimitPercent), at.labels()...)
		}
	}
}

// ratio of a percentage.
func ratio[N int64 | uint32](percent N) float64 { return float64(percent) / 100 }
