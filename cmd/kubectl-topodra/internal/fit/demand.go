// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// Demand is what a pod asks of one node, with everything resolved that does not depend on who holds what.
type Demand struct {
	planner *Planner
	node    *livestate.Node
	class   *quality.Class
	gpus    []gpuItem
	parts   []partItem
	groups  []group
	held    topology.Mask
	also    topology.Mask
	claims  []ask.Claim
	// Missing is the first request for which nothing on the node matches; nil if there is none.
	Missing *Shortage
}

// Shortage is a request that asks for more than there is.
type Shortage struct {
	Request string
	// Wanted and Have are numbers of devices.
	Wanted, Have int
	// MIG tells that they are MIG devices.
	MIG bool
}

// gpuItem is a request for GPUs.
type gpuItem struct {
	*ask.Request
	planned placement.Request
}

// partItem is a request for MIG devices.
type partItem struct {
	*ask.Request
	eligible []string
	count    int
}

// group is the items with one policy.
type group struct {
	policy       placement.Policy
	communicates placement.Communication
	items        []int
}

// NewDemand resolves requests on a node. held are GPUs of the node that the pod has already. The error is about a selector.
func (p *Planner) NewDemand(ctx context.Context, n *livestate.Node, requests []ask.Request, claims []ask.Claim, held topology.Mask) (*Demand, error) {
	class, err := p.Class(n)
	if err != nil {
		return nil, err
	}
	d := &Demand{planner: p, node: n, class: class, held: held, claims: claims}
	for i := range requests {
		if requests[i].Admin {
			continue
		}
		if err := d.add(ctx, &requests[i]); err != nil {
			return nil, err
		}
	}
	for _, required := range []bool{true, false} {
		for i := range d.gpus {
			if (d.gpus[i].Policy.Mode == placement.Required) == required {
				d.join(i)
			}
		}
	}
	return d, nil
}

// add resolves one request.
func (d *Demand) add(ctx context.Context, r *ask.Request) error {
	item := gpuItem{Request: r, planned: placement.Request{Name: r.Name}}
	var parts []string
	whole, exclusive := true, true
	for i := range d.node.Published {
		device := &d.node.Published[i]
		use, shared, ok, err := d.planner.matches(ctx, device, r)
		if err != nil {
			return err
		}
		at, known := d.node.Position(device.Name)
		switch {
		case !ok || !known:
		case d.node.GPUs[at].Device != device.Name:
			parts = append(parts, device.Name)
		default:
			item.planned.Eligible = item.planned.Eligible.With(at)
			if shared {
				exclusive = false
				whole = whole && use.MemoryMiB > 0 && use.MemoryMiB == d.node.GPUs[at].Total.MemoryMiB
				item.planned.Use = most(item.planned.Use, use)
			}
		}
	}
	have := item.planned.Eligible.Count()
	count := r.Count
	switch {
	case have > 0:
		if r.All {
			count = have
		}
		item.planned.Count, item.planned.Exclusive = count, exclusive || whole
		d.gpus = append(d.gpus, item)
		d.also |= item.planned.Eligible
	case len(parts) > 0:
		if have = len(parts); r.All {
			count = have
		}
		d.parts = append(d.parts, partItem{Request: r, eligible: parts, count: count})
	}
	if d.Missing == nil && (have == 0 || have < count) {
		d.Missing = &Shortage{Request: r.Name, Wanted: count, Have: have, MIG: len(parts) > 0}
	}
	return nil
}

func most(a, b placement.Capacity) placement.Capacity {
	return placement.Capacity{
		MemoryMiB: max(a.MemoryMiB, b.MemoryMiB), CoresPercent: max(a.CoresPercent, b.CoresPercent), Slots: max(a.Slots, b.Slots),
	}
}

func (d *Demand) join(i int) {
	for g := range d.groups {
		if d.groups[g].policy == d.gpus[i].Policy && d.groups[g].communicates == d.gpus[i].Communicates {
			d.groups[g].items = append(d.groups[g].items, i)
			return
		}
	}
	d.groups = append(d.groups, group{policy: d.gpus[i].Policy, communicates: d.gpus[i].Communicates, items: []int{i}})
}

