// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/topodra/topodra/topology"
)

// assigner decides whether a union of GPUs can serve all requests, and how.
type assigner struct {
	pr         *problem
	s          *stock
	candidates []topology.Mask // by request, narrowed by Match constraints
	// plain: all requests accept the same GPUs, none can share a GPU with another
	// and nothing else ties them, so that every union of the right size will do.
	plain bool
	// alone: no two requests fit on one GPU, so that a state of the search is
	// described by the GPUs that are taken.
	alone    bool
	distinct []distinctRule
	later    []topology.Mask // GPUs the requests from i on can use
	counts   []int           // GPUs the requests from i on need
	need     Capacity        // of all requests together
	twin     []bool          // request i is like request i − 1

	// State of one search.
	budget int
	union  topology.Mask
	left   []Capacity
	taken  []int // how many requests use the GPU
	chosen []topology.Mask
	used   []uint64 // by rule: values that are taken
	failed map[failure]struct{}
}

// distinctRule is a Distinct constraint; bit is the value of each GPU as a bit
// number, -1 when the GPU lacks the attribute.
type distinctRule struct {
	applies []bool // by request
	bit     []int
}

type failure struct {
	request int
	taken   topology.Mask
}

func newAssigner(pr *problem, s *stock, candidates []topology.Mask) *assigner {
	a := &assigner{pr: pr, s: s, candidates: candidates, alone: true, plain: true}
	requests := pr.d.Requests
	for _, c := range pr.d.Constraints {
		if c.Kind == Distinct && len(c.Requests) > 0 {
			a.distinct = append(a.distinct, newDistinct(c, len(requests)))
		}
	}
	for i := range requests {
		for j := range i {
			a.alone = a.alone && !pr.stacks(i, j)
		}
		a.plain = a.plain && candidates[i] == candidates[0]
	}
	a.plain = a.plain && a.alone && len(a.distinct) == 0
	a.later = make([]topology.Mask, len(requests)+1)
	a.counts = make([]int, len(requests)+1)
	a.twin = make([]bool, len(requests))
	for i := len(requests) - 1; i >= 0; i-- {
		a.later[i] = a.later[i+1] | candidates[i]
		a.counts[i] = a.counts[i+1] + requests[i].Count
		for range requests[i].Count {
			a.need = a.need.plus(requests[i].Use)
		}
		a.twin[i] = i > 0 && a.alike(i-1, i)
	}
	a.left = make([]Capacity, len(s.left))
	a.taken = make([]int, len(s.left))
	a.chosen = make([]topology.Mask, len(requests))
	a.used = make([]uint64, len(a.distinct))
	return a
}

func newDistinct(c Constraint, requests int) distinctRule {
	rule := distinctRule{applies: make([]bool, requests), bit: make([]int, len(c.Values))}
	for _, r := range c.Requests {
		rule.applies[r] = true
	}
	number := map[int32]int{}
	for g, v := range c.Values {
		if v < 0 {
			rule.bit[g] = -1
			continue
		}
		if _, ok := number[v]; !ok {
			number[v] = len(number)
		}
		rule.bit[g] = number[v]
	}
	return rule
}

// alike reports whether exchanging the GPUs of the two requests changes nothing.
func (a *assigner) alike(i, j int) bool {
	x, y := a.pr.d.Requests[i], a.pr.d.Requests[j]
	if x.Count != y.Count || x.Use != y.Use || x.Exclusive != y.Exclusive || a.candidates[i] != a.candidates[j] {
		return false
	}
	for _, rule := range a.distinct {
		if rule.applies[i] != rule.applies[j] {
			return false
		}
	}
	return true
}

// assign returns the GPUs of each request so that together they are exactly the
// union, the first such assignment in a fixed order. ok is false when there is
// none, exact is false when the search gave up.
func (a *assigner) assign(union topology.Mask) (per []topology.Mask, ok, exact bool) {
	if a.plain {
		return a.split(union)
	}
	return a.search(union, a.pr.opts.MaxSearch)
}

func (a *assigner) search(union topology.Mask, steps int) (per []topology.Mask, ok, exact bool) {
	if !a.roomFor(union) {
		return nil, false, true
	}
	a.union = union
	a.budget = steps
	copy(a.left, a.s.left)
	clear(a.taken)
	clear(a.used)
	clear(a.chosen)
	a.failed = nil
	if !a.place(0) {
		return nil, false, a.budget > 0
	}
	return slices.Clone(a.chosen), true, true
}

