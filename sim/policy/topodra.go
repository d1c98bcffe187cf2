// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology/placement"
)

// topoDRA is TopoDRA's rule.
type topoDRA struct {
	chooser
	name       string
	opts       TopoDRAOptions
	planner    *placement.Planner
	candidates []placement.NodeCandidate
	best       *model.Best
}

// NewTopoDRA makes a policy that decides as the scheduler plugins do.
//
// Source: docs/objective.md. What runs is their code: placement.Planner.Plan ranks
// the sets of a node, with the arguments' defaults for mix, tier and candidates;
// placement.AllocatedPermille and placement.ScoreNodesWeighted rank the nodes. What does not run is what
// surrounds it in a scheduler: reading slices and claims, the in-tree allocator's
// check of the plan, and other plugins' scores, of which all together weigh less than
// a tier but can decide between nodes of one tier. Pods without GPUs are no matter of
// the plugins; they go to the node with the emptiest CPU, as by default.
func NewTopoDRA(name string, opts TopoDRAOptions) (Policy, error) {
	args, err := api.DecodeTopologyDynamicResourcesArgs(nil)
	if err != nil {
		return nil, fmt.Errorf("making policy %q: %w", name, err)
	}
	if opts.Mix == nil {
		for _, t := range args.Mix { // the defaults are whole GPUs
			opts.Mix = append(opts.Mix, placement.Typical{GPUs: int(t.GPUs), Weight: int64(t.Weight)})
		}
	}
	if opts.TierPercent == 0 {
		opts.TierPercent = int(*args.TierPercent)
	}
	if opts.Weights == (placement.ScoreWeights{}) {
		w := args.ScoreWeights
		opts.Weights = placement.ScoreWeights{Quality: int64(w.Quality), Allocated: int64(w.Allocated), Remaining: int64(w.Remaining)}
	}
	planner, err := placement.New(placement.Options{Mix: opts.Mix, TierPercent: opts.TierPercent, MaxSets: int(*args.MaxCandidates)})
	if err != nil {
		return nil, fmt.Errorf("making policy %q: %w", name, err)
	}
	p := &topoDRA{name: name, opts: opts, planner: planner, best: model.NewBest()}
	p.chooser = newChooser(p.pick)
	return p, nil
}

// Name returns the name.
func (p *topoDRA) Name() string { return p.name }

// pick asks the planner for the best set of a node.
func (p *topoDRA) pick(n *model.Node, d model.Demand) (offer, bool, error) {
	if d.GPUs == 0 {
		return hostOffer(n, d), true, nil
	}
	demand, inventory := d.Placement(), n.Inventory()
	if p.opts.AllCommunicate {
		demand.Communicates = placement.Auto
	}
	answer, err := p.planner.Plan(context.Background(), inventory, demand)
	if err != nil || len(answer.Sets) == 0 {
		return offer{}, false, err
	}
	set := answer.Sets[0]
	return offer{
		gpus: set.GPUs, quality: n.Class.Of(set.GPUs), deltaV: set.DeltaV,
		allocated: placement.AllocatedPermille(inventory, demand, set),
	}, true, nil
}

// Place takes the node with the best score, the first one among equals.
func (p *topoDRA) Place(c *model.Cluster, d model.Demand) (model.Place, bool, error) {
	offers, err := p.offers(c, d)
	if err != nil || len(offers) == 0 {
		return model.Place{}, false, err
	}
	if p.opts.Relative {
		offers = p.relative(c, d, offers)
	}
	if p.opts.KeepHosts {
		offers = p.keepHosts(c, d, offers)
	}
	best := offers[0]
	switch {
	case d.GPUs == 0:
		best = slices.MinFunc(offers, leastAllocated)
	case p.opts.Order == ByScore:
		best = offers[p.bestScore(offers, p.communicates(d))]
	default:
		best = p.inOrder(offers, p.communicates(d))
	}
	return model.Place{Node: best.node, GPUs: best.gpus}, true, nil
}

func (p *topoDRA) communicates(d model.Demand) bool {
	return d.GPUs > 1 && (d.Communicates || p.opts.AllCommunicate)
}

// bestScore returns the index of the offer with the best node score.
func (p *topoDRA) bestScore(offers []offer, communicates bool) int {
	p.candidates = p.candidates[:0]
	for i := range offers {
		p.candidates = append(p.candidates, placement.NodeCandidate{
			Quality: offers[i].quality, DeltaV: offers[i].deltaV, AllocatedPermille: offers[i].allocated,
		})
	}
	best := 0
	scores := placement.ScoreNodesWeighted(p.candidates, communicates, p.planner.TierPercent(), p.opts.Weights)
	for i, score := range scores {
		if score > scores[best] {
			best = i
		}
	}
	return best
}
