// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// newKoordinator is Koordinator's DeviceShare with GPU partitions and bin packing.
//
// Source: Koordinator at commit a7a1b76b, pkg/scheduler/plugins/deviceshare.
// Whole GPUs: a table of partitions, the built-in one of which has blocks of 1, 2, 4
// and 8 neighbours (0 1, 2 3, …; 0 to 3, 4 to 7). Of the free blocks of the size it
// takes the one that leaves most: each larger block that stays free counts 10,000
// (8 GPUs), 100 (4) or 1 (2); the first one among equals. Without a free block, or
// for other sizes (policy "Prefer"), the GPUs come from the deepest scope with room,
// PCIe switch before NUMA node before machine, among those the one most in use, and
// from its lowest positions. Shares: the deepest scope likewise, and in it the
// fullest GPU with room. Nodes by MostAllocated.
//
// Differences: the built-in table is for boards of Hopper GPUs; it is used for every
// machine here, because partitions are a table that somebody has to write, and this
// one is what there is. Several shares in one pod are refused there; here they take the lowest positions.
func newKoordinator() Policy {
	scopes := newPerClass(newScopes)
	rule := func(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
		if !d.Whole() {
			return scopes.of(n.Class).share(n, d, fitting)
		}
		if block := bestBlock(n.Class.N(), fitting, d.GPUs); block != 0 {
			return block
		}
		return lowest(scopes.of(n.Class).deepest(n, fitting, d.GPUs), d.GPUs)
	}
	return newTwoStep("koordinator", pickBy(rule), mostAllocated)
}

// blockWeights are what a free block of a size is worth.
var blockWeights = []struct{ size, weight int }{{8, 10_000}, {4, 100}, {2, 1}}

// bestBlock returns the free block of the size that leaves most, 0 if none is free
// or blocks do not have that size.
func bestBlock(n int, free topology.Mask, size int) topology.Mask {
	if size != 1 && size != 2 && size != 4 && size != 8 {
		return 0
	}
	best, bestLeft := topology.Mask(0), -1
	for block := range blocks(n, size) {
		if !block.SubsetOf(free) {
			continue
		}
		left := 0
		for _, w := range blockWeights {
			if w.size <= size {
				continue
			}
			for larger := range blocks(n, w.size) {
				if larger.SubsetOf(free &^ block) {
					left += w.weight
				}
			}
		}
		if left > bestLeft {
			best, bestLeft = block, left
		}
	}
	return best
}

// blocks yields the blocks of neighbours of one size on a machine with n GPUs.
func blocks(n, size int) func(yield func(topology.Mask) bool) {
	return func(yield func(topology.Mask) bool) {
		for first := 0; first+size <= n; first += size {
			if !yield(topology.FullMask(size) << first) {
				return
			}
		}
	}
}

// scopes are the groups of GPUs of a machine by level, the deepest level first.
type scopes [][]topology.Mask

// newScopes finds PCIe switches, then sockets, then the machine. Where the NUMA nodes
// are not known, GPUs with no SYS hop between them are one socket.
func newScopes(m *topology.Machine) scopes {
	near := func(limit topology.PCIe) func(i, j int) bool {
		return func(i, j int) bool { return m.PCIe[i][j] <= limit }
	}
	socket := func(i, j int) bool {
		if m.GPUs[i].NUMA == topology.NoNUMA || m.GPUs[j].NUMA == topology.NoNUMA {
			return m.PCIe[i][j] <= topology.NODE
		}
		return m.GPUs[i].NUMA == m.GPUs[j].NUMA
	}
	return scopes{groups(m.N(), near(topology.PXB)), groups(m.N(), socket), {topology.FullMask(m.N())}}
}

// groups returns the connected components of a relation, by lowest member.
func groups(n int, joined func(i, j int) bool) []topology.Mask {
	var out []topology.Mask
	var seen topology.Mask
	for first := range n {
		if seen.Has(first) {
			continue
		}
		group := topology.MaskOf(first)
		for queue := []int{first}; len(queue) > 0; queue = queue[1:] {
			for j := range n {
				if !group.Has(j) && joined(queue[0], j) {
					group = group.With(j)
					queue = append(queue, j)
				}
			}
		}
		seen |= group
		out = append(out, group)
	}
	return out
}

// deepest returns the GPUs with room of the deepest scope that has enough of them: of
// several the one with the most GPUs in use, then with the least room.
func (s scopes) deepest(n *model.Node, fitting topology.Mask, count int) topology.Mask {
	for _, level := range s {
		var best topology.Mask
		bestUsed := -1
		for _, scope := range level {
			open, used := scope&fitting, (scope &^ n.Idle()).Count()
			if open.Count() < count || used < bestUsed || used == bestUsed && open.Count() >= best.Count() {
				continue
			}
			best, bestUsed = open, used
		}
		if bestUsed >= 0 {
			return best
		}
	}
	return fitting
}

// share returns GPUs for shares: the fullest one of the deepest scope.
func (s scopes) share(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
	if d.GPUs > 1 {
		return lowest(fitting, d.GPUs)
	}
	return topology.MaskOf(slices.MinFunc(s.deepest(n, fitting, 1).Positions(), func(a, b int) int {
		return cmp.Or(cmp.Compare(n.FreeMilli(a), n.FreeMilli(b)), cmp.Compare(a, b))
	}))
}
