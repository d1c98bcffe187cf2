// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// classCacheSize is how many kinds of machines are remembered.
const classCacheSize = 256

// Planner answers questions about live nodes.
type Planner struct {
	classes *quality.Cache
	// best ranks sets by bandwidth alone; usual ranks as the scheduler does with its default arguments.
	best, usual *placement.Planner
	selectors   *cel.Cache
}

// New returns a planner.
func New() (*Planner, error) {
	best, err := placement.New(placement.Options{TierPercent: -1, MaxSets: 1})
	if err != nil {
		return nil, fmt.Errorf("starting the planner: %w", err)
	}
	usual, err := placement.New(placement.Options{})
	if err != nil {
		return nil, fmt.Errorf("starting the planner: %w", err)
	}
	return &Planner{classes: quality.NewCache(classCacheSize, quality.Options{}), best: best, usual: usual, selectors: newSelectors()}, nil
}

// Offer is a set of GPUs of one node.
type Offer struct {
	GPUs    topology.Mask
	Quality quality.Quality
}

// Class returns the tables of the node's links.
func (p *Planner) Class(n *livestate.Node) (*quality.Class, error) {
	class, err := p.classes.Get(n.Machine)
	if err != nil {
		return nil, fmt.Errorf("reading the links of node %q: %w", n.Name, err)
	}
	return class, nil
}

// Best returns the best-linked set of count of the given GPUs; nil when there are too few.
func (p *Planner) Best(ctx context.Context, n *livestate.Node, gpus topology.Mask, count int) (*Offer, error) {
	gpus &= n.Present
	if count < 1 || gpus.Count() < count {
		return nil, nil
	}
	class, err := p.Class(n)
	if err != nil {
		return nil, err
	}
	demand := placement.Demand{Requests: []placement.Request{placement.WholeRequest("job", count)}, Communicates: placement.Yes}
	result, err := p.best.Plan(ctx, placement.WholeGPUs(class, gpus), demand)
	if err != nil {
		return nil, fmt.Errorf("planning for node %q: %w", n.Name, err)
	}
	if len(result.Sets) == 0 {
		return nil, nil
	}
	return &Offer{GPUs: result.Sets[0].GPUs, Quality: result.Sets[0].Quality}, nil
}

// Usable returns the GPUs of a node that are published and not tainted away.
func Usable(n *livestate.Node) topology.Mask {
	var usable topology.Mask
	for _, g := range n.GPUs {
		if g.Device != "" && !g.Blocked {
			usable = usable.With(g.Position)
		}
	}
	return usable
}

// Holds tells whether a holder takes something away from others.
func Holds(h livestate.Holder) bool { return !h.Admin }

// inventory returns what is left on a node if only the holders that count were there. GPUs in also are there for the caller
// although they are tainted.
func inventory(n *livestate.Node, class *quality.Class, also topology.Mask, counts func(livestate.Holder) bool) placement.Inventory {
	inv := placement.Inventory{
		Class: class, Present: Usable(n) | also&n.Present,
		Free: make([]placement.Capacity, len(n.GPUs)), Total: make([]placement.Capacity, len(n.GPUs)),
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		inv.Total[i] = capacity(g.Total)
		if g.Device == "" {
			continue
		}
		holders := slices.DeleteFunc(slices.Clone(g.Holders), func(h livestate.Holder) bool { return !Holds(h) || !counts(h) })
		if len(holders) == 0 && inv.Present.Has(i) {
			inv.Idle = inv.Idle.With(i)
		}
		free := g.Total
		for _, h := range holders {
			if h.Whole {
				free = livestate.Capacity{}
				break
			}
			free.MemoryMiB = max(0, free.MemoryMiB-h.Uses.MemoryMiB)
			free.CoresPercent = max(0, free.CoresPercent-h.Uses.CoresPercent)
			free.Slots = max(0, free.Slots-h.Uses.Slots)
		}
		inv.Free[i] = capacity(free)
	}
	return inv
}

func capacity(c livestate.Capacity) placement.Capacity {
	return placement.Capacity{MemoryMiB: c.MemoryMiB, CoresPercent: c.CoresPercent, Slots: c.Slots}
}
