// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"math/bits"
	"slices"

	"github.com/topodra/topodra/topology"
)

// Limits of the search.
const (
	// maxCombinations bounds the combinations of values that Match constraints
	// allow and the search tries.
	maxCombinations = 4096
	// maxUnions bounds the unions that are enumerated on machines above
	// topology.MaxExactGPUs; C(16,8) is 12,870.
	maxUnions = 20_000
	// totalSearch times Options.MaxSearch bounds the steps of all unions together;
	// after that each union gets fewSteps.
	totalSearch = 50
	fewSteps    = 128
	// checkEvery is how many unions are looked at between two looks at the context.
	checkEvery = 1024
)

// found is what a search over one state of the machine found.
type found struct {
	accepted []Set // satisfy the policy, ranked
	best     *Set  // the best one that fits, whatever the policy says
	feasible int
	exact    bool
}

// search ranks the unions of the smallest size of which one satisfies the policy.
// The best set regardless of the policy is taken from the smallest size that fits
// at all. Larger unions of GPUs that are touched already compete with it when the
// demand does not communicate and the smallest would break up what is idle.
func (pr *problem) search(ctx context.Context, v *valuer, s *stock) (found, error) {
	pr.steps = totalSearch * pr.opts.MaxSearch
	by, exact := pr.combinations(s)
	out := found{exact: exact && pr.class.Exact()}
	largest := min(pr.mostUnion(), pr.class.N())
	for size := max(pr.leastUnion(), pr.d.Forced.Count(), 1); size <= largest; size++ {
		options, exact, err := pr.unions(ctx, by, 0, size)
		if err != nil {
			return out, err
		}
		out.exact = out.exact && exact
		if len(options) == 0 {
			continue
		}
		ranked, best, err := pr.rank(ctx, v, s, by, options)
		if err != nil {
			return out, err
		}
		if out.best == nil {
			out.best, out.feasible = best, len(options)
		}
		if len(ranked) == 0 {
			continue
		}
		out.accepted = ranked
		if !pr.communicates && ranked[0].DeltaV > 0 {
			err = pr.addTouched(ctx, v, s, by, options, &out)
		}
		return out, err
	}
	return out, nil
}

// addTouched ranks the options again, together with the larger unions that need no
// idle GPU.
func (pr *problem) addTouched(ctx context.Context, v *valuer, s *stock, by []*assigner, options []option, out *found) error {
	by, more, exact, err := pr.touchedUnions(ctx, s, by, options[0].union.Count()+1)
	if err != nil {
		return err
	}
	out.exact = out.exact && exact
	if len(more) > 0 {
		out.accepted, _, err = pr.rank(ctx, v, s, by, append(options, more...))
		out.feasible += len(more)
	}
	return err
}

// touchedUnions returns the unions of at least the given size that can serve the
// demand without an idle GPU, and the assigners with those of the unions appended.
func (pr *problem) touchedUnions(ctx context.Context, s *stock, by []*assigner, size int) ([]*assigner, []option, bool, error) {
	from := len(by)
	for _, a := range by[:from] {
		candidates := slices.Clone(a.candidates)
		enough := true
		for i := range candidates {
			candidates[i] &^= s.idle
			enough = enough && candidates[i].Count() >= pr.d.Requests[i].Count
		}
		if enough {
			by = append(by, newAssigner(pr, s, candidates))
		}
	}
	var out []option
	exact := true
	for ; size <= min(pr.mostUnion(), (s.present&^s.idle).Count()) && len(by) > from; size++ {
		options, sure, err := pr.unions(ctx, by, from, size)
		if err != nil {
			return nil, nil, false, err
		}
		exact = exact && sure
		out = append(out, options...)
	}
	return by, out, exact, nil
}

// option is a union that can serve the demand and the index of the assigner that
// says how. There can be thousands, so it holds no pointers.
type option struct {
	union topology.Mask
	by    int32
}

// combinations returns one assigner for each combination of values that the Match
// constraints can agree on.
func (pr *problem) combinations(s *stock) (out []*assigner, exact bool) {
	current := [][]topology.Mask{s.candidates}
	exact = true
	for _, c := range pr.d.Constraints {
		if c.Kind != Match || len(c.Requests) == 0 {
			continue
		}
		var next [][]topology.Mask
		for _, value := range matchValues(c) {
			for _, candidates := range current {
				if narrowed, ok := pr.narrow(candidates, c, value); ok {
					next = append(next, narrowed)
				}
			}
		}
		if len(next) > maxCombinations {
			next, exact = next[:maxCombinations], false
		}
		current = next
	}
	for _, candidates := range current {
		out = append(out, newAssigner(pr, s, candidates))
	}
	return out, exact
}

// matchValues returns the sets of GPUs that share a value, by lowest member.
func matchValues(c Constraint) []topology.Mask {
	var out []topology.Mask
	index := map[int32]int{}
	for g, v := range c.Values {
		if v < 0 {
			continue
		}
		at, ok := index[v]
		if !ok {
			at = len(out)
			index[v] = at
			out = append(out, 0)
		}
		out[at] = out[at].With(g)
	}
	return out
}

