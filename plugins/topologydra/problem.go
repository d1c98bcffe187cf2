// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// problem is what one combination of alternatives asks of one pool.
type problem struct {
	pool   *kube.Pool
	fabric *fabric
	// items that want GPUs of this pool, in the allocator's order.
	items []item
	// requests of items, in the same order.
	requests []placement.Request
	// held are the pool's GPUs that the pod has already.
	held      topology.Mask
	inventory placement.Inventory
	// groups of items with one policy, guarantees first.
	groups []group
	// others says that items which are not in the problem may need devices of
	// the pool.
	others bool
}

// group is the items of a problem that share a policy.
type group struct {
	policy policy
	// items are indices into problem.items.
	items []int
}

// newProblems distributes the items of a combination over the pools of a node.
// Items that match no planned pool stay with the allocator alone. A reason is
// returned when the combination cannot be planned.
func (p *nodePlanner) newProblems(ctx context.Context, view *kube.View, node *kube.Node, d *demand, items []item) ([]*problem, string, error) {
	byPool := map[*kube.Pool]*problem{}
	var problems []*problem
	for _, it := range items {
		if it.Admin {
			continue
		}
		pool, match, reason, err := p.home(ctx, node, it)
		switch {
		case err != nil:
			return nil, "", err
		case reason != "":
			return nil, reason, nil
		case pool == nil:
			continue
		}
		pr := byPool[pool]
		if pr == nil {
			pr = &problem{pool: pool, fabric: p.fabrics.of(ctx, pool)}
			byPool[pool] = pr
			problems = append(problems, pr)
		}
		pr.add(view, it, match)
	}
	for _, pr := range problems {
		pr.finish(view, d)
		for _, it := range items {
			if it.Admin || slices.ContainsFunc(pr.items, it.is) {
				continue
			}
			match, err := p.matcher.Match(ctx, pr.pool, it.Request)
			if err != nil {
				return nil, "", err
			}
			pr.others = pr.others || match.Count > 0
		}
	}
	return problems, "", nil
}

// home returns the planned pool whose GPUs the item can get; nil if there is none.
func (p *nodePlanner) home(ctx context.Context, node *kube.Node, it item) (*kube.Pool, *kube.Match, string, error) {
	var home *kube.Pool
	var homeMatch *kube.Match
	for _, pool := range node.Pools {
		if pool.Order == kube.ObstacleIncomplete || pool.Order == kube.ObstacleInvalid {
			// The allocator does not touch it either.
			continue
		}
		match, err := p.matcher.Match(ctx, pool, it.Request)
		if err != nil {
			return nil, nil, "", err
		}
		fab := p.fabrics.of(ctx, pool)
		if fab.eligible(match) == 0 {
			continue
		}
		if pool.Order != kube.NoObstacle {
			return nil, nil, string(pool.Order), nil
		}
		if home != nil {
			return nil, nil, fallbackSeveralPools, nil
		}
		home, homeMatch = pool, match
	}
	return home, homeMatch, "", nil
}

// eligible returns the positions that match; none without a class.
func (f *fabric) eligible(match *kube.Match) topology.Mask {
	var mask topology.Mask
	if f.class == nil || match.Count == 0 {
		return 0
	}
	for position, i := range f.device {
		if i >= 0 && match.Eligible[i] {
			mask = mask.With(position)
		}
	}
	return mask
}

// add appends an item.
func (pr *problem) add(view *kube.View, it item, match *kube.Match) {
	request := placement.Request{Name: it.Name, Count: clampInt(it.Count), Eligible: pr.fabric.eligible(match)}
	if it.All {
		request.Count = request.Eligible.Count()
	}
	whole, exclusive := true, true
	for position := range request.Eligible.All() {
		i := pr.fabric.device[position]
		if match.Use[i] == nil {
			continue
		}
		use := pr.fabric.names.use(match.Use[i])
		exclusive = false
		whole = whole && use.MemoryMiB > 0 && use.MemoryMiB == pr.fabric.total[position].MemoryMiB
		request.Use = maximum(request.Use, use)
	}
	// A request for all of a device's memory has no one amount on a machine with
	// different GPUs, but nobody can share with it.
	request.Exclusive = exclusive || whole
	request.Eligible &^= pr.full(view, request, match)
	pr.items = append(pr.items, it)
	pr.requests = append(pr.requests, request)
}

// full returns eligible GPUs that lack room in a capacity which the planner does
// not know. It would take them for free.
func (pr *problem) full(view *kube.View, request placement.Request, match *kube.Match) topology.Mask {
	var mask topology.Mask
	for position := range request.Eligible.All() {
		device := &pr.pool.Devices[pr.fabric.device[position]]
		if view.Idle(device) || view.Exclusive(device) || view.Fits(device, match.Use[pr.fabric.device[position]]) {
			continue
		}
		free := minus(pr.fabric.total[position], pr.fabric.names.consumed(view.Consumed(device)))
		if !request.Exclusive && minus(request.Use, free) == (placement.Capacity{}) {
			mask = mask.With(position)
		}
	}
	return mask
}

