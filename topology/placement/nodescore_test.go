// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

func nv(rings int) quality.Quality {
	return quality.Quality{Rings: rings, MBps: topology.MBps(rings) * 25_000, Bottleneck: quality.NVLink, Reach: quality.NVLink}
}

func pcie(mbps topology.MBps) quality.Quality {
	return quality.Quality{MBps: mbps, Bottleneck: quality.PIX, Reach: quality.PIX}
}

func TestScoreNodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		nodes        []placement.NodeCandidate
		communicates bool
		want         []int64
	}{
		{"none", nil, true, []int64{}},
		{"alone and empty", []placement.NodeCandidate{{Quality: nv(2), DeltaV: 7}}, true, []int64{60}},
		{"alone, full and free of cost", []placement.NodeCandidate{{Quality: nv(2), AllocatedPermille: 1000}}, true, []int64{100}},
		{"quality before fullness", []placement.NodeCandidate{
			{Quality: nv(2), DeltaV: 100}, {Quality: nv(1), AllocatedPermille: 1000},
		}, true, []int64{60, 20}},
		{"full before cheap", []placement.NodeCandidate{
			{Quality: nv(2), DeltaV: 100, AllocatedPermille: 1000}, {Quality: nv(2), DeltaV: 0, AllocatedPermille: 500},
		}, true, []int64{90, 85}},
		{"tiers are 10 % wide", []placement.NodeCandidate{{Quality: pcie(1000)}, {Quality: pcie(900)}, {Quality: pcie(899)}}, true, []int64{70, 70, 5}},
		{"three tiers", []placement.NodeCandidate{
			{Quality: nv(1), DeltaV: 1}, {Quality: pcie(90_000), AllocatedPermille: 1000}, {Quality: pcie(10_000), AllocatedPermille: 1000},
		}, true, []int64{60, 20, 10}},
		{"lone claims do not look at quality", []placement.NodeCandidate{
			{Quality: nv(2), DeltaV: 100, AllocatedPermille: 500}, {Quality: pcie(1), DeltaV: 50, AllocatedPermille: 250},
		}, false, []int64{30, 35}},
		{"out of range", []placement.NodeCandidate{{Quality: nv(1), AllocatedPermille: 5000, DeltaV: -3}}, true, []int64{100}},
		{"huge values", []placement.NodeCandidate{{DeltaV: 1 << 62}, {DeltaV: 1 << 61}}, false, []int64{0, 20}},
	} {
		got := placement.ScoreNodes(tc.nodes, tc.communicates, quality.DefaultTierPercent)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// TestScoreBands: whatever the other numbers are, the best tier is at 60 and more,
// everything else at 20 and less, and a better tier is never below a worse one.
// TestOddCardIsCheapest: a single GPU takes the rest of a broken NVLink pair rather
// than open an idle machine, however slow the links are that it would break there.
func TestOddCardIsCheapest(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	candidate := func(name, free string) placement.NodeCandidate {
		inv := placement.WholeGPUs(classOf(t, machine(t, name)), mask(t, free))
		d := demand(placement.WholeRequest("a", 1))
		best := plan(t, p, inv, d).Sets[0]
		return placement.NodeCandidate{
			Quality: best.Quality, DeltaV: best.DeltaV, AllocatedPermille: placement.AllocatedPermille(inv, d, best),
		}
	}
	nodes := []placement.NodeCandidate{candidate("pcie_8x_pix_node_sys", "0-7"), candidate("h100nvl_8x_pairs", "1-7")}
	if nodes[0].DeltaV <= nodes[1].DeltaV {
		t.Errorf("breaking an idle PCIe machine costs %d, the odd card of an NVLink pair %d", nodes[0].DeltaV, nodes[1].DeltaV)
	}
	if s := placement.ScoreNodes(nodes, false, p.TierPercent()); s[1] <= s[0] {
		t.Errorf("scores %v: the odd card must win", s)
	}
}

func TestScoreBands(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		nodes := make([]placement.NodeCandidate, 1+rng.IntN(12))
		for i := range nodes {
			q := pcie(topology.MBps(1 + rng.IntN(60_000)))
			if rng.IntN(2) == 0 {
				q = nv(1 + rng.IntN(6))
			}
			nodes[i] = placement.NodeCandidate{Quality: q, DeltaV: rng.Int64N(1000), AllocatedPermille: rng.Int64N(1001)}
		}
		checkBands(t, nodes, placement.ScoreNodes(nodes, true, 10))
	}
}

