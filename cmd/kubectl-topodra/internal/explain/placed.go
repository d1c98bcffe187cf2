// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Placed is about the GPUs of a pod.
type Placed struct {
	// GPUs are the indices on the node; shares count like whole ones, MIG devices do not count.
	GPUs []int `json:"gpus"`
	// Links is the matrix of the links between them, as nvidia-smi topo -m prints it.
	Links [][]string `json:"links"`
	// Got is the quality of the set.
	Got Set `json:"got"`
	// Empty is the best set of as many GPUs if the node were empty, Now of those that are free now and its own, Then of those that
	// may have been free when they were allocated. Elsewhere is the best that is free on another node now.
	Empty     *Set `json:"empty"`
	Now       *Set `json:"now"`
	Then      *Set `json:"then"`
	Elsewhere *Set `json:"elsewhere"`
	// ThenText says how sure Then is.
	ThenText string `json:"thenText"`
	// Verdict sums it up.
	Verdict string `json:"verdict"`
}

// Set is a set of GPUs of a node.
type Set struct {
	Node  string  `json:"node"`
	GPUs  []int   `json:"gpus"`
	Rings int     `json:"rings"`
	GBps  float64 `json:"gbps"`
	Over  string  `json:"over"`

	mask    topology.Mask
	quality quality.Quality
}

func setOf(node string, gpus topology.Mask, q quality.Quality) *Set {
	return &Set{
		Node: node, GPUs: gpus.Positions(), Rings: q.Rings, GBps: q.MBps.GBps(), Over: q.Bottleneck.String(), mask: gpus, quality: q,
	}
}

func setOfOffer(node string, o *fit.Offer) *Set {
	if o == nil {
		return nil
	}
	return setOf(node, o.GPUs, o.Quality)
}

// holding is what the pod has of its node.
type holding struct {
	node *livestate.Node
	gpus topology.Mask
	// needs is what it takes of each GPU, at most; whole of entire ones.
	needs livestate.Capacity
	whole bool
	// at is when the first of its claims was allocated; zero when that is not known.
	at time.Time
}

// placed explains the GPUs of the pod. Nil if it has none of ours.
func (x *explainer) placed(ctx context.Context, notes *[]string) (*Placed, error) {
	h := x.holding(notes)
	if h == nil || h.gpus == 0 {
		return nil, nil
	}
	class, err := x.planner.Class(h.node)
	if err != nil {
		return nil, err
	}
	p := &Placed{GPUs: h.gpus.Positions(), Got: *setOf(h.node.Name, h.gpus, class.Of(h.gpus))}
	for i := range h.gpus.All() {
		var row []string
		for j := range h.gpus.All() {
			row = append(row, h.node.Machine.LinkName(i, j))
		}
		p.Links = append(p.Links, row)
	}
	if h.gpus.Count() == 1 {
		p.Verdict = "It is a single GPU: there are no links to compare."
		return p, nil
	}
	return p, x.compare(ctx, p, h)
}

// holding adds up the claims of the pod.
func (x *explainer) holding(notes *[]string) *holding {
	var h *holding
	for i := range x.claims {
		c := x.claims[i].Object
		if c == nil || c.Status.Allocation == nil {
			continue
		}
		for k := range c.Status.Allocation.Devices.Results {
			h = x.hold(h, c, &c.Status.Allocation.Devices.Results[k], notes)
		}
		if t := c.Status.Allocation.AllocationTimestamp; h != nil && t != nil && (h.at.IsZero() || t.Time.Before(h.at)) {
			h.at = t.Time
		}
	}
	return h
}

// hold adds one device of a claim.
func (x *explainer) hold(h *holding, c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult, notes *[]string) *holding {
	if r.Driver != api.DriverName || r.AdminAccess != nil && *r.AdminAccess {
		return h
	}
	n := x.nodeOf(r.Pool)
	if n == nil {
		*notes = append(*notes, fmt.Sprintf("device %q of claim %q is not published any more: pool %q is gone", r.Device, c.Name, r.Pool))
		return h
	}
	at, ok := n.Position(r.Device)
	if !ok {
		*notes = append(*notes, fmt.Sprintf("device %q of claim %q is not published any more", r.Device, c.Name))
		return h
	}
	if h == nil {
		h = &holding{node: n}
	}
	if n == h.node && n.GPUs[at].Device == r.Device {
		h.gpus = h.gpus.With(at)
		h.take(n.GPUs[at].Holders, c.Namespace, c.Name)
	}
	return h
}