// finish computes what depends on all items.
func (pr *problem) finish(view *kube.View, d *demand) {
	var eligible topology.Mask
	for i := range pr.requests {
		eligible |= pr.requests[i].Eligible
	}
	for i := range d.held {
		if d.held[i].Driver != pr.pool.Driver || d.held[i].Pool != pr.pool.Name {
			continue
		}
		for position, device := range pr.fabric.device {
			if device >= 0 && pr.pool.Devices[device].Name == d.held[i].Device {
				pr.held = pr.held.With(position)
			}
		}
	}
	pr.inventory = pr.fabric.inventory(view, pr.pool, eligible)
	for _, guarantees := range []bool{true, false} {
		for i := range pr.items {
			if p := pr.items[i].policies.forDriver(pr.pool.Driver); p.required() == guarantees {
				pr.join(p, i)
			}
		}
	}
}

// join adds an item to the group of its policy.
func (pr *problem) join(p policy, i int) {
	for g := range pr.groups {
		if pr.groups[g].policy == p {
			pr.groups[g].items = append(pr.groups[g].items, i)
			return
		}
	}
	pr.groups = append(pr.groups, group{policy: p, items: []int{i}})
}

// ignored says that nothing in the problem is to be chosen by topology.
func (pr *problem) ignored() bool {
	for i := range pr.groups {
		if pr.groups[i].policy.Mode != placement.None {
			return false
		}
	}
	return true
}

// demandOf returns what a group asks for, given what the pod holds by now.
func (pr *problem) demandOf(d *demand, g *group, held topology.Mask) placement.Demand {
	demand := placement.Demand{Held: held, Policy: g.policy.Policy, Communicates: g.policy.communicates}
	for _, i := range g.items {
		demand.Requests = append(demand.Requests, pr.requests[i])
	}
	for c, claim := range d.claims {
		for k := range claim.claim.Spec.Devices.Constraints {
			constraint := &claim.claim.Spec.Devices.Constraints[k]
			tied := placement.Constraint{}
			for j, i := range g.items {
				if pr.items[i].claim == c && applies(constraint, pr.items[i].Request) {
					tied.Requests = append(tied.Requests, j)
				}
			}
			if len(tied.Requests) > 0 && pr.constrain(&tied, constraint) {
				demand.Constraints = append(demand.Constraints, tied)
			}
		}
	}
	return demand
}

// constrain fills in the kind and the values. It returns false for a constraint
// that the planner cannot express; the allocator will enforce it.
func (pr *problem) constrain(tied *placement.Constraint, constraint *resourceapi.DeviceConstraint) bool {
	name := constraint.MatchAttribute
	tied.Kind = placement.Match
	if name == nil {
		name = constraint.DistinctAttribute
		tied.Kind = placement.Distinct
	}
	if name == nil {
		return false
	}
	numbers := map[any]int32{}
	for _, i := range pr.fabric.device {
		value := int32(-1)
		if i >= 0 {
			attribute, found := lookup(pr.pool.Driver, pr.pool.Devices[i].Device, *name)
			if found {
				key := scalar(attribute)
				if key == nil {
					return false
				}
				number, known := numbers[key]
				if !known {
					number = int32(len(numbers))
					numbers[key] = number
				}
				value = number
			}
		}
		tied.Values = append(tied.Values, value)
	}
	return true
}

// lookup finds an attribute by its full name; an unqualified name in a slice
// belongs to the driver's domain.
func lookup(driver string, device *resourceapi.Device, name resourceapi.FullyQualifiedName) (resourceapi.DeviceAttribute, bool) {
	if attribute, ok := device.Attributes[resourceapi.QualifiedName(name)]; ok {
		return attribute, true
	}
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified || domain != driver {
		return resourceapi.DeviceAttribute{}, false
	}
	attribute, ok := device.Attributes[resourceapi.QualifiedName(id)]
	return attribute, ok
}

// versionValue keeps versions apart from strings.
type versionValue string

// scalar returns a comparable value, nil for lists and unknown kinds.
func scalar(attribute resourceapi.DeviceAttribute) any {
	switch {
	case attribute.StringValue != nil:
		return *attribute.StringValue
	case attribute.IntValue != nil:
		return *attribute.IntValue
	case attribute.BoolValue != nil:
		return *attribute.BoolValue
	case attribute.VersionValue != nil:
		return versionValue(*attribute.VersionValue)
	default:
		return nil
	}
}
