// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"slices"

	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// solution is one way to serve all items of a problem.
type solution struct {
	gpus topology.Mask
	// perItem in the order of problem.items.
	perItem []topology.Mask
	// quality of gpus and what the pod holds.
	quality      quality.Quality
	communicates bool
	deltaV       int64
}

// solutions are the answers to a problem, best first, or why there is none.
type solutions struct {
	list []solution
	// reason and refusal are set when list is empty.
	reason  placement.Reason
	refusal *plan.Refusal
	// guaranteed says that a policy of the problem is a guarantee.
	guaranteed bool
}

// solve plans a problem. Groups of one policy are planned one after the other,
// guarantees first; GPUs of an earlier group are held by the pod when the next
// one is planned. When a group does not fit beside the first choice of an earlier
// one, the next choice is tried.
func (p *nodePlanner) solve(ctx context.Context, d *demand, pr *problem) (*solutions, error) {
	result := &solutions{guaranteed: len(pr.groups) > 0 && pr.groups[0].policy.required()}
	search := &groupSearch{planner: p, demand: d, problem: pr, result: result}
	start := solution{perItem: make([]topology.Mask, len(pr.items))}
	if err := search.extend(ctx, 0, pr.inventory, start); err != nil {
		return nil, err
	}
	return result, nil
}

// groupSearch is the state of solve.
type groupSearch struct {
	planner *nodePlanner
	demand  *demand
	problem *problem
	result  *solutions
}

// extend adds the groups from g on to a partial solution.
func (s *groupSearch) extend(ctx context.Context, g int, inventory placement.Inventory, partial solution) error {
	pr := s.problem
	if g == len(pr.groups) {
		partial.quality = pr.fabric.class.Of(partial.gpus | pr.held)
		s.result.list = append(s.result.list, partial)
		return nil
	}
	group := &pr.groups[g]
	answer, err := s.planner.planner.Plan(ctx, inventory, pr.demandOf(s.demand, group, pr.held|partial.gpus))
	if err != nil {
		return err
	}
	if len(answer.Sets) == 0 && s.result.refusal == nil {
		s.result.reason = answer.Reason
		s.result.refusal = refusalOf(pr, group, &answer)
	}
	for i := range answer.Sets {
		set := &answer.Sets[i]
		next := partial
		next.perItem = slices.Clone(partial.perItem)
		for j, item := range group.items {
			next.perItem[item] = set.PerRequest[j]
		}
		next.gpus |= set.GPUs
		next.deltaV += set.DeltaV
		next.communicates = next.communicates || answer.Communicates
		if err := s.extend(ctx, g+1, pr.without(inventory, group, set), next); err != nil {
			return err
		}
		if len(s.result.list) >= s.planner.maxCandidates {
			return nil
		}
	}
	return nil
}

// without returns what is left after a group got a set.
func (pr *problem) without(inventory placement.Inventory, g *group, set *placement.Set) placement.Inventory {
	inventory.Free = slices.Clone(inventory.Free)
	inventory.Idle &^= set.GPUs
	for j, i := range g.items {
		for position := range set.PerRequest[j].All() {
			if pr.requests[i].Exclusive {
				inventory.Free[position] = placement.Capacity{}
				continue
			}
			inventory.Free[position] = minus(inventory.Free[position], pr.requests[i].Use)
		}
	}
	return inventory
}

// refusalOf says what there is instead of a set.
func refusalOf(pr *problem, g *group, answer *placement.Result) *plan.Refusal {
	count := 0
	for _, i := range g.items {
		count += pr.requests[i].Count
	}
	refusal := &plan.Refusal{Wanted: wantedText(count, g.policy)}
	alternative := func(set *placement.Set) *plan.Alternative {
		if set == nil {
			return nil
		}
		return &plan.Alternative{GPUs: set.GPUs, Quality: set.Quality}
	}
	refusal.BestNow, refusal.BestWhenFree = alternative(answer.BestNow), alternative(answer.BestWhenFree)
	return refusal
}

// accepts says whether sets that the allocator chose, by item, keep all
// guarantees of the problem.
func (pr *problem) accepts(perItem []topology.Mask) bool {
	for _, g := range pr.groups {
		if !g.policy.required() {
			continue
		}
		set := pr.held
		for _, i := range g.items {
			set |= perItem[i]
		}
		if !g.policy.Accepts(pr.fabric.class.Of(set)) {
			return false
		}
	}
	return true
}
