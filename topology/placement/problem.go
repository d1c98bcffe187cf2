// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// problem is one question in the form the search works on.
type problem struct {
	opts         *Options
	class        *quality.Class
	d            Demand
	now, free    stock // as it is, and as it were if nothing were taken
	communicates bool
	shares       bool // some request leaves a part of a GPU to others
	stackable    bool // some GPU could serve two of the requests
	mixShares    bool // some typical claim does
	steps        int  // what is left of the steps of one search
}

// stock is a state of the machine with what it means for the requests.
type stock struct {
	present, idle topology.Mask
	left, total   []Capacity
	candidates    []topology.Mask // by request: eligible, and enough left
}

func newProblem(opts *Options, inv Inventory, d Demand) *problem {
	pr := &problem{opts: opts, class: inv.Class, d: d}
	pr.now = stock{present: inv.Present, idle: inv.Idle, left: inv.Free, total: inv.Total}
	pr.free = stock{present: inv.Present, idle: inv.Present, left: inv.Total, total: inv.Total}
	for _, s := range []*stock{&pr.now, &pr.free} {
		s.candidates = make([]topology.Mask, len(d.Requests))
		for i, r := range d.Requests {
			for g := range (r.Eligible & inv.Present).All() {
				if s.fits(g, r) {
					s.candidates[i] = s.candidates[i].With(g)
				}
			}
		}
	}
	for i := range d.Requests {
		pr.shares = pr.shares || pr.isShare(i)
	}
	for i := range d.Requests {
		for j := range i {
			pr.stackable = pr.stackable || pr.stacks(i, j)
		}
	}
	for _, t := range opts.Mix {
		pr.mixShares = pr.mixShares || !t.whole()
	}
	pr.communicates = pr.decideCommunication()
	return pr
}

// fits reports whether the request could use GPU g alone.
func (s *stock) fits(g int, r Request) bool {
	if r.Exclusive && !s.idle.Has(g) {
		return false
	}
	return s.left[g].covers(r.Use, s.total[g])
}

// covers reports whether c has room for use; dimensions without a total are not
// limited.
func (c Capacity) covers(use, total Capacity) bool {
	return (total.MemoryMiB == 0 || use.MemoryMiB <= c.MemoryMiB) &&
		(total.CoresPercent == 0 || use.CoresPercent <= c.CoresPercent) &&
		(total.Slots == 0 || use.Slots <= c.Slots)
}

func (c Capacity) minus(use Capacity) Capacity {
	return Capacity{
		MemoryMiB: c.MemoryMiB - use.MemoryMiB, CoresPercent: c.CoresPercent - use.CoresPercent, Slots: c.Slots - use.Slots,
	}
}

func (c Capacity) plus(use Capacity) Capacity {
	return Capacity{
		MemoryMiB: c.MemoryMiB + use.MemoryMiB, CoresPercent: c.CoresPercent + use.CoresPercent, Slots: c.Slots + use.Slots,
	}
}

// permille returns how much of the GPU is left, in per mille: the scarcer of
// memory and compute. A GPU without either is all or nothing.
func (c Capacity) permille(total Capacity, idle bool) int64 {
	if total.MemoryMiB <= 0 && total.CoresPercent <= 0 {
		if idle {
			return 1000
		}
		return 0
	}
	out := int64(1000)
	if total.MemoryMiB > 0 {
		out = min(out, clampPermille(c.MemoryMiB, total.MemoryMiB))
	}
	if total.CoresPercent > 0 {
		out = min(out, clampPermille(c.CoresPercent, total.CoresPercent))
	}
	return out
}

func clampPermille(part, whole int64) int64 {
	if part <= 0 {
		return 0
	}
	if part >= whole {
		return 1000
	}
	return int64(float64(part) / float64(whole) * 1000)
}

// isShare reports whether the request leaves something of an eligible GPU.
func (pr *problem) isShare(request int) bool {
	r := pr.d.Requests[request]
	if r.Exclusive {
		return false
	}
	for g := range pr.free.candidates[request].All() {
		if pr.free.total[g].minus(r.Use).permille(pr.free.total[g], false) > 0 {
			return true
		}
	}
	return false
}

// stacks reports whether some GPU could serve both requests if it were free.
func (pr *problem) stacks(a, b int) bool {
	ra, rb := pr.d.Requests[a], pr.d.Requests[b]
	if ra.Exclusive || rb.Exclusive {
		return false
	}
	sum := ra.Use.plus(rb.Use)
	for g := range (pr.free.candidates[a] & pr.free.candidates[b]).All() {
		if pr.free.total[g].covers(sum, pr.free.total[g]) {
			return true
		}
	}
	return false
}

// apart reports whether no GPU can serve both requests: they do not fit on one, or
// a Distinct constraint covers both.
func (pr *problem) apart(a, b int) bool {
	for _, c := range pr.d.Constraints {
		if c.Kind == Distinct && slices.Contains(c.Requests, a) && slices.Contains(c.Requests, b) {
			return true
		}
	}
	return !pr.stacks(a, b)
}

