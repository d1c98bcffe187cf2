// SPDX-License-Identifier: Apache-2.0

package quality_test

import (
	"fmt"
	"testing"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

// benchMachines are a switched, a meshed and an irregular machine of each size.
func benchMachines() map[string]*topology.Machine {
	out := map[string]*topology.Machine{}
	for _, n := range []int{8, 16} {
		uniform := topology.New("uniform", n)
		uniform.Switched = true
		for i := range n {
			for j := range n {
				if i != j {
					uniform.NVLinks[i][j] = 6
				}
			}
		}
		out[fmt.Sprintf("n=%d/links=uniform", n)] = uniform
		out[fmt.Sprintf("n=%d/links=quads", n)] = topotest.Random(topotest.Quads, n, 1)
		out[fmt.Sprintf("n=%d/links=random", n)] = topotest.Random(topotest.AnyLinks, n, 1)
	}
	return out
}

func eachBenchMachine(b *testing.B, run func(b *testing.B, m *topology.Machine)) {
	b.Helper()
	machines := benchMachines()
	for _, n := range []int{8, 16} {
		for _, links := range []string{"uniform", "quads", "random"} {
			name := fmt.Sprintf("n=%d/links=%s", n, links)
			m := machines[name]
			if err := m.Validate(); err != nil {
				b.Fatal(err)
			}
			b.Run(name, func(b *testing.B) { run(b, m) })
		}
	}
}

// BenchmarkTableBuild builds the quality tables of a class.
func BenchmarkTableBuild(b *testing.B) {
	eachBenchMachine(b, func(b *testing.B, m *topology.Machine) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := quality.NewClass(m, quality.Options{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPackBuild builds the packing tables that the default mix asks for.
func BenchmarkPackBuild(b *testing.B) {
	eachBenchMachine(b, func(b *testing.B, m *topology.Machine) {
		all := topology.FullMask(m.N()).Without(0)
		b.ReportAllocs()
		for b.Loop() {
			// Timed as well: where no packing table is needed, a timer that is stopped for this would have the loop run for ever.
			c, err := quality.NewClass(m, quality.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for _, k := range []int{2, 4, 8} {
				if k < m.N() && c.Pack(k, all) == 0 && k < m.N()-1 {
					b.Fatalf("no packing of %d", k)
				}
			}
		}
	})
}
