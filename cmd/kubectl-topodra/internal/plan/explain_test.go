// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"regexp"
	"strings"
	"testing"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

// TestWhy gives the loser one disadvantage at a time, and advantages in everything that is asked later.
func TestWhy(t *testing.T) {
	t.Parallel()
	best := placement.Set{
		GPUs: topology.MaskOf(0, 1), Quality: quality.Quality{Rings: 2, MBps: 50_000, Bottleneck: quality.NVLink}, DeltaV: 100,
		Keys: placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, CutMBps: 7_000, NUMANodes: 1, DeltaLocal: 200, Rails: 1},
	}
	good := placement.Set{GPUs: topology.MaskOf(2, 3), Quality: best.Quality, DeltaV: 0, Keys: placement.Keys{PairMBps: 90_000}}
	with := func(change func(*placement.Set)) placement.Set {
		s := good
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		communicates bool
		lost         placement.Set
		want         string
	}{
		"no ring": {true, with(func(s *placement.Set) {
			s.Tier, s.Quality = 1, quality.Quality{MBps: 6_000, Bottleneck: quality.SYS}
		}), "lower tier: no NVLink ring, 6.0 GB/s over SYS instead of 50.0 GB/s"},
		"fewer rings": {true, with(func(s *placement.Set) {
			s.Tier, s.Quality = 1, quality.Quality{Rings: 1, MBps: 25_000, Bottleneck: quality.NVLink}
		}), "lower tier: 25.0 instead of 50.0 GB/s"},
		"ΔV": {true, with(func(s *placement.Set) { s.DeltaV = 150 }),
			"takes more from later jobs: 15.0 % of the machine's worth to them (ΔV) instead of 10.0 %"},
		"ΔV before tier for one GPU": {false, with(func(s *placement.Set) { s.DeltaV, s.Tier = 150, 1 }),
			"takes more from later jobs: 15.0 % of the machine's worth to them (ΔV) instead of 10.0 %"},
		"stranded": {true, with(func(s *placement.Set) { s.DeltaV, s.Keys.Stranded = 100, 300 }),
			"strands more: 0.300 of a GPU becomes useless to typical jobs instead of 0.100"},
		"residual": {true, with(func(s *placement.Set) { s.DeltaV, s.Keys.Stranded, s.Keys.Residual = 100, 100, 500 }),
			"leaves more of its GPUs over: 0.500 GPU instead of 0.250"},
		"pairs": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 40_000}
		}), "weaker pairs: 40.0 GB/s over all pairs instead of 50.0"},
		"ΔV that looks alike": {true, with(func(s *placement.Set) { s.DeltaV = 100_001 }),
			"takes more from later jobs: 10000.1 % of the machine's worth to them (ΔV) instead of 10.0 %"},
		"cut": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, CutMBps: 7_001}
		}), "cuts off more: 7.001 GB/s of links to the GPUs that stay free instead of 7.000"},
		"more GPUs": {false, with(func(s *placement.Set) { s.GPUs, s.DeltaV = topology.MaskOf(2, 3, 4), 100 }),
			"takes more GPUs: 3 instead of 2"},
		"NUMA": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, CutMBps: 7_000, NUMANodes: 2}
		}), "spans more NUMA nodes: 2 instead of 1"},
		"locality": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, CutMBps: 7_000, NUMANodes: 1, DeltaLocal: 250}
		}), "breaks up more GPUs that are close on PCIe and NUMA: by 25.0 %"},
		"rails": {true, with(func(s *placement.Set) { s.DeltaV, s.Keys = 100, best.Keys; s.Keys.Rails = 2 }),
			"needs more network cards: 2 instead of 1"},
		"nothing": {true, with(func(s *placement.Set) { s.DeltaV, s.Keys = 100, best.Keys }), "equal in everything: the lower indices win"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &placement.Result{Communicates: c.communicates, VMax: 1000}
			if got := why(r, best, c.lost); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestReasonsOnEveryMachine: on every recorded machine and for every size, each runner-up is explained by the first criterion of
// docs/objective.md on which it differs from the best, and it is really worse there.
func TestReasonsOnEveryMachine(t *testing.T) {
	t.Parallel()
	machines, err := topotest.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, recorded := range machines {
		m := recorded.Machine
		if m.N() > 8 {
			continue // the order is the same there, and the search is not free
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			for k := 1; k <= m.N(); k++ {
				for _, share := range []bool{false, true} {
					free := topology.FullMask(m.N()).Without(m.N() / 2)
					if k == m.N() {
						free = topology.FullMask(m.N())
					}
					job := Job{GPUs: k, Share: share, MemoryMiB: 1 << 12, CoresPercent: 30}
					r, err := solve(t.Context(), m, job, State{Free: free, GPUMemoryMiB: 1 << 14}, 100)
					if err != nil {
						t.Fatal(err)
					}
					checkAnswer(t, r, k, free)
				}
			}
		})
	}
}

