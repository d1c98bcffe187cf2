// SPDX-License-Identifier: Apache-2.0

package topotest_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// TestMachinesAreDocumented: every file has a row with its hardware in the README,
// and every row a file.
func TestMachinesAreDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("machines/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(line, " | ")
		name, isRow := strings.CutPrefix(cells[0], "| ")
		if !isRow || name == "file" {
			continue
		}
		documented = append(documented, name)
		r, err := topotest.Load(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if len(cells) != 4 || cells[1] != r.Hardware || (cells[2] == "printed") != strings.HasPrefix(r.Kind, "nvidia-smi") {
			t.Errorf("%s: the README says %q, the file %q, %q", name, cells[1:], r.Hardware, r.Kind)
		}
	}
	if diff := cmp.Diff(topotest.Names(), documented); diff != "" {
		t.Errorf("documented machines (-files +rows):\n%s", diff)
	}
}

// links returns a symmetric matrix with the given number of links for each pair.
func links(n int, pairs map[[2]int]uint8) [][]uint8 {
	out := make([][]uint8, n)
	for i := range out {
		out[i] = make([]uint8, n)
	}
	for p, count := range pairs {
		out[p[0]][p[1]], out[p[1]][p[0]] = count, count
	}
	return out
}

// TestMaxRings checks the packing on graphs whose answer is known: complete graphs
// with one link per pair have ⌊(n−1)/2⌋ edge-disjoint Hamiltonian cycles.
func TestMaxRings(t *testing.T) {
	t.Parallel()
	for n := 3; n <= 7; n++ {
		pairs := map[[2]int]uint8{}
		for i := range n {
			for j := range i {
				pairs[[2]int{i, j}] = 1
			}
		}
		if got := topotest.MaxRings(links(n, pairs), topology.FullMask(n)); got != (n-1)/2 {
			t.Errorf("complete graph of %d: %d rings, want %d", n, got, (n-1)/2)
		}
	}
	triangle := links(4, map[[2]int]uint8{{0, 1}: 2, {1, 2}: 2, {0, 2}: 1, {2, 3}: 9})
	for set, want := range map[topology.Mask]int{0b0111: 1, 0b0011: 2, 0b1100: 9, 0b1111: 0, 0b0001: 0, 0b1001: 0} {
		if got := topotest.MaxRings(triangle, set); got != want {
			t.Errorf("%s: %d rings, want %d", set, got, want)
		}
	}
}

// TestClosedFormCounterexample is the example in docs/objective.md of a graph on which
// the smallest number of links promises too many rings: two triangles with two
// links per pair, joined by one link 0-3 and one link 1-4. Every GPU has four links
// or more, but a ring has to cross both bridges.
func TestClosedFormCounterexample(t *testing.T) {
	t.Parallel()
	g := links(6, map[[2]int]uint8{
		{0, 1}: 2, {1, 2}: 2, {0, 2}: 2, {3, 4}: 2, {4, 5}: 2, {3, 5}: 2, {0, 3}: 1, {1, 4}: 1,
	})
	if got := topotest.MaxRings(g, topology.FullMask(6)); got != 1 {
		t.Errorf("%d rings, want the one that the bridges allow although every GPU has four links", got)
	}
}

func TestOrdersAndSubsets(t *testing.T) {
	t.Parallel()
	seen := map[[4]int]bool{}
	topotest.Orders(topology.MaskOf(1, 2, 5, 6), func(order []int) { seen[[4]int(order)] = true })
	if len(seen) != 6 {
		t.Errorf("%d orders of four in a ring, want 6", len(seen))
	}
	for order := range seen {
		if order[0] != 1 {
			t.Errorf("%v does not start with the lowest", order)
		}
	}
	subsets := topotest.Subsets(topology.MaskOf(0, 3, 4, 7), 2)
	slices.Sort(subsets)
	want := []topology.Mask{0b1001, 0b10001, 0b11000, 0b10000001, 0b10001000, 0b10010000}
	if diff := cmp.Diff(want, subsets); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
}

// TestRandomMachinesAreValid and depend on the seed alone.
func TestRandomMachinesAreValid(t *testing.T) {
	t.Parallel()
	for shape := range topotest.Shapes {
		for n := 1; n <= 20; n++ {
			m := topotest.Random(shape, n, uint64(n))
			if err := m.Validate(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(m, topotest.Random(shape, n, uint64(n))); diff != "" {
				t.Errorf("%s differs from itself:\n%s", m.Name, diff)
			}
		}
	}
}
