// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"testing"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/topotest"
)

// BenchmarkQuery ranks the sets of one machine, without the memo and with it.
func BenchmarkQuery(b *testing.B) {
	for _, tc := range []struct {
		n     int
		shape topotest.Shape
		name  string
		k     int
	}{
		{8, topotest.Quads, "quads", 2}, {8, topotest.Quads, "quads", 4}, {8, topotest.Fabric, "fabric", 4},
		{16, topotest.Quads, "quads", 4}, {16, topotest.Quads, "quads", 8}, {16, topotest.Fabric, "fabric", 8},
		{16, topotest.AnyLinks, "random", 8},
	} {
		for _, memo := range []bool{false, true} {
			b.Run(fmt.Sprintf("n=%d/links=%s/k=%d/memo=%v", tc.n, tc.name, tc.k, memo), func(b *testing.B) {
				m := topotest.Random(tc.shape, tc.n, 1)
				opts := placement.Options{MemoSize: -1}
				if memo {
					opts.MemoSize = 16
				}
				benchQuery(b, planner(b, opts), placement.WholeGPUs(classOf(b, m), topology.FullMask(tc.n)), wholes(tc.k))
			})
		}
	}
}

// BenchmarkShares plans shares on a half-used machine.
func BenchmarkShares(b *testing.B) {
	for _, n := range []int{8, 16} {
		b.Run(fmt.Sprintf("n=%d/requests=2", n), func(b *testing.B) {
			c := classOf(b, topotest.Random(topotest.Quads, n, 1))
			inv := shared(c, map[int]int64{0: gpuMiB / 2, 3: gpuMiB / 4})
			benchQuery(b, planner(b, placement.Options{MemoSize: -1}), inv, demand(share(2, gpuMiB/4, 10), share(1, gpuMiB/4, 10)))
		})
	}
}

func benchQuery(b *testing.B, p *placement.Planner, inv placement.Inventory, d placement.Demand) {
	b.Helper()
	first, err := p.Plan(b.Context(), inv, d) // builds the lazy tables
	if err != nil || len(first.Sets) == 0 || !first.Exact {
		b.Fatalf("preflight: %+v, %v", first, err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Plan(b.Context(), inv, d); err != nil {
			b.Fatal(err)
		}
	}
}