func checkBands(t *testing.T, nodes []placement.NodeCandidate, scores []int64) {
	t.Helper()
	best := slices.MaxFunc(nodes, func(a, b placement.NodeCandidate) int { return quality.Compare(a.Quality, b.Quality) }).Quality
	for i, n := range nodes {
		inBest := quality.InTier(best, n.Quality, 10)
		if s := scores[i]; s < 0 || s > 100 || inBest != (s >= 60) || !inBest && s > 20 {
			t.Fatalf("%+v of best %v: score %d", n, best, s)
		}
		for j, o := range nodes {
			clearlyBetter := quality.Compare(n.Quality, o.Quality) > 0 && !quality.InTier(n.Quality, o.Quality, 10)
			if clearlyBetter && scores[i] < scores[j] {
				t.Fatalf("%+v scores %d, the worse %+v scores %d", n, scores[i], o, scores[j])
			}
		}
	}
}

func TestAllocatedPermille(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "gb200_4x"))
	p := planner(t, placement.Options{})
	inv := placement.WholeGPUs(c, mask(t, "1-3"))
	d := wholes(2)
	if got := placement.AllocatedPermille(inv, d, plan(t, p, inv, d).Sets[0]); got != 750 {
		t.Errorf("one taken and two placed of four: %d, want 750", got)
	}
	inv = shared(c, map[int]int64{0: gpuMiB / 2})
	d = demand(share(1, gpuMiB/4, 90))
	if got := placement.AllocatedPermille(inv, d, plan(t, p, inv, d).Sets[0]); got != 225 {
		t.Errorf("90 %% of the compute of one of four: %d, want 225", got)
	}
	inv.Present = 0
	inv.Idle = 0
	if got := placement.AllocatedPermille(inv, d, placement.Set{}); got != 0 {
		t.Errorf("no GPUs: %d, want 0", got)
	}
}

// TestDecides names the criterion for each pair of neighbours in a ranking.
func TestDecides(t *testing.T) {
	t.Parallel()
	base := placement.Set{GPUs: 3}
	for _, tc := range []struct {
		change       func(*placement.Set)
		communicates bool
		want         placement.Criterion
	}{
		{func(s *placement.Set) { s.GPUs = 5 }, true, placement.CriterionPosition},
		{func(s *placement.Set) { s.Keys.Rails = 2 }, true, placement.CriterionRails},
		{func(s *placement.Set) { s.Keys.DeltaLocal, s.Keys.Rails = 2, 2 }, true, placement.CriterionLocal},
		{func(s *placement.Set) { s.Keys.NUMANodes, s.Keys.Rails = 2, 2 }, true, placement.CriterionNUMA},
		{func(s *placement.Set) { s.Keys.CutMBps = 1 }, true, placement.CriterionCut},
		{func(s *placement.Set) { s.Keys.PairMBps, s.Keys.CutMBps = 1, 1 }, true, placement.CriterionPairs},
		{func(s *placement.Set) { s.Keys.Residual, s.Keys.PairMBps = 1, 1 }, true, placement.CriterionResidual},
		{func(s *placement.Set) { s.Keys.Stranded, s.Keys.Residual = 1, 1 }, true, placement.CriterionStranded},
		{func(s *placement.Set) { s.DeltaV, s.Tier = 1, 1 }, true, placement.CriterionTier},
		{func(s *placement.Set) { s.DeltaV, s.Tier = 1, 1 }, false, placement.CriterionDeltaV},
		{func(s *placement.Set) { s.GPUs, s.Tier = 7, 1 }, false, placement.CriterionSize},
		{func(s *placement.Set) { s.Tier = 1 }, false, placement.CriterionTier},
	} {
		loser := base
		tc.change(&loser)
		if got := placement.Decides(base, loser, tc.communicates); got != tc.want {
			t.Errorf("%+v, communicates %v: %q, want %q", loser, tc.communicates, got, tc.want)
		}
	}
}
