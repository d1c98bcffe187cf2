// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"slices"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// ranking orders the options of one search.
type ranking struct {
	ctx    context.Context
	looked int
	err    error // of ctx; what was ranked then means nothing
	pr     *problem
	v      *valuer
	s      *stock
	by     []*assigner
	before int64 // V of the state
	local  *quality.Class
	localV int64
}

// candidate is an option with the criteria that were needed so far.
type candidate struct {
	option
	tier   int
	deltaV int64
	keys   Keys
	stage  stage
}

// stage says which criteria of a candidate are known.
type stage uint8

const (
	stageTier  stage = iota
	stageValue       // deltaV
	stagePairs       // Stranded, Residual, PairMBps, CutMBps, NUMANodes
	stageAll
)

// rankEvery is how many options are ranked between two looks at the context. On
// large machines one can take a millisecond.
const rankEvery = 32

// stopped looks at the context now and then.
func (r *ranking) stopped() bool {
	if r.looked++; r.looked%rankEvery == 0 && r.err == nil {
		r.err = r.ctx.Err()
	}
	return r.err != nil
}

// rank returns the best sets that satisfy the policy and the best set of all, or
// the error of the context.
func (pr *problem) rank(ctx context.Context, v *valuer, s *stock, by []*assigner, options []option) (accepted []Set, best *Set, err error) {
	r := &ranking{ctx: ctx, pr: pr, v: v, s: s, by: by, before: v.of(s)}
	if pr.d.Policy.Mode != Required {
		accepted = r.sets(r.top(options, pr.opts.MaxSets))
		if r.err != nil {
			return nil, nil, r.err
		}
		first := accepted[0].clone()
		return accepted, &first, nil
	}
	var good []option
	for _, o := range options {
		if r.stopped() {
			return nil, nil, r.err
		}
		if pr.d.Policy.Accepts(r.qualityOf(o)) {
			good = append(good, o)
		}
	}
	if len(good) > 0 {
		accepted = r.sets(r.top(good, pr.opts.MaxSets))
	}
	all := r.sets(r.top(options, 1))
	if r.err != nil {
		return nil, nil, r.err
	}
	return accepted, &all[0], nil
}

func (r *ranking) qualityOf(o option) quality.Quality { return r.pr.class.Of(o.union | r.pr.d.Held) }

// top returns the best options in order, at most limit; nil when the context is done.
func (r *ranking) top(options []option, limit int) []*candidate {
	tiers := r.tiers(options)
	kept := make([]*candidate, 0, limit+1)
	spare := &candidate{}
	for i, o := range options {
		if r.stopped() {
			return nil
		}
		*spare = candidate{option: o, tier: int(tiers[i])}
		if len(kept) == limit && r.compare(spare, kept[limit-1]) >= 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(kept, spare, r.compare)
		kept = slices.Insert(kept, at, spare)
		if len(kept) > limit {
			spare = kept[limit]
			kept = kept[:limit]
		} else {
			spare = &candidate{}
		}
	}
	return kept
}

// tiers returns the tier of each option: the best quality opens tier 0, and the
// first quality that is more than the tier's width worse than the one that opened
// a tier opens the next.
func (r *ranking) tiers(options []option) []int32 {
	ids := make([]int32, len(options))
	var found []quality.Quality
	if r.pr.class.Exact() {
		return r.tiersByRank(options, ids)
	}
	index := map[quality.Quality]int32{}
	for i, o := range options {
		if r.stopped() {
			return ids
		}
		q := r.qualityOf(o)
		id, ok := index[q]
		if !ok {
			id = int32(len(found))
			index[q] = id
			found = append(found, q)
		}
		ids[i] = id
	}
	order := make([]int32, len(found))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return quality.Compare(found[b], found[a]) })
	tierOf := make([]int32, len(found))
	t := newTierCounter(r.pr.opts.TierPercent)
	for _, id := range order {
		tierOf[id] = t.next(found[id])
	}
	for i := range ids {
		ids[i] = tierOf[ids[i]]
	}
	return ids
}

// tiersByRank is tiers with the ranks of the class, which are ordered already.
func (r *ranking) tiersByRank(options []option, ids []int32) []int32 {
	worst := 0
	for i, o := range options {
		rank := r.pr.class.Rank(o.union | r.pr.d.Held)
		ids[i] = int32(rank)
		worst = max(worst, rank)
	}
	tierOf := make([]int32, worst+1)
	for _, id := range ids {
		tierOf[id] = 1
	}
	t := newTierCounter(r.pr.opts.TierPercent)
	for rank, present := range tierOf {
		if present == 1 {
			tierOf[rank] = t.next(r.pr.class.Ranked(rank))
		}
	}
	for i := range ids {
		ids[i] = tierOf[ids[i]]
	}
	return ids
}

// tierCounter numbers the tiers of qualities that come best first.
type tierCounter struct {
	percent int
	first   quality.Quality
	tier    int32
}