// leastUnion is a lower bound for the number of distinct GPUs: the largest count,
// or the sum of the counts of requests of which no two can share a GPU.
func (pr *problem) leastUnion() int {
	best := 0
	for i, r := range pr.d.Requests {
		sum := r.Count
		group := []int{i}
		for j := i + 1; j < len(pr.d.Requests); j++ {
			alone := true
			for _, k := range group {
				alone = alone && pr.apart(j, k)
			}
			if alone {
				group = append(group, j)
				sum += pr.d.Requests[j].Count
			}
		}
		best = max(best, sum)
	}
	return best
}

func (pr *problem) mostUnion() int {
	sum := 0
	for _, r := range pr.d.Requests {
		sum += r.Count
		if sum > topology.MaxGPUs {
			return topology.MaxGPUs + 1
		}
	}
	return sum
}

func (pr *problem) decideCommunication() bool {
	if pr.d.Policy.Mode == None {
		return false
	}
	switch pr.d.Communicates {
	case Yes:
		return true
	case No:
		return false
	case Auto:
	}
	gpus := pr.leastUnion()
	if pr.shares {
		return max(gpus, pr.d.Held.Count()) >= 2
	}
	return gpus+pr.d.Held.Count() >= 2
}

// solve answers the question.
func (pr *problem) solve(ctx context.Context) (Result, error) {
	res := Result{Communicates: pr.communicates, Exact: true}
	v := newValuer(pr.opts, pr.class)
	res.VMax = v.of(&pr.free)
	if reason := pr.never(); reason != ReasonNone {
		res.Reason = reason
		return res, nil
	}
	now, err := pr.search(ctx, v, &pr.now)
	if err != nil {
		return Result{}, err
	}
	res.Exact = now.exact
	res.Feasible = now.feasible
	if len(now.accepted) > 0 {
		res.Sets = now.accepted
		return res, nil
	}
	free, err := pr.search(ctx, v, &pr.free)
	if err != nil {
		return Result{}, err
	}
	res.Exact = res.Exact && free.exact
	res.BestNow, res.BestWhenFree = now.best, free.best
	res.Reason = pr.reason(now, free)
	if len(free.accepted) > 0 {
		res.BestWhenFree = &free.accepted[0]
	}
	return res, nil
}

// never finds the reasons that no release of GPUs would change.
func (pr *problem) never() Reason {
	var all topology.Mask
	for i, r := range pr.d.Requests {
		if pr.free.candidates[i].Count() < r.Count {
			return ReasonTooFewEligible
		}
		all |= pr.free.candidates[i]
	}
	if !pr.d.Forced.SubsetOf(all) {
		return ReasonForcedNotEligible
	}
	return ReasonNone
}

func (pr *problem) reason(now, free found) Reason {
	switch {
	case free.best == nil && len(pr.d.Constraints) > 0:
		return ReasonConstraint
	case free.best == nil:
		return ReasonTooFewEligible
	case now.best == nil:
		if len(free.accepted) == 0 {
			return ReasonPolicyNever
		}
		return ReasonTooFewFree
	case len(free.accepted) == 0:
		return ReasonPolicyNever
	default:
		return ReasonPolicyNow
	}
}

// key encodes everything the answer depends on.
func (pr *problem) key() memoKey {
	b := make([]byte, 0, 256)
	mask := func(m topology.Mask) { b = binary.LittleEndian.AppendUint64(b, uint64(m)) }
	num := func(v int64) { b = binary.AppendVarint(b, v) }
	mask(pr.now.present)
	mask(pr.now.idle)
	mask(pr.d.Forced)
	mask(pr.d.Held)
	num(int64(pr.d.Policy.Mode))
	num(int64(pr.d.Policy.Level))
	num(int64(pr.d.Policy.MinMBps))
	b = append(b, boolByte(pr.communicates), boolByte(pr.shares))
	num(int64(len(pr.d.Requests)))
	detailed := pr.shares || pr.mixShares || pr.stackable
	for i, r := range pr.d.Requests {
		num(int64(r.Count))
		b = append(b, boolByte(r.Exclusive))
		mask(pr.now.candidates[i])
		mask(pr.free.candidates[i])
		if detailed {
			num(r.Use.MemoryMiB)
			num(r.Use.CoresPercent)
			num(r.Use.Slots)
		}
	}
	if !detailed {
		return memoKey{class: pr.class, body: string(pr.constraintKey(b))}
	}
	for g := range pr.now.left {
		for _, c := range []Capacity{pr.now.left[g], pr.now.total[g]} {
			num(c.MemoryMiB)
			num(c.CoresPercent)
			num(c.Slots)
		}
	}
	return memoKey{class: pr.class, body: string(pr.constraintKey(b))}
}

func (pr *problem) constraintKey(b []byte) []byte {
	b = binary.AppendVarint(b, int64(len(pr.d.Constraints)))
	for _, c := range pr.d.Constraints {
		b = append(b, byte(c.Kind))
		b = binary.AppendVarint(b, int64(len(c.Requests)))
		for _, r := range c.Requests {
			b = binary.AppendVarint(b, int64(r))
		}
		for _, v := range c.Values {
			b = binary.AppendVarint(b, int64(v))
		}
	}
	return b
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