// Eligible are the GPUs that match some request of the demand.
func (d *Demand) Eligible() topology.Mask { return d.also }

// Answer says whether a node can serve a demand.
type Answer struct {
	// Served tells that it can.
	Served bool
	// Offer is the union of the GPUs that it would give; nil without any.
	Offer *Offer
	// Reason, Policy and Wanted say why it cannot, for GPUs; BestNow and BestWhenFree are the best sets whatever the policy.
	Reason                placement.Reason
	Policy                placement.Policy
	Wanted                int
	Free                  int // GPUs with room for one of the request's
	BestNow, BestWhenFree *Offer
	// Short is the request for MIG devices of which too few are free.
	Short *Shortage
}

// Serve plans the demand as if only the holders that count were there.
func (d *Demand) Serve(ctx context.Context, counts func(livestate.Holder) bool) (*Answer, error) {
	if d.Missing != nil {
		return &Answer{Reason: placement.ReasonTooFewEligible, Wanted: d.Missing.Wanted}, nil
	}
	if short := d.shortOfParts(counts); short != nil {
		return &Answer{Reason: placement.ReasonTooFewFree, Short: short}, nil
	}
	if len(d.gpus) == 0 {
		return &Answer{Served: true}, nil
	}
	return d.extend(ctx, 0, inventory(d.node, d.class, d.also, counts), d.held, 0)
}

// extend serves the groups from g on; given are the GPUs of those before.
func (d *Demand) extend(ctx context.Context, g int, inv placement.Inventory, held, given topology.Mask) (*Answer, error) {
	if g == len(d.groups) {
		return &Answer{Served: true, Offer: &Offer{GPUs: given, Quality: d.class.Of(given | d.held)}}, nil
	}
	group := &d.groups[g]
	demand := placement.Demand{Held: held, Policy: group.policy, Communicates: group.communicates, Constraints: d.constraints(group)}
	for _, i := range group.items {
		demand.Requests = append(demand.Requests, d.gpus[i].planned)
	}
	result, err := d.planner.usual.Plan(ctx, inv, demand)
	if err != nil {
		return nil, fmt.Errorf("planning for node %q: %w", d.node.Name, err)
	}
	if len(result.Sets) == 0 {
		return d.refusal(group, &result, inv), nil
	}
	var first *Answer
	for s := range result.Sets {
		set := &result.Sets[s]
		answer, err := d.extend(ctx, g+1, d.without(inv, group, set), held|set.GPUs, given|set.GPUs)
		if err != nil || answer.Served {
			return answer, err
		}
		if first == nil {
			first = answer
		}
	}
	return first, nil
}

// without returns what is left after a group got a set.
func (d *Demand) without(inv placement.Inventory, g *group, set *placement.Set) placement.Inventory {
	inv.Free = slices.Clone(inv.Free)
	inv.Idle &^= set.GPUs
	for k, i := range g.items {
		for at := range set.PerRequest[k].All() {
			if d.gpus[i].planned.Exclusive {
				inv.Free[at] = placement.Capacity{}
				continue
			}
			use, free := d.gpus[i].planned.Use, inv.Free[at]
			inv.Free[at] = placement.Capacity{
				MemoryMiB: max(0, free.MemoryMiB-use.MemoryMiB), CoresPercent: max(0, free.CoresPercent-use.CoresPercent), Slots: max(0, free.Slots-use.Slots),
			}
		}
	}
	return inv
}

func (d *Demand) refusal(g *group, result *placement.Result, inv placement.Inventory) *Answer {
	a := &Answer{Reason: result.Reason, Policy: g.policy}
	var room topology.Mask
	for _, i := range g.items {
		r := &d.gpus[i].planned
		a.Wanted += r.Count
		for at := range (r.Eligible & inv.Present).All() {
			free, total := inv.Free[at], inv.Total[at]
			fits := (total.MemoryMiB == 0 || r.Use.MemoryMiB <= free.MemoryMiB) && (total.CoresPercent == 0 || r.Use.CoresPercent <= free.CoresPercent) &&
				(total.Slots == 0 || r.Use.Slots <= free.Slots)
			if fits && (!r.Exclusive || inv.Idle.Has(at)) {
				room = room.With(at)
			}
		}
	}
	a.Free = room.Count()
	a.BestNow, a.BestWhenFree = offerOf(result.BestNow), offerOf(result.BestWhenFree)
	return a
}