// possible is assign without the assignment, within the steps of the whole search.
func (a *assigner) possible(union topology.Mask) (ok, exact bool) {
	if a.plain {
		return union.Count() == a.counts[0] && union.SubsetOf(a.candidates[0]), true
	}
	steps := min(a.pr.opts.MaxSearch, max(fewSteps, a.pr.steps))
	a.budget = steps
	_, ok, exact = a.search(union, steps)
	a.pr.steps -= steps - a.budget
	return ok, exact
}

// roomFor is a necessary condition: the requests do not need more than all GPUs of
// the union have together.
func (a *assigner) roomFor(union topology.Mask) bool {
	var have, total Capacity
	limited := Capacity{MemoryMiB: 1, CoresPercent: 1, Slots: 1}
	for g := range union.All() {
		have, total = have.plus(a.s.left[g]), a.s.total[g]
		limited.MemoryMiB = min(limited.MemoryMiB, total.MemoryMiB)
		limited.CoresPercent = min(limited.CoresPercent, total.CoresPercent)
		limited.Slots = min(limited.Slots, total.Slots)
	}
	return have.covers(a.need, limited)
}

func (a *assigner) split(union topology.Mask) ([]topology.Mask, bool, bool) {
	if ok, _ := a.possible(union); !ok {
		return nil, false, true
	}
	per := make([]topology.Mask, len(a.candidates))
	request := 0
	for g := range union.All() {
		for per[request].Count() == a.pr.d.Requests[request].Count {
			request++
		}
		per[request] = per[request].With(g)
	}
	return per, true, true
}

// place serves the requests from the given one on.
func (a *assigner) place(request int) bool {
	missing := a.missing()
	if request == len(a.candidates) {
		return missing == 0
	}
	if missing.Count() > a.counts[request] || !missing.SubsetOf(a.later[request]) {
		return false
	}
	state := failure{request: request, taken: a.union &^ missing}
	memoise := a.alone && len(a.distinct) == 0 && !a.twin[request]
	if _, bad := a.failed[state]; memoise && bad {
		return false
	}
	from := 0
	if a.twin[request] {
		from = a.chosen[request-1].Lowest()
	}
	a.chosen[request] = 0
	if a.choose(request, a.pr.d.Requests[request].Count, from) {
		return true
	}
	if memoise && a.budget > 0 {
		if a.failed == nil {
			a.failed = map[failure]struct{}{}
		}
		a.failed[state] = struct{}{}
	}
	return false
}

func (a *assigner) missing() topology.Mask {
	missing := a.union
	for g := range a.union.All() {
		if a.taken[g] > 0 {
			missing = missing.Without(g)
		}
	}
	return missing
}

// choose picks count more GPUs at or above position from for the request, then
// goes on with the next one.
func (a *assigner) choose(request, count, from int) bool {
	if a.budget <= 0 {
		return false
	}
	a.budget--
	if count == 0 {
		return a.place(request + 1)
	}
	for g := range (a.candidates[request] & a.union).All() {
		if g < from || !a.take(request, g) {
			continue
		}
		if a.choose(request, count-1, g+1) {
			return true
		}
		a.release(request, g)
	}
	return false
}

// take gives the GPU to the request if there is room and no rule forbids it.
func (a *assigner) take(request, g int) bool {
	r := a.pr.d.Requests[request]
	if !a.left[g].covers(r.Use, a.s.total[g]) || (a.taken[g] > 0 && (r.Exclusive || a.exclusivelyTaken(g))) {
		return false
	}
	for i := range a.distinct {
		if bit := a.distinct[i].bit[g]; a.distinct[i].applies[request] && (bit < 0 || a.used[i]>>bit&1 == 1) {
			return false
		}
	}
	for i := range a.distinct {
		if a.distinct[i].applies[request] {
			a.used[i] |= 1 << a.distinct[i].bit[g]
		}
	}
	a.left[g] = a.left[g].minus(r.Use)
	a.taken[g]++
	a.chosen[request] = a.chosen[request].With(g)
	return true
}

func (a *assigner) release(request, g int) {
	for i := range a.distinct {
		if a.distinct[i].applies[request] {
			a.used[i] &^= 1 << a.distinct[i].bit[g]
		}
	}
	a.left[g] = a.left[g].plus(a.pr.d.Requests[request].Use)
	a.taken[g]--
	a.chosen[request] = a.chosen[request].Without(g)
}

func (a *assigner) exclusivelyTaken(g int) bool {
	for i, r := range a.pr.d.Requests {
		if r.Exclusive && a.chosen[i].Has(g) {
			return true
		}
	}
	return false
}
