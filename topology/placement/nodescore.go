// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Points of a node score, see [ScoreNodes].
const (
	// MaxNodeScore is the best score.
	MaxNodeScore = 100
	// BestTierScore is the least that a node of the best tier gets.
	BestTierScore = 60
	// LowerTierScore is the most that a node of any other tier gets.
	LowerTierScore = 20

	// For demands that do not communicate, what a set costs others gains on how
	// full the node is.
	loneAllocatedFactor       = 2
	loneRemainingFactor       = 4
	permille            int64 = 1000
)

// ScoreWeights are what counts when nodes are ranked; only their ratios matter.
type ScoreWeights struct {
	// Quality weighs the tier of the set.
	Quality int64
	// Allocated weighs how full the node is.
	Allocated int64
	// Remaining weighs how little the set costs later claims.
	Remaining int64
}

// DefaultScoreWeights are those of [ScoreNodes].
func DefaultScoreWeights() ScoreWeights {
	return ScoreWeights{Quality: BestTierScore, Allocated: 30, Remaining: 10}
}

// NodeCandidate is a node that can serve the demand, with its best set.
type NodeCandidate struct {
	// Quality and DeltaV are those of the best set of the node.
	Quality quality.Quality
	DeltaV  int64
	// AllocatedPermille is how much of the node's GPUs is taken once the demand is
	// placed, 0 to 1000; see [AllocatedPermille].
	AllocatedPermille int64
}

// ScoreNodes returns a score of 0 to 100 for each candidate, by index. It compares
// the candidates with each other, so the scores of two calls do not.
//
// For demands that communicate, the quality tier decides, then how full the node
// is, then what the set costs later claims:
//
//	best tier:   60 + 30·allocated + 10·(1 − ΔV/ΔVmax), so 60 to 100
//	lower tiers: the points 0 to 20 are divided evenly among them, better tiers
//	             higher; inside one, 3/4 by allocated and 1/4 by ΔV
//
// Between a node of the best tier and any other there are at least 40 points. With
// a plugin weight of 50 that is 2,000, more than all default plugins together can
// add to a node (1,200).
//
// For all other demands: 60·allocated + 40·(1 − ΔV/ΔVmax), whatever the quality.
//
// allocated is AllocatedPermille/1000; ΔVmax is the largest DeltaV of the
// candidates, and the term is 1 when that is 0. tierPercent is that of the planner.
func ScoreNodes(nodes []NodeCandidate, communicates bool, tierPercent int) []int64 {
	return ScoreNodesWeighted(nodes, communicates, tierPercent, DefaultScoreWeights())
}

// ScoreNodesWeighted is [ScoreNodes] with other weights q, a and r, of the sum w:
//
//	best tier:   100·(q + a·allocated + r·(1 − ΔV/ΔVmax)) / w
//	lower tiers: the points 0 to 100·q/(3·w) are divided evenly among them; inside
//	             one, by (a·allocated + r·(1 − ΔV/ΔVmax)) / (a + r)
//	others:      100·(2·a·allocated + 4·r·(1 − ΔV/ΔVmax)) / (2·a + 4·r)
//
// With q = 0 all tiers count as the best one. Weights must not be negative and not
// all be 0.
func ScoreNodesWeighted(nodes []NodeCandidate, communicates bool, tierPercent int, w ScoreWeights) []int64 {
	out := make([]int64, len(nodes))
	var most int64
	for _, n := range nodes {
		most = max(most, n.DeltaV)
	}
	tiers, count := nodeTiers(nodes, tierPercent)
	for i, n := range nodes {
		allocated := min(max(n.AllocatedPermille, 0), permille)
		cheap := permille
		if most > 0 {
			cheap = permille - permilleOf(max(n.DeltaV, 0), most)
		}
		switch {
		case !communicates:
			out[i] = w.lone(allocated, cheap)
		case tiers[i] == 0 || w.Quality == 0:
			out[i] = w.best(allocated, cheap)
		default:
			out[i] = w.lower(tiers[i], count, allocated, cheap)
		}
	}
	return out
}

// best scores a node of the best tier.
func (w ScoreWeights) best(allocated, cheap int64) int64 {
	sum := w.Quality + w.Allocated + w.Remaining
	return MaxNodeScore * (w.Quality*permille + w.Allocated*allocated + w.Remaining*cheap) / (sum * permille)
}

// lone scores a node for a demand that does not communicate.
func (w ScoreWeights) lone(allocated, cheap int64) int64 {
	a, r := loneAllocatedFactor*w.Allocated, loneRemainingFactor*w.Remaining
	if a+r == 0 {
		return 0
	}
	return MaxNodeScore * (a*allocated + r*cheap) / ((a + r) * permille)
}

// lower places tier 1 to count−1 in the band below the best tier.
func (w ScoreWeights) lower(tier, count int, allocated, cheap int64) int64 {
	bands := int64(count - 1)
	below := bands - int64(tier) // bands under this one
	within := int64(0)
	if w.Allocated+w.Remaining > 0 {
		within = (w.Allocated*allocated + w.Remaining*cheap) / (w.Allocated + w.Remaining)
	}
	sum := w.Quality + w.Allocated + w.Remaining
	return MaxNodeScore * w.Quality * (below*permille + within) / (BestTierScore / LowerTierScore * sum * bands * permille)
}

