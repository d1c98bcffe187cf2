// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"math/rand/v2"
	"testing"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

func recorded(t testing.TB) []*capture.Recorded {
	t.Helper()
	all, err := topotest.All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func machine(t testing.TB, name string) *topology.Machine {
	t.Helper()
	r, err := topotest.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return r.Machine
}

func classOf(t testing.TB, m *topology.Machine) *quality.Class {
	t.Helper()
	c, err := quality.NewClass(m, quality.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func planner(t testing.TB, opts placement.Options) *placement.Planner {
	t.Helper()
	p, err := placement.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func plan(t testing.TB, p *placement.Planner, inv placement.Inventory, d placement.Demand) placement.Result {
	t.Helper()
	r, err := p.Plan(t.Context(), inv, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mask(t testing.TB, text string) topology.Mask {
	t.Helper()
	m, err := topology.ParseMask(text, topology.MaxGPUs)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wholes is a demand for k whole GPUs.
func wholes(k int) placement.Demand {
	return placement.Demand{Requests: []placement.Request{placement.WholeRequest("claim/gpu", k)}}
}

// checkOrder compares the planner's whole ranking with the reference's.
func checkOrder(t *testing.T, p *placement.Planner, c *quality.Class, ref *topotest.Reference, idle topology.Mask, k int) {
	t.Helper()
	for _, communicates := range []placement.Communication{placement.Yes, placement.No} {
		d := wholes(k)
		d.Communicates = communicates
		got := plan(t, p, placement.WholeGPUs(c, idle), d)
		want := ref.Rank(idle, k, communicates == placement.Yes)
		if len(got.Sets) != len(want) || got.Feasible != len(want) && len(want) > 0 {
			t.Fatalf("%s, %d of %s: %d sets, want %d", ref.M.Name, k, idle, len(got.Sets), len(want))
		}
		for i, s := range got.Sets {
			w := want[i]
			if s.GPUs != w.GPUs || s.Tier != w.Tier || s.DeltaV != w.DeltaV ||
				s.Quality.Rings != w.Quality.Rings || s.Quality.MBps != w.Quality.MBps ||
				s.Keys.PairMBps != w.Pairs || s.Keys.CutMBps != w.Cut || s.Keys.NUMANodes != w.NUMA ||
				s.Keys.DeltaLocal != w.DeltaLocal || s.Keys.Rails != w.Rails {
				t.Fatalf("%s, %d of %s, communicates %v, place %d:\ngot  %+v\nwant %+v",
					ref.M.Name, k, idle, communicates, i, s, w)
			}
		}
	}
}

// TestEqualsReference compares the complete ranking with brute force: every
// recorded machine of up to eight GPUs, every set of free GPUs, every size.
func TestEqualsReference(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{MaxSets: 4096, MemoSize: -1})
	for _, r := range recorded(t) {
		m := r.Machine
		if m.N() > 8 {
			continue
		}
		c, ref := classOf(t, m), topotest.NewReference(m)
		for idle := topology.Mask(0); idle <= topology.FullMask(m.N()); idle++ {
			for k := 1; k <= m.N(); k++ {
				checkOrder(t, p, c, ref, idle, k)
			}
		}
	}
}

// TestEqualsReferenceRandom does the same on random machines of up to ten GPUs and
// random free sets.
func TestEqualsReferenceRandom(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{MaxSets: 4096, MemoSize: -1})
	rng := rand.New(rand.NewPCG(1, 2))
	for shape := range topotest.Shapes {
		for seed := range uint64(8) {
			m := topotest.Random(shape, 2+int(seed), 100+seed)
			if m.N() > 8 {
				m = topotest.Random(shape, 8, 100+seed)
			}
			checkRandom(t, p, m, rng, 12)
		}
		checkRandom(t, p, topotest.Random(shape, 9, 7), rng, 3)
	}
	checkRandom(t, p, topotest.Random(topotest.Quads, 10, 7), rng, 3)
	checkRandom(t, p, topotest.Random(topotest.Bridged, 10, 8), rng, 3)
}

func checkRandom(t *testing.T, p *placement.Planner, m *topology.Machine, rng *rand.Rand, times int) {
	t.Helper()
	c, ref := classOf(t, m), topotest.NewReference(m)
	ref.ClosedForm = true
	for range times {
		idle := topology.Mask(rng.Uint64()) & topology.FullMask(m.N())
		checkOrder(t, p, c, ref, idle, 1+rng.IntN(m.N()))
	}
}

// TestSixteenGPUs checks the best set on a machine of 16 against a plain loop over
// all sets.
func TestSixteenGPUs(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	rng := rand.New(rand.NewPCG(3, 4))
	machines := []*topology.Machine{machine(t, "derived_dgx2_16xv100")}
	for shape := range topotest.Shapes {
		machines = append(machines, topotest.Random(shape, 16, 11))
	}
	for _, m := range machines {
		c := classOf(t, m)
		for range 6 {
			idle := topology.Mask(rng.Uint64()) & topology.FullMask(16)
			checkBest(t, p, c, m.Name, idle, 1+rng.IntN(8))
		}
	}
}

// checkBest checks that the planner's set is in the tier of the best there is.
func checkBest(t *testing.T, p *placement.Planner, c *quality.Class, name string, idle topology.Mask, k int) {
	t.Helper()
	got := plan(t, p, placement.WholeGPUs(c, idle), wholes(k))
	if k > idle.Count() {
		if len(got.Sets) > 0 {
			t.Errorf("%s: %d of %s: got %s", name, k, idle, got.Sets[0].GPUs)
		}
		return
	}
	best := quality.Quality{}
	for _, s := range topotest.Subsets(idle, k) {
		if q := c.Of(s); quality.Compare(q, best) > 0 {
			best = q
		}
	}
	if !got.Exact || k > 1 && !quality.InTier(best, got.Sets[0].Quality, quality.DefaultTierPercent) {
		t.Errorf("%s: %d of %s: %s is %v, the best is %v", name, k, idle, got.Sets[0].GPUs, got.Sets[0].Quality, best)
	}
}

// TestFreeingNeverLowersTheTier: with one more free GPU the best set is at least in
// the tier of what was best before.
func TestFreeingNeverLowersTheTier(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{MaxSets: 1, MemoSize: -1})
	machines := []*topology.Machine{machine(t, "dgx1v_8xv100"), machine(t, "b200_8x_degraded_gpu2")}
	for shape := range topotest.Shapes {
		machines = append(machines, topotest.Random(shape, 7, 21))
	}
	for _, m := range machines {
		c := classOf(t, m)
		for idle := topology.Mask(0); idle <= topology.FullMask(m.N()); idle++ {
			for k := 2; k <= idle.Count(); k++ {
				before := plan(t, p, placement.WholeGPUs(c, idle), wholes(k)).Sets[0].Quality
				for g := range (topology.FullMask(m.N()) &^ idle).All() {
					after := plan(t, p, placement.WholeGPUs(c, idle.With(g)), wholes(k)).Sets[0].Quality
					if quality.Compare(after, before) < 0 && !quality.InTier(before, after, quality.DefaultTierPercent) {
						t.Fatalf("%s: %d of %s is %v, but with GPU %d also free %v", m.Name, k, idle, before, g, after)
					}
				}
			}
		}
	}
}

// TestPermutation: renaming the GPUs renames the answer, up to sets that tie on
// everything but their positions.
func TestPermutation(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{MaxSets: 1})
	order := []int{5, 2, 7, 0, 6, 1, 4, 3}
	for _, r := range recorded(t) {
		if r.Machine.N() != 8 {
			continue
		}
		c, renamed := classOf(t, r.Machine), classOf(t, r.Machine.Permute(order))
		for idle := topology.Mask(1); idle < 256; idle += 3 {
			var before topology.Mask
			for i := range idle.All() {
				before = before.With(order[i])
			}
			for k := 1; k <= idle.Count(); k++ {
				a := plan(t, p, placement.WholeGPUs(c, before), wholes(k)).Sets[0]
				b := plan(t, p, placement.WholeGPUs(renamed, idle), wholes(k)).Sets[0]
				if a.Quality != b.Quality || a.DeltaV != b.DeltaV || a.Keys != b.Keys {
					t.Fatalf("%s: %d of %s: %+v, renamed %+v", r.Machine.Name, k, idle, a, b)
				}
			}
		}
	}
}