func offerOf(set *placement.Set) *Offer {
	if set == nil {
		return nil
	}
	return &Offer{GPUs: set.GPUs, Quality: set.Quality}
}

// constraints translates those of the claims for the items of a group; what the planner cannot express is left to the allocator.
func (d *Demand) constraints(g *group) []placement.Constraint {
	var out []placement.Constraint
	for c := range d.claims {
		if d.claims[c].Object == nil {
			continue
		}
		for k := range d.claims[c].Object.Spec.Devices.Constraints {
			if tied, ok := d.constraint(g, c, &d.claims[c].Object.Spec.Devices.Constraints[k]); ok {
				out = append(out, tied)
			}
		}
	}
	return out
}

// constraint translates one constraint of a claim; it is false when it does not concern the group.
func (d *Demand) constraint(g *group, claim int, c *resourceapi.DeviceConstraint) (placement.Constraint, bool) {
	tied := placement.Constraint{Kind: placement.Match}
	name := c.MatchAttribute
	if name == nil {
		name, tied.Kind = c.DistinctAttribute, placement.Distinct
	}
	if name == nil {
		return tied, false
	}
	for at, i := range g.items {
		if d.gpus[i].Claim == claim && applies(c, d.gpus[i].Name) {
			tied.Requests = append(tied.Requests, at)
		}
	}
	tied.Values = d.values(*name)
	return tied, len(tied.Requests) > 0
}

// applies says whether a constraint is about a request or, for an alternative, the request that it belongs to.
func applies(c *resourceapi.DeviceConstraint, request string) bool {
	return len(c.Requests) == 0 || slices.ContainsFunc(c.Requests, func(name string) bool {
		return name == request || len(request) > len(name) && request[:len(name)] == name && request[len(name)] == '/'
	})
}

// values numbers the values of an attribute by GPU, -1 where it is missing.
func (d *Demand) values(name resourceapi.FullyQualifiedName) []int32 {
	values := make([]int32, len(d.node.GPUs))
	numbers := map[any]int32{}
	for i := range values {
		values[i] = -1
	}
	for i := range d.node.Published {
		device := &d.node.Published[i]
		at, ok := d.node.Position(device.Name)
		if !ok || d.node.GPUs[at].Device != device.Name {
			continue
		}
		value, found := attribute(device, name)
		if !found {
			continue
		}
		if _, known := numbers[value]; !known {
			numbers[value] = int32(len(numbers))
		}
		values[at] = numbers[value]
	}
	return values
}

// shortOfParts finds the first request that gets too few MIG devices when each device serves one request only.
func (d *Demand) shortOfParts(counts func(livestate.Holder) bool) *Shortage {
	taken := map[string]bool{}
	for i := range d.node.GPUs {
		for _, h := range d.node.GPUs[i].Holders {
			if h.Device != "" && Holds(h) && counts(h) {
				taken[h.Device] = true
			}
		}
	}
	given := map[string]int{} // device → item
	for i := range d.parts {
		got := 0
		for range d.parts[i].count {
			if d.assign(i, taken, given, map[string]bool{}) {
				got++
			}
		}
		if got < d.parts[i].count {
			return &Shortage{Request: d.parts[i].Name, Wanted: d.parts[i].count, Have: got, MIG: true}
		}
	}
	return nil
}

// assign finds a device for one more of an item's, moving those of others to other devices where that helps.
func (d *Demand) assign(item int, taken map[string]bool, given map[string]int, tried map[string]bool) bool {
	for _, device := range d.parts[item].eligible {
		if taken[device] || tried[device] {
			continue
		}
		tried[device] = true
		owner, used := given[device]
		if !used || owner != item && d.assign(owner, taken, given, tried) {
			given[device] = item
			return true
		}
	}
	return false
}