// narrow restricts the requests of a Match constraint to the GPUs of one value.
func (pr *problem) narrow(candidates []topology.Mask, c Constraint, value topology.Mask) ([]topology.Mask, bool) {
	out := slices.Clone(candidates)
	for _, r := range c.Requests {
		out[r] &= value
		if out[r].Count() < pr.d.Requests[r].Count {
			return nil, false
		}
	}
	return out, true
}

// unions returns the unions of the given size that one of by[from:] can serve.
func (pr *problem) unions(ctx context.Context, by []*assigner, from, size int) ([]option, bool, error) {
	u := unionSearch{ctx: ctx, seen: newMaskSet(pr.class.N(), len(by)-from > 1), exact: true}
	for at := from; at < len(by); at++ {
		pool := by[at].later[0]
		if !pr.d.Forced.SubsetOf(pool) || pool.Count() < size {
			continue
		}
		if by[at].plain && u.out == nil {
			open, count := pool&^pr.d.Forced, size-pr.d.Forced.Count()
			u.out = make([]option, 0, min(maxUnions, binomial(open.Count(), count)))
		}
		for union := range pr.candidateUnions(pool, size) {
			if !u.look(union, at, by[at]) {
				return nil, false, ctx.Err()
			}
		}
	}
	return u.out, u.exact, ctx.Err()
}

// unionSearch collects what unions finds.
type unionSearch struct {
	ctx    context.Context
	looked int
	seen   *maskSet
	out    []option
	exact  bool
}

// look adds the union if the assigner can serve the demand with it. It returns false
// when the context is done.
func (u *unionSearch) look(union topology.Mask, at int, by *assigner) bool {
	if u.looked++; u.looked%checkEvery == 0 && u.ctx.Err() != nil {
		return false
	}
	if u.seen.has(union) {
		return true
	}
	ok, sure := by.possible(union)
	u.exact = u.exact && (sure || ok)
	if ok {
		u.seen.add(union)
		u.out = append(u.out, option{union: union, by: int32(at)})
	}
	return true
}

// candidateUnions yields the unions to look at: all of the size that contain the
// forced GPUs, or on large machines a selection.
func (pr *problem) candidateUnions(pool topology.Mask, size int) func(yield func(topology.Mask) bool) {
	open := pool &^ pr.d.Forced
	count := size - pr.d.Forced.Count()
	if pr.class.Exact() || binomial(open.Count(), count) <= maxUnions {
		return func(yield func(topology.Mask) bool) { eachSubset(open, count, pr.d.Forced, yield) }
	}
	return func(yield func(topology.Mask) bool) { pr.selectUnions(open, count, yield) }
}

// eachSubset yields base joined with every subset of pool that has count members,
// in ascending order of the subset, until yield says stop.
func eachSubset(pool topology.Mask, count int, base topology.Mask, yield func(topology.Mask) bool) {
	n := pool.Count()
	if count < 0 || count > n {
		return
	}
	if count == 0 {
		yield(base)
		return
	}
	if pool == topology.FullMask(n) && n < topology.MaxGPUs { // positions need no translation
		for x := topology.FullMask(count); x < 1<<n; x = nextSubset(x) {
			if !yield(base | x) {
				return
			}
		}
		return
	}
	members := pool.Positions()
	at := make([]int, count)
	for i := range at {
		at[i] = i
	}
	for {
		set := base
		for _, i := range at {
			set |= 1 << members[i]
		}
		if !yield(set) || !advance(at, n) {
			return
		}
	}
}

// advance moves to the next combination in colexicographic order, which is the
// ascending order of masks.
func advance(at []int, n int) bool {
	for i := range at {
		limit := n
		if i+1 < len(at) {
			limit = at[i+1]
		}
		if at[i]+1 < limit {
			at[i]++
			for j := range i {
				at[j] = j
			}
			return true
		}
	}
	return false
}

// nextSubset returns the next larger mask with as many members.
func nextSubset(x topology.Mask) topology.Mask {
	low := x & -x
	carry := x + low
	return carry | (x^carry)>>(2+bits.TrailingZeros64(uint64(low)))
}

// binomial returns n over k, or something larger than maxUnions when it is.
func binomial(n, k int) int {
	if k < 0 || k > n {
		return 0
	}
	out := 1
	for i := range min(k, n-k) {
		out = out * (n - i) / (i + 1)
		if out > maxUnions {
			return out
		}
	}
	return out
}

// maskSet is a set of unions; a disabled one is always empty.
type maskSet struct {
	enabled bool
	words   []uint64
	other   map[topology.Mask]struct{}
}

func newMaskSet(n int, enabled bool) *maskSet {
	switch {
	case !enabled:
		return &maskSet{}
	case n <= topology.MaxExactGPUs:
		return &maskSet{enabled: true, words: make([]uint64, 1+1<<n/64)}
	default:
		return &maskSet{enabled: true, other: map[topology.Mask]struct{}{}}
	}
}

func (m *maskSet) has(s topology.Mask) bool {
	if !m.enabled {
		return false
	}
	if m.words != nil {
		return m.words[s/64]>>(s%64)&1 == 1
	}
	_, ok := m.other[s]
	return ok
}

func (m *maskSet) add(s topology.Mask) {
	if m.words != nil {
		m.words[s/64] |= 1 << (s % 64)
	} else if m.other != nil {
		m.other[s] = struct{}{}
	}
}