// cost is a criterion as docs/objective.md orders them, with the words that an explanation by it starts with.
type cost struct {
	start string
	of    func(s placement.Set) int64
}

// costs is kept apart from the planner's own list on purpose.
func costs(communicates bool) []cost {
	tier := cost{"lower tier", func(s placement.Set) int64 { return int64(s.Tier) }}
	deltaV := cost{"takes more from later jobs", func(s placement.Set) int64 { return s.DeltaV }}
	first := []cost{deltaV, tier}
	if communicates {
		first = []cost{tier, deltaV}
	}
	return append(first,
		cost{"strands more", func(s placement.Set) int64 { return s.Keys.Stranded }},
		cost{"leaves more of its GPUs over", func(s placement.Set) int64 { return s.Keys.Residual }},
		cost{"weaker pairs", func(s placement.Set) int64 { return -s.Keys.PairMBps }},
		cost{"cuts off more", func(s placement.Set) int64 { return s.Keys.CutMBps }},
		cost{"spans more NUMA nodes", func(s placement.Set) int64 { return int64(s.Keys.NUMANodes) }},
		cost{"breaks up more", func(s placement.Set) int64 { return s.Keys.DeltaLocal }},
		cost{"needs more network cards", func(s placement.Set) int64 { return int64(s.Keys.Rails) }},
		cost{"equal in everything", func(s placement.Set) int64 { return int64(s.GPUs) }},
	)
}

var twoNumbers = regexp.MustCompile(`(-?[0-9.]+)[^0-9]* instead of (-?[0-9.]+)`)

func checkAnswer(t *testing.T, r *placement.Result, k int, free topology.Mask) {
	t.Helper()
	a := explain(r)
	if a.Best.Lost != "" || a.Best.GPUs.Count() != k || !a.Best.GPUs.SubsetOf(free) {
		t.Errorf("k=%d of %s: the best is %+v", k, free, a.Best)
	}
	if a.Considered != len(a.Alternatives)+1 {
		t.Errorf("k=%d of %s: %d sets considered, %d shown", k, free, a.Considered, len(a.Alternatives)+1)
	}
	best := r.Sets[0]
	for i, c := range a.Alternatives {
		lost := r.Sets[i+1]
		if c.GPUs != lost.GPUs || c.GPUs.Count() != k || !c.GPUs.SubsetOf(free) {
			t.Errorf("k=%d of %s: runner-up %+v", k, free, c)
		}
		for _, key := range costs(r.Communicates) {
			if key.of(best) == key.of(lost) {
				continue
			}
			if key.of(best) > key.of(lost) {
				t.Errorf("k=%d of %s: %s loses to %s, but is better in %q", k, free, lost.GPUs, best.GPUs, key.start)
			}
			if !strings.HasPrefix(c.Lost, key.start) {
				t.Errorf("k=%d of %s: %s: %q, want %q", k, free, lost.GPUs, c.Lost, key.start)
			}
			break
		}
		if m := twoNumbers.FindStringSubmatch(c.Lost); m != nil && m[1] == m[2] {
			t.Errorf("k=%d of %s: two numbers that look alike: %q", k, free, c.Lost)
		}
	}
}

// TestWordsForAll: the planner may not know a criterion that cannot be explained.
func TestWordsForAll(t *testing.T) {
	t.Parallel()
	for _, communicates := range []bool{false, true} {
		for _, c := range placement.Criteria(communicates) {
			if words[c] == nil {
				t.Errorf("no words for %q", c)
			}
		}
	}
	if got := len(placement.Criteria(true)); got != len(words) {
		t.Errorf("%d criteria, words for %d", got, len(words))
	}
}
