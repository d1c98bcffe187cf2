// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

func classOf(t *testing.T, m *topology.Machine) *quality.Class {
	t.Helper()
	c, err := quality.NewClass(m, quality.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func recorded(t *testing.T, name string) *quality.Class {
	t.Helper()
	r, err := topotest.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return classOf(t, r.Machine)
}

func clusterOf(t *testing.T, classes ...*quality.Class) *model.Cluster {
	t.Helper()
	var specs []model.Spec
	for i, c := range classes {
		specs = append(specs, model.Spec{Name: string(rune('a' + i)), Class: c})
	}
	c, err := model.NewCluster(specs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func whole(gpus int, communicates bool) model.Demand {
	return model.Demand{GPUs: gpus, MemoryMilli: model.WholeMilli, CoresPercent: model.WholeCores, Communicates: communicates}
}

func share(milli int64) model.Demand {
	return model.Demand{GPUs: 1, MemoryMilli: milli, CoresPercent: milli / 10}
}

// fill takes GPUs away so that only the given ones are free.
func fill(t *testing.T, c *model.Cluster, node int, free topology.Mask) {
	t.Helper()
	for g := range (c.Nodes[node].Idle() &^ free).All() {
		if err := c.Take(whole(1, false), model.Place{Node: node, GPUs: topology.MaskOf(g)}); err != nil {
			t.Fatal(err)
		}
	}
}

func place(t *testing.T, p Policy, c *model.Cluster, d model.Demand) model.Place {
	t.Helper()
	at, ok, err := p.Place(c, d)
	if err != nil || !ok {
		t.Fatalf("%s found no place for %+v: %v", p.Name(), d, err)
	}
	return at
}

func named(t *testing.T, name string, typical ...model.Typical) Policy {
	t.Helper()
	p, err := New(name, Setup{Seed: 1, Typical: typical})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSets pins the sets that policies take on one machine, worked out by hand.
func TestSets(t *testing.T) {
	t.Parallel()
	five := topology.New("five", 5)
	five.NVLinks[2][3], five.NVLinks[3][2] = 18, 18
	machines := map[string]*quality.Class{
		"dgx1v": recorded(t, "dgx1v_8xv100"), "pairs": recorded(t, "h100nvl_8x_pairs"), "one pair": recorded(t, "a100_4x_one_pair"),
		"switch": recorded(t, "hgxa100_8x_numa2"), "pcie": recorded(t, "pcie_8x_pix_node_sys"), "five": classOf(t, five),
	}
	six := topology.MaskOf(0, 1, 3, 4, 6, 7) // the free GPUs of the example in docs/objective.md
	for _, tc := range []struct {
		policy, machine string
		free            topology.Mask
		demand          model.Demand
		want            []int
	}{
		// The example in docs/objective.md: the only set with a ring; and the least harm.
		{"topodra", "dgx1v", six, whole(4, true), []int{0, 3, 4, 7}},
		{"topodra", "dgx1v", six, whole(4, false), []int{0, 1, 3, 4}},
		// Scores: 0-4 210, 4-6 120, 4-7 220, 6-7 220, 0-6 and 0-7 10 each: 790. The set with a ring has 780.
		{"hami", "dgx1v", six, whole(4, true), []int{0, 4, 6, 7}},
		// 0-3, 4-7 and 6-7 have 220, the first one wins.
		{"hami", "dgx1v", six, whole(2, true), []int{0, 3}},
		// Of a free pair and a single GPU the single is least connected.
		{"hami", "pairs", topology.MaskOf(2, 3, 6), whole(1, false), []int{6}},
		{"hami", "pairs", topology.MaskOf(2, 3, 6), share(100), []int{6}},
		// Behind a switch all pairs have 1200, so those of one NUMA node come first by their 20 for NODE.
		{"hami", "switch", topology.MaskOf(1, 4, 6), whole(2, true), []int{4, 6}},
		// Best partition: 0-4 (210), 1-3 (120), 6-7 (220) = 550; its best set.
		{"gpuallocator", "dgx1v", six, whole(2, true), []int{6, 7}},
		{"gpuallocator", "dgx1v", six, whole(1, true), []int{0}},
		// 0-1-2 with 3 left over and 0-1-3 with 2 left over are alike: the first one.
		{"gpuallocator", "one pair", topology.FullMask(4), whole(3, true), []int{0, 1, 2}},
		// 0-1-4 (30) and 2-3 (1810) are worth as much as 0-1 (10) and 2-3-4 (1830) and found
		// first; the pair is smaller than asked for, so the three are returned.
		{"gpuallocator", "five", topology.FullMask(5), whole(3, true), []int{0, 1, 4}},
		// 6-7 leaves the block of four alone (100), 0-1 and 2-3 leave no larger block.
		{"koordinator", "dgx1v", topology.MaskOf(0, 1, 2, 3, 6, 7), whole(2, true), []int{6, 7}},
		// 5 leaves 0-3 (100), 0-1 and 2-3 (1 each).
		{"koordinator", "dgx1v", topology.MaskOf(0, 1, 2, 3, 5), whole(1, true), []int{5}},
		// No block of four is free: the socket with most room, then its lowest.
		{"koordinator", "pairs", topology.MaskOf(0, 1, 4, 5, 6), whole(4, true), []int{0, 1, 4, 5}},
		// There are no blocks of three: the fullest socket that has room for them.
		{"koordinator", "pcie", topology.MaskOf(0, 1, 2, 3, 5, 6, 7), whole(3, true), []int{5, 6, 7}},
		// No free block of two; the only switch with two free GPUs has none, so a socket.
		{"koordinator", "pcie", topology.MaskOf(0, 2, 5), whole(2, true), []int{0, 2}},
		// A double link is predicted at 39.08 GB/s, more than any other hop.
		{"mapa", "dgx1v", six, whole(2, true), []int{0, 3}},
		// The single GPU leaves the pair, 10+10 and 318.7 GB/s otherwise.
		{"mapa", "pairs", topology.MaskOf(2, 3, 6), whole(1, false), []int{6}},
		{"first-fit", "dgx1v", six, whole(4, true), []int{0, 1, 3, 4}},
		{"first-fit-most", "dgx1v", topology.MaskOf(5, 7), whole(1, true), []int{5}},
		{"fgd", "dgx1v", six, whole(2, true), []int{0, 1}},
	} {
		c := clusterOf(t, machines[tc.machine])
		fill(t, c, 0, tc.free)
		if got := place(t, named(t, tc.policy), c, tc.demand); got.GPUs != topology.MaskOf(tc.want...) {
			t.Errorf("%s on %q, free %s, for %d GPUs (communicating: %t): %s, want %v",
				tc.policy, tc.machine, tc.free, tc.demand.GPUs, tc.demand.Communicates, got.GPUs, tc.want)
		}
	}
}

// TestNodes pins the nodes: two alike, of which the second is half full.
func TestNodes(t *testing.T) {
	t.Parallel()
	class := recorded(t, "h100nvl_8x_pairs")
	typical := []model.Typical{{Demand: whole(1, false), Share: 0.5}, {Demand: whole(8, false), Share: 0.5}}
	for _, tc := range []struct {
		policy string
		demand model.Demand
		want   int
	}{
		{"first-fit", whole(2, true), 0}, {"first-fit-most", whole(2, true), 1}, {"hami", whole(2, true), 1},
		{"gpuallocator", whole(2, true), 1}, {"koordinator", whole(2, true), 1}, {"mapa", whole(2, true), 1},
		// The second node has no bridged pair left: the tier decides for the first.
		{"topodra", whole(2, true), 0}, {"topodra", whole(2, false), 1}, {"topodra", whole(1, false), 1},
		// On the empty node seven GPUs are lost to jobs of eight, 3,500 per mille more; on the other they are
		// lost already, and one fewer remains.
		{"fgd", whole(1, false), 1},
		{"hami", whole(8, true), 0}, {"topodra", whole(8, true), 0},
	} {
		c := clusterOf(t, class, class)
		fill(t, c, 1, topology.MaskOf(0, 2, 4, 6))
		if got := place(t, named(t, tc.policy, typical...), c, tc.demand); got.Node != tc.want {
			t.Errorf("%s for %d GPUs (communicating: %t) takes node %d, want %d", tc.policy, tc.demand.GPUs, tc.demand.Communicates, got.Node, tc.want)
		}
	}
}

// TestShares pins where shares go on one node.
func TestShares(t *testing.T) {
	t.Parallel()
	typical := []model.Typical{{Demand: whole(1, false), Share: 0.5}, {Demand: share(500), Share: 0.5}}
	for _, tc := range []struct {
		policy string
		want   int
	}{
		// GPU 1 has half left. F before: 0.5·500 for whole GPUs. With GPU 1: nothing. With GPU 0: 0.5·1000.
		{"fgd", 1},
		{"topodra", 1}, {"koordinator", 1},
		{"first-fit", 0}, {"gpuallocator", 0},
		// The pair of 0 has a bridge; 2 and 3 have none. 2 is as far from all others as 3.
		{"hami", 2}, {"mapa", 2},
	} {
		c := clusterOf(t, recorded(t, "a100_4x_one_pair"))
		if err := c.Take(share(500), model.Place{GPUs: topology.MaskOf(1)}); err != nil {
			t.Fatal(err)
		}
		if got := place(t, named(t, tc.policy, typical...), c, share(500)); got.GPUs != topology.MaskOf(tc.want) {
			t.Errorf("%s takes %s for a half, want GPU %d", tc.policy, got.GPUs, tc.want)
		}
	}
}

func TestFGDScore(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, recorded(t, "a30_4x_pairs"))
	fill(t, c, 0, topology.MaskOf(0, 1))
	if err := c.Take(share(500), model.Place{GPUs: topology.MaskOf(0)}); err != nil {
		t.Fatal(err)
	}
	f := &fgd{[]model.Typical{{Demand: whole(1, false), Share: 0.5}, {Demand: share(500), Share: 0.5}}}
	o, ok, err := f.pick(c.Nodes[0], share(500))
	// F falls from 250 to 0 per mille: 100·sigmoid(0.25) = 56.2.
	if err != nil || !ok || o.score != 56 || o.gpus != topology.MaskOf(0) {
		t.Errorf("a half takes %s with score %d (%t, %v), want {0} with 56", o.gpus, o.score, ok, err)
	}
	o, _, _ = f.pick(c.Nodes[0], whole(1, false))
	// F rises from 250 to 500·0.5 = 250: only a half is left, which a whole one cannot use: 100·sigmoid(0) = 50.
	if o.score != 50 || o.gpus != topology.MaskOf(1) {
		t.Errorf("a whole one takes %s with score %d, want {1} with 50", o.gpus, o.score)
	}
}

// TestEffectiveBandwidth checks MAPA's formula against values worked out by hand.
func TestEffectiveBandwidth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ double, single, other, want float64 }{
		{1, 0, 0, 39.079190347}, {0, 1, 0, 21.605615749}, {0, 0, 1, 10.0837435405},
	} {
		if got := effectiveGBps(tc.double, tc.single, tc.other); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%+v: %.9f", tc, got)
		}
	}
	dgx := newRingTable(recorded(t, "dgx1v_8xv100").Machine())
	// The ring 0-3-7-4: double, single, double, double.
	if got, want := dgx.value(topology.MaskOf(0, 3, 4, 7)), (ringValue{effectiveGBps(3, 1, 0), 7 * 25.781}); math.Abs(got.sum-want.sum) > 1e-9 || got.effective < want.effective {
		t.Errorf("value of {0,3,4,7}: %+v, want at least %+v", got, want)
	}
	pairs := newRingTable(recorded(t, "h100nvl_8x_pairs").Machine())
	if got, want := pairs.value(topology.MaskOf(0, 1)), 12*26.562; math.Abs(got.effective-want) > 1e-9 || pairs.fitted {
		t.Errorf("value of a pair with 12 links: %+v, want the sum %v", got, want)
	}
}

// TestPartitionIsBruteForce compares the recursion with all partitions.
func TestPartitionIsBruteForce(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for seed := range uint64(60) {
		n := 4 + rng.IntN(4)
		scores := newPairScores(topotest.Random(topotest.Shape(seed%uint64(topotest.Shapes)), n, seed), true)
		for size := 2; size < n; size++ {
			p := &partition{scores: scores, size: size, small: n % size, known: map[partitionKey]partitioned{}}
			got := p.solve(topology.FullMask(n), p.small == 0).sum
			if want := bestSumOfPartitions(scores, topology.FullMask(n), size, n%size); got != want {
				t.Fatalf("seed %d, %d GPUs by %d: %d, want %d", seed, n, size, got, want)
			}
			if set := p.best(topology.FullMask(n)); set.Count() != size {
				t.Fatalf("seed %d, %d GPUs by %d: the answer is %s", seed, n, size, set)
			}
		}
	}
}

// bestSumOfPartitions tries every partition into sets of a size and one smaller set.
func bestSumOfPartitions(scores pairScores, free topology.Mask, size, small int) int {
	if free == 0 {
		return 0
	}
	best := -1
	for set := topology.Mask(1); set <= free; set++ {
		if !set.SubsetOf(free) || !set.Has(free.Lowest()) {
			continue
		}
		switch set.Count() {
		case size:
			best = max(best, scores.sum(set)+bestSumOfPartitions(scores, free&^set, size, small))
		case small:
			if rest := bestSumOfPartitions(scores, free&^set, size, 0); rest >= 0 || free == set {
				best = max(best, scores.sum(set)+rest)
			}
		}
	}
	return best
}

// TestTopoDRAIsThePlugins computes the choice from the functions that the plugins
// call, over random states.
func TestTopoDRAIsThePlugins(t *testing.T) {
	t.Parallel()
	planner, err := placement.New(placement.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	classes := []*quality.Class{recorded(t, "dgx1v_8xv100"), recorded(t, "h100nvl_8x_pairs"), recorded(t, "pcie_8x_pix_node_sys")}
	p := named(t, "topodra")
	for range 200 {
		c := clusterOf(t, classes...)
		p.Forget() // the cluster is another one
		for i := range c.Nodes {
			fill(t, c, i, topology.Mask(rng.Uint64N(256)))
		}
		d := whole(1+rng.IntN(4), rng.IntN(2) == 0)
		if rng.IntN(3) == 0 {
			d.MemoryMilli, d.CoresPercent = 300, 40
		}
		var candidates []placement.NodeCandidate
		var places []model.Place
		communicates := d.GPUs > 1 && d.Communicates
		for i, n := range c.Nodes {
			r, err := planner.Plan(t.Context(), n.Inventory(), d.Placement())
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Sets) == 0 {
				continue
			}
			s := r.Sets[0]
			candidates = append(candidates, placement.NodeCandidate{
				Quality: n.Class.Of(s.GPUs), DeltaV: s.DeltaV, AllocatedPermille: placement.AllocatedPermille(n.Inventory(), d.Placement(), s)})
			places = append(places, model.Place{Node: i, GPUs: s.GPUs})
		}
		got, ok, err := p.Place(c, d)
		if err != nil || ok != (len(places) > 0) {
			t.Fatalf("placed: %t, %v; %d nodes have room", ok, err, len(places))
		}
		if !ok {
			continue
		}
		best := 0
		scores := placement.ScoreNodes(candidates, communicates, planner.TierPercent())
		for i := range scores {
			if scores[i] > scores[best] {
				best = i
			}
		}
		if got != places[best] {
			t.Fatalf("%+v goes to %+v, the plugins' functions say %+v", d, got, places[best])
		}
	}
}

// TestPoliciesKeepTheRules runs all policies over random states: what they take has
// room, they find room where there is some, and forgetting changes nothing.
func TestPoliciesKeepTheRules(t *testing.T) {
	t.Parallel()
	typical := []model.Typical{{Demand: whole(1, false), Share: 0.6}, {Demand: share(300), Share: 0.3}, {Demand: whole(8, false), Share: 0.1}}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(7, 8))
			for seed := range uint64(12) {
				c := clusterOf(t, classOf(t, topotest.Random(topotest.Shape(seed%uint64(topotest.Shapes)), 8, seed)),
					classOf(t, topotest.Random(topotest.Bridged, 5, seed)), recorded(t, "a30_4x_pairs"))
				p := named(t, name, typical...)
				for range 60 {
					d := whole(rng.IntN(6), rng.IntN(2) == 0)
					switch {
					case d.GPUs == 0:
						d = model.Demand{CPUMilli: 1}
					case rng.IntN(2) == 0:
						d.MemoryMilli, d.CoresPercent = int64(1+rng.IntN(900)), int64(rng.IntN(101))
					}
					room := false
					for _, n := range c.Nodes {
						room = room || n.Fitting(d).Count() >= d.GPUs
					}
					at, ok, err := p.Place(c, d)
					if err != nil || ok != room {
						t.Fatalf("place for %+v: %t, %v; there is room: %t", d, ok, err, room)
					}
					if p.Forget(); ok && name != "random" {
						if again := place(t, p, c, d); again != at {
							t.Fatalf("%+v goes to %+v, after forgetting to %+v", d, at, again)
						}
					}
					if ok {
						if err := c.Take(d, at); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
}

// TestRandomIsFair draws often and counts.
func TestRandomIsFair(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, recorded(t, "a30_4x_pairs"), recorded(t, "a30_4x_pairs"))
	fill(t, c, 1, topology.MaskOf(1, 2, 3))
	p := named(t, "random")
	counts := map[model.Place]int{}
	const draws = 9000
	for range draws {
		counts[place(t, p, c, whole(2, true))]++
	}
	// Half of the draws for each node; six pairs on the first, three on the second.
	if len(counts) != 9 {
		t.Errorf("%d different places, want 9", len(counts))
	}
	for at, n := range counts {
		want := draws / 2 / 6
		if at.Node == 1 {
			want = draws / 2 / 3
		}
		if n < want*85/100 || n > want*115/100 {
			t.Errorf("%+v was drawn %d times, want about %d", at, n, want)
		}
	}
	q, again := named(t, "random"), named(t, "random")
	for range 20 {
		if place(t, q, c, whole(2, true)) != place(t, again, c, whole(2, true)) {
			t.Fatal("the same seed gives different choices")
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := New("nothing", Setup{}); err == nil {
		t.Error("an unknown policy was made")
	}
	if _, err := NewTopoDRA("x", TopoDRAOptions{TierPercent: 100}); err == nil {
		t.Error("tiers of 100 percent were accepted")
	}
	for _, name := range Names() {
		if About(name) == "" {
			t.Errorf("nothing is said about %q", name)
		}
	}
}
