// SPDX-License-Identifier: Apache-2.0

package plan

import (
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
		Keys: placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, NUMANodes: 1, DeltaLocal: 200, Rails: 1},
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
		"NUMA": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, NUMANodes: 2}
		}), "spans more NUMA nodes: 2 instead of 1"},
		"locality": {true, with(func(s *placement.Set) {
			s.DeltaV, s.Keys = 100, placement.Keys{Stranded: 100, Residual: 250, PairMBps: 50_000, NUMANodes: 1, DeltaLocal: 250}
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

// TestReasonsOnEveryMachine: on every recorded machine and for every size, every runner-up has a reason, the reason is never an
// advantage, and no set comes twice.
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
				free := topology.FullMask(m.N()).Without(m.N() / 2)
				if k == m.N() {
					free = topology.FullMask(m.N())
				}
				a, err := Make(t.Context(), m, Job{GPUs: k}, State{Free: free, GPUMemoryMiB: 1 << 14}, 100)
				if err != nil {
					t.Fatal(err)
				}
				checkAnswer(t, a, k, free)
			}
		})
	}
}

func checkAnswer(t *testing.T, a *Answer, k int, free topology.Mask) {
	t.Helper()
	if a.Best.Lost != "" || a.Best.GPUs.Count() != k || !a.Best.GPUs.SubsetOf(free) {
		t.Errorf("k=%d of %s: the best is %+v", k, free, a.Best)
	}
	if a.Considered != len(a.Alternatives)+1 {
		t.Errorf("k=%d of %s: %d sets considered, %d shown", k, free, a.Considered, len(a.Alternatives)+1)
	}
	seen := map[topology.Mask]bool{a.Best.GPUs: true}
	for _, c := range a.Alternatives {
		if c.Lost == "" || seen[c.GPUs] || c.GPUs.Count() != k || !c.GPUs.SubsetOf(free) {
			t.Errorf("k=%d of %s: runner-up %+v", k, free, c)
		}
		if a.Communicates && (strings.HasPrefix(c.Lost, "lower tier") != (c.Tier > 0)) {
			t.Errorf("k=%d of %s: tier %d, but %q", k, free, c.Tier, c.Lost)
		}
		seen[c.GPUs] = true
	}
}
