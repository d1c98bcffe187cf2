// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/topotest"
)

// bruteUnions returns all feasible unions, by trying every choice of GPUs for every
// request.
func bruteUnions(inv placement.Inventory, d placement.Demand) map[topology.Mask]bool {
	b := &brute{d: d, inv: inv, left: slices.Clone(inv.Free), users: make([][]int, len(inv.Free)), out: map[topology.Mask]bool{}}
	b.try(0, nil)
	return b.out
}

// brute is the state of bruteUnions.
type brute struct {
	d     placement.Demand
	inv   placement.Inventory
	left  []placement.Capacity
	users [][]int // by GPU: the requests that use it
	out   map[topology.Mask]bool
}

func (b *brute) try(i int, per []topology.Mask) {
	if i == len(b.d.Requests) {
		var union topology.Mask
		for _, m := range per {
			union |= m
		}
		if b.d.Forced.SubsetOf(union) && constraintsHold(b.d, per) {
			b.out[union] = true
		}
		return
	}
	r := b.d.Requests[i]
	for _, choice := range topotest.Subsets(r.Eligible&b.inv.Present, r.Count) {
		if !b.room(r, choice) {
			continue
		}
		for g := range choice.All() {
			b.use(g, r.Use, -1)
			b.users[g] = append(b.users[g], i)
		}
		b.try(i+1, append(per, choice))
		for g := range choice.All() {
			b.use(g, r.Use, +1)
			b.users[g] = b.users[g][:len(b.users[g])-1]
		}
	}
}

func (b *brute) use(g int, c placement.Capacity, sign int64) {
	b.left[g].MemoryMiB += sign * c.MemoryMiB
	b.left[g].CoresPercent += sign * c.CoresPercent
	b.left[g].Slots += sign * c.Slots
}

// room reports whether every GPU of the choice can take the request as well.
func (b *brute) room(r placement.Request, choice topology.Mask) bool {
	for g := range choice.All() {
		f := b.left[g]
		if f.MemoryMiB < r.Use.MemoryMiB || f.CoresPercent < r.Use.CoresPercent || f.Slots < r.Use.Slots {
			return false
		}
		if r.Exclusive && (!b.inv.Idle.Has(g) || len(b.users[g]) > 0) {
			return false
		}
		for _, user := range b.users[g] {
			if b.d.Requests[user].Exclusive {
				return false
			}
		}
	}
	return true
}

func constraintsHold(d placement.Demand, per []topology.Mask) bool {
	for _, c := range d.Constraints {
		var values []int32
		for i, m := range per {
			if slices.Contains(c.Requests, i) {
				for g := range m.All() {
					values = append(values, c.Values[g])
				}
			}
		}
		slices.Sort(values)
		if len(values) > 0 && values[0] < 0 {
			return false
		}
		distinct := len(slices.Compact(slices.Clone(values)))
		if c.Kind == placement.Match && distinct > 1 || c.Kind == placement.Distinct && distinct != len(values) {
			return false
		}
	}
	return true
}

// randomDemand returns one to three requests, whole and shared, with constraints.
func randomDemand(rng *rand.Rand, n int) placement.Demand {
	var d placement.Demand
	for i := range 1 + rng.IntN(3) {
		r := share(1+rng.IntN(2), int64(1+rng.IntN(4))*gpuMiB/4, int64(rng.IntN(3)*40))
		r.Exclusive = rng.IntN(4) == 0
		r.Name = fmt.Sprintf("claim/%d", i)
		if rng.IntN(2) == 0 {
			r.Eligible = topology.Mask(rng.Uint64())
		}
		if i > 0 && rng.IntN(3) == 0 {
			r = d.Requests[i-1]
		}
		d.Requests = append(d.Requests, r)
	}
	for range rng.IntN(3) {
		c := placement.Constraint{Kind: placement.ConstraintKind(rng.IntN(2))}
		for g := range n {
			c.Values = append(c.Values, int32(rng.IntN(4))-int32(rng.IntN(6)/5))
			_ = g
		}
		for i := range d.Requests {
			if rng.IntN(3) > 0 {
				c.Requests = append(c.Requests, i)
			}
		}
		d.Constraints = append(d.Constraints, c)
	}
	if rng.IntN(5) == 0 {
		d.Forced = topology.MaskOf(rng.IntN(n))
	}
	return d
}

// TestDemandsEqualBruteForce compares the feasible unions of random demands with
// exhaustive assignment, and checks every assignment the planner hands out.
func TestDemandsEqualBruteForce(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{MaxSets: 4096})
	rng := rand.New(rand.NewPCG(9, 9))
	served := 0
	for round := range 600 {
		n := 3 + rng.IntN(4)
		c := classOf(t, topotest.Random(topotest.Shape(round%int(topotest.Shapes)), n, uint64(round)))
		used := map[int]int64{}
		for g := range n {
			used[g] = int64(rng.IntN(4)) * gpuMiB / 4 * int64(rng.IntN(2))
		}
		inv := shared(c, used)
		d := randomDemand(rng, n)
		r := plan(t, p, inv, d)
		want := expectedUnions(bruteUnions(inv, d), inv, r)
		got := map[topology.Mask]bool{}
		for _, s := range r.Sets {
			got[s.GPUs] = true
			checkAssignment(t, inv, d, s)
		}
		if diff := cmp.Diff(want, got); diff != "" || !r.Exact || (len(got) == 0) != (r.Reason != placement.ReasonNone) {
			t.Fatalf("round %d: %+v\n%+v\nexact %v, reason %q, unions (-want +got):\n%s", round, d, used, r.Exact, r.Reason, diff)
		}
		if len(want) > 0 {
			served++
		}
	}
	if served < 200 {
		t.Errorf("only %d of 600 demands can be served: the test is weak", served)
	}
}

// expectedUnions keeps the unions of the smallest size and, where the demand does
// not communicate and those cost something, the ones without an idle GPU.
func expectedUnions(all map[topology.Mask]bool, inv placement.Inventory, r placement.Result) map[topology.Mask]bool {
	smallest := 65
	for u := range all {
		smallest = min(smallest, u.Count())
	}
	cheapest := int64(1) << 62
	for _, s := range r.Sets {
		if s.GPUs.Count() == smallest {
			cheapest = min(cheapest, s.DeltaV)
		}
	}
	out := map[topology.Mask]bool{}
	for u := range all {
		if u.Count() == smallest || (!r.Communicates && cheapest > 0 && u&inv.Idle == 0) {
			out[u] = true
		}
	}
	return out
}

// checkAssignment checks that the requests of a set fit together.
func checkAssignment(t *testing.T, inv placement.Inventory, d placement.Demand, s placement.Set) {
	t.Helper()
	fixed := d
	fixed.Requests = slices.Clone(d.Requests)
	var union topology.Mask
	for i := range fixed.Requests {
		if s.PerRequest[i].Count() != d.Requests[i].Count || !s.PerRequest[i].SubsetOf(d.Requests[i].Eligible) {
			t.Errorf("request %d gets %s", i, s.PerRequest[i])
		}
		fixed.Requests[i].Eligible = s.PerRequest[i]
		union |= s.PerRequest[i]
	}
	if union != s.GPUs || !bruteUnions(inv, fixed)[union] {
		t.Errorf("%+v does not serve %+v", s, d)
	}
}