func newTierCounter(percent int) *tierCounter { return &tierCounter{percent: percent, tier: -1} }

func (t *tierCounter) next(q quality.Quality) int32 {
	if t.tier < 0 || !quality.InTier(t.first, q, t.percent) {
		t.tier++
		t.first = q
	}
	return t.tier
}

// compare orders candidates, the better one smaller. Between two different unions
// it is never 0.
func (r *ranking) compare(a, b *candidate) int {
	if r.pr.communicates {
		if c := cmp.Compare(a.tier, b.tier); c != 0 {
			return c
		}
	}
	r.upTo(a, stageValue)
	r.upTo(b, stageValue)
	if c := cmp.Or(
		cmp.Compare(a.deltaV, b.deltaV),
		cmp.Compare(a.union.Count(), b.union.Count()),
		cmp.Compare(a.tier, b.tier),
	); c != 0 {
		return c
	}
	r.upTo(a, stagePairs)
	r.upTo(b, stagePairs)
	if c := cmp.Or(
		cmp.Compare(a.keys.Stranded, b.keys.Stranded),
		cmp.Compare(a.keys.Residual, b.keys.Residual),
		cmp.Compare(b.keys.PairMBps, a.keys.PairMBps),
		cmp.Compare(a.keys.CutMBps, b.keys.CutMBps),
		cmp.Compare(a.keys.NUMANodes, b.keys.NUMANodes),
	); c != 0 {
		return c
	}
	r.upTo(a, stageAll)
	r.upTo(b, stageAll)
	return cmp.Or(
		cmp.Compare(a.keys.DeltaLocal, b.keys.DeltaLocal),
		cmp.Compare(a.keys.Rails, b.keys.Rails),
		cmp.Compare(a.union, b.union),
	)
}

// upTo computes the criteria up to the stage.
func (r *ranking) upTo(c *candidate, to stage) {
	if c.stage < stageValue && to >= stageValue {
		c.deltaV = r.deltaV(c)
		c.stage = stageValue
	}
	if c.stage < stagePairs && to >= stagePairs {
		whole := c.union | r.pr.d.Held
		if r.pr.shares {
			c.keys.Stranded, c.keys.Residual = r.strandedBy(c)
		}
		c.keys.PairMBps = r.pr.class.PairMBps(whole)
		c.keys.CutMBps = r.cut(c.union)
		c.keys.NUMANodes = r.pr.class.NUMANodes(whole)
		c.stage = stagePairs
	}
	if c.stage < stageAll && to >= stageAll {
		if r.local == nil {
			r.local = r.pr.class.Local()
			r.localV = r.v.ofIdle(r.local, r.s.idle)
		}
		c.keys.DeltaLocal = r.localV - r.v.ofIdle(r.local, r.s.idle&^c.union)
		c.keys.Rails = r.pr.class.Rails(c.union | r.pr.d.Held)
		c.stage = stageAll
	}
}

// cut returns the sum of the weights between the set and the other idle GPUs.
func (r *ranking) cut(set topology.Mask) int64 {
	class, rest := r.pr.class, r.s.idle&^set
	return class.PairMBps(rest|set) - class.PairMBps(rest) - class.PairMBps(set)
}

// deltaV returns what the option costs later claims.
func (r *ranking) deltaV(c *candidate) int64 {
	after := r.v.ofIdle(r.pr.class, r.s.idle&^c.union)
	if len(r.v.shared) > 0 {
		after += r.v.ofShares(r.s.present, r.after(c), r.s.total)
	}
	return r.before - after
}

// after returns what is left of every GPU when the option is taken.
func (r *ranking) after(c *candidate) []Capacity {
	left := slices.Clone(r.s.left)
	per, _, _ := r.by[c.by].assign(c.union)
	for i, gpus := range per {
		for g := range gpus.All() {
			if r.pr.d.Requests[i].Exclusive {
				left[g] = Capacity{}
				continue
			}
			left[g] = left[g].minus(r.pr.d.Requests[i].Use)
		}
	}
	return left
}

// strandedBy returns the two criteria that concern the parts of GPUs.
func (r *ranking) strandedBy(c *candidate) (stranded, residual int64) {
	left := r.after(c)
	for g := range c.union.All() {
		total := r.s.total[g]
		stranded += r.v.stranded(left[g], total, false) - r.v.stranded(r.s.left[g], total, r.s.idle.Has(g))
		residual += left[g].permille(total, false)
	}
	return stranded / max(1, r.v.weight), residual
}

// sets fills in what the caller sees.
func (r *ranking) sets(top []*candidate) []Set {
	out := make([]Set, 0, len(top))
	for _, c := range top {
		r.upTo(c, stageAll)
		per, _, _ := r.by[c.by].assign(c.union)
		out = append(out, Set{
			GPUs: c.union, PerRequest: per, Quality: r.qualityOf(c.option), Tier: c.tier, DeltaV: c.deltaV, Keys: c.keys,
		})
	}
	return out
}