// permilleOf returns part/whole in per mille, rounded down, without overflow.
func permilleOf(part, whole int64) int64 {
	if whole > 1<<50 {
		part, whole = part>>10, whole>>10
	}
	return part * permille / whole
}

// nodeTiers numbers the tiers of the candidates' qualities like those of sets and
// returns how many there are.
func nodeTiers(nodes []NodeCandidate, tierPercent int) ([]int, int) {
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(quality.Compare(nodes[b].Quality, nodes[a].Quality), cmp.Compare(a, b))
	})
	tiers := make([]int, len(nodes))
	t := newTierCounter(tierPercent)
	for _, i := range order {
		tiers[i] = int(t.next(nodes[i].Quality))
	}
	return tiers, int(t.tier) + 1
}

// AllocatedPermille returns how much of the present GPUs is taken once the set
// serves the demand, in per mille: the mean over the GPUs of the fuller of memory
// and compute. GPUs without either count as a whole. It is 0 on a machine without
// present GPUs.
func AllocatedPermille(inv Inventory, d Demand, s Set) int64 {
	if inv.Present == 0 {
		return 0
	}
	left := slices.Clone(inv.Free)
	touched := s.GPUs
	for i, gpus := range s.PerRequest {
		for g := range gpus.All() {
			if d.Requests[i].Exclusive {
				left[g] = Capacity{}
				continue
			}
			left[g] = left[g].minus(d.Requests[i].Use)
		}
	}
	var free int64
	for g := range inv.Present.All() {
		idle := inv.Idle.Has(g) && !touched.Has(g)
		free += left[g].permille(inv.Total[g], idle)
	}
	return permille - free/int64(inv.Present.Count())
}

// Criterion names what decides between two sets, for explanations.
type Criterion string

// The criteria, in the order in which they are asked for demands that communicate;
// for others CriterionDeltaV and CriterionSize come before CriterionTier.
const (
	CriterionTier     Criterion = "lower quality tier"
	CriterionDeltaV   Criterion = "costs later claims more"
	CriterionSize     Criterion = "takes more GPUs"
	CriterionStranded Criterion = "strands more of its GPUs"
	CriterionResidual Criterion = "leaves larger rests"
	CriterionPairs    Criterion = "slower links in sum"
	CriterionCut      Criterion = "cuts faster links to the GPUs that stay idle"
	CriterionNUMA     Criterion = "spans more NUMA nodes"
	CriterionLocal    Criterion = "breaks up a socket or switch"
	CriterionRails    Criterion = "spans more network cards"
	CriterionPosition Criterion = "equal, higher positions"
)

// key is one criterion with its value for a set, the smaller the better.
type key struct {
	name Criterion
	cost func(s *Set) int64
}

// keys are the criteria before the position, for demands that communicate.
var keys = []key{
	{CriterionTier, func(s *Set) int64 { return int64(s.Tier) }},
	{CriterionDeltaV, func(s *Set) int64 { return s.DeltaV }},
	{CriterionSize, func(s *Set) int64 { return int64(s.GPUs.Count()) }},
	{CriterionStranded, func(s *Set) int64 { return s.Keys.Stranded }},
	{CriterionResidual, func(s *Set) int64 { return s.Keys.Residual }},
	{CriterionPairs, func(s *Set) int64 { return -s.Keys.PairMBps }},
	{CriterionCut, func(s *Set) int64 { return s.Keys.CutMBps }},
	{CriterionNUMA, func(s *Set) int64 { return int64(s.Keys.NUMANodes) }},
	{CriterionLocal, func(s *Set) int64 { return s.Keys.DeltaLocal }},
	{CriterionRails, func(s *Set) int64 { return int64(s.Keys.Rails) }},
}

// keysOf returns the criteria in the order in which they are asked.
func keysOf(communicates bool) []key {
	if communicates {
		return keys
	}
	out := slices.Clone(keys)
	out[0], out[1], out[2] = out[1], out[2], out[0] // ΔV, size, tier
	return out
}

// Criteria returns all criteria in the order in which they are asked.
func Criteria(communicates bool) []Criterion {
	var out []Criterion
	for _, k := range keysOf(communicates) {
		out = append(out, k.name)
	}
	return append(out, CriterionPosition)
}

// Decides returns the first criterion on which the two sets of one answer differ:
// why the loser is ranked below the winner.
func Decides(winner, loser Set, communicates bool) Criterion {
	for _, k := range keysOf(communicates) {
		if k.cost(&winner) != k.cost(&loser) {
			return k.name
		}
	}
	return CriterionPosition
}

// WholeGPUs returns an inventory of whole GPUs: the given ones are idle, the others
// are taken entirely. It is the usual input of tools and tests.
func WholeGPUs(class *quality.Class, idle topology.Mask) Inventory {
	n := class.N()
	inv := Inventory{
		Class: class, Present: topology.FullMask(n), Idle: idle & topology.FullMask(n),
		Free: make([]Capacity, n), Total: make([]Capacity, n),
	}
	for g := range n {
		inv.Total[g] = Capacity{MemoryMiB: 1, CoresPercent: 100}
		if idle.Has(g) {
			inv.Free[g] = inv.Total[g]
		}
	}
	return inv
}

// WholeRequest returns a request for count whole GPUs, any of them.
func WholeRequest(name string, count int) Request {
	return Request{
		Name: name, Count: count, Exclusive: true, Use: Capacity{MemoryMiB: 1, CoresPercent: 100},
		Eligible: topology.FullMask(topology.MaxGPUs),
	}
}