// take notes what a claim has of a GPU.
func (h *holding) take(holders []livestate.Holder, namespace, claim string) {
	for _, o := range holders {
		if o.Namespace == namespace && o.Claim == claim && !o.Admin {
			h.whole = h.whole || o.Whole
			h.needs.MemoryMiB = max(h.needs.MemoryMiB, o.Uses.MemoryMiB)
			h.needs.CoresPercent = max(h.needs.CoresPercent, o.Uses.CoresPercent)
			h.needs.Slots = max(h.needs.Slots, o.Uses.Slots)
		}
	}
}

// room returns the GPUs of a node that have room for one GPU's part of the pod if only the holders that count were there.
func (h *holding) room(n *livestate.Node, counts func(livestate.Holder) bool) topology.Mask {
	var room topology.Mask
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Device == "" || g.Blocked && (n != h.node || !h.gpus.Has(i)) {
			continue
		}
		free, idle := g.Total, true
		for _, o := range g.Holders {
			if o.Admin || !counts(o) {
				continue
			}
			idle = false
			if o.Whole {
				free = livestate.Capacity{}
			}
			free.MemoryMiB -= o.Uses.MemoryMiB
			free.CoresPercent -= o.Uses.CoresPercent
			free.Slots -= o.Uses.Slots
		}
		if idle || !h.whole && free.MemoryMiB >= h.needs.MemoryMiB && free.CoresPercent >= h.needs.CoresPercent && (g.Total.Slots == 0 || free.Slots >= h.needs.Slots) {
			room = room.With(i)
		}
	}
	return room
}

// compare finds the best sets that were and are possible.
func (x *explainer) compare(ctx context.Context, p *Placed, h *holding) error {
	count := h.gpus.Count()
	others := func(o livestate.Holder) bool { return !x.own(o) }
	unsure := 0
	earlier := func(o livestate.Holder) bool {
		if x.own(o) {
			return false
		}
		if o.AllocatedAt.IsZero() || o.AllocatedAt.Equal(h.at) {
			unsure++
		}
		return !o.AllocatedAt.IsZero() && o.AllocatedAt.Before(h.at)
	}
	for _, c := range []struct {
		into   **Set
		counts func(livestate.Holder) bool
		skip   bool
	}{
		{into: &p.Empty, counts: func(livestate.Holder) bool { return false }},
		{into: &p.Now, counts: others},
		{into: &p.Then, counts: earlier, skip: h.at.IsZero()},
	} {
		if c.skip {
			continue
		}
		best, err := x.planner.Best(ctx, h.node, h.room(h.node, c.counts), count)
		if err != nil {
			return err
		}
		*c.into = setOfOffer(h.node.Name, best)
	}
	if err := x.elsewhere(ctx, p, h, count); err != nil {
		return err
	}
	p.ThenText = thenText(p, h, unsure)
	p.Verdict = verdict(p)
	return nil
}

func (x *explainer) elsewhere(ctx context.Context, p *Placed, h *holding, count int) error {
	for i := range x.live {
		n := &x.live[i]
		if n == h.node {
			continue
		}
		best, err := x.planner.Best(ctx, n, h.room(n, func(livestate.Holder) bool { return true }), count)
		if err != nil {
			return err
		}
		if best != nil && (p.Elsewhere == nil || quality.Compare(best.Quality, p.Elsewhere.quality) > 0) {
			p.Elsewhere = setOfOffer(n.Name, best)
		}
	}
	return nil
}

// thenText says what is known about the time of the allocation.
func thenText(p *Placed, h *holding, unsure int) string {
	if h.at.IsZero() {
		return "what was free then cannot be reconstructed: the claim has no allocation time (feature gate DRADeviceBindingConditions)"
	}
	text := "reconstructed: free are the GPUs that no claim holds which is still there and was allocated in an earlier second; " +
		"claims that are gone since may have held more, so this is the best that can have been free"
	if unsure > 0 {
		text += "; claims of the same second or without a time count as later"
	}
	if p.Then != nil && quality.Compare(p.Then.quality, p.Got.quality) <= 0 {
		text = "the pod has the best that can have been free on the node: of the GPUs outside of claims that are still there and older, no set is better"
	}
	return text
}

// verdict compares what the pod has with what it could have.
func verdict(p *Placed) string {
	at := func(s *Set) bool {
		return s == nil || quality.InTier(s.quality, p.Got.quality, quality.DefaultTierPercent)
	}
	switch {
	case at(p.Empty):
		return "as good as the node can be"
	case at(p.Then):
		return "as good as was possible on the node when it was placed"
	case at(p.Now):
		return "a better set may have been free when it was placed, none is now"
	default:
		return "a better set is free on the node now: a new pod would get it"
	}
}
