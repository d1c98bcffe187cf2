// SPDX-License-Identifier: Apache-2.0

package topotest

import (
	"slices"

	"github.com/topodra/topodra/topology"
)

// Orders calls visit with every order of the members of s in which they can stand
// in a ring, up to the starting point: the lowest member comes first. The slice is
// reused.
func Orders(s topology.Mask, visit func(order []int)) {
	members := s.Positions()
	if len(members) == 0 {
		return
	}
	permute(members, 1, visit)
}

func permute(order []int, from int, visit func([]int)) {
	if from == len(order) {
		visit(order)
		return
	}
	for i := from; i < len(order); i++ {
		order[from], order[i] = order[i], order[from]
		permute(order, from+1, visit)
		order[from], order[i] = order[i], order[from]
	}
}

// hops calls visit with the two ends of every hop of the ring; a ring of two GPUs
// has one hop.
func hops(order []int, visit func(a, b int)) {
	if len(order) == 2 {
		visit(order[0], order[1])
		return
	}
	for i := range order {
		visit(order[i], order[(i+1)%len(order)])
	}
}

// MaxRings returns the largest number of NVLink rings through all members of s that
// use no link twice, by exhaustive search. links gives the number of links of each
// pair. It is slow: at most eight GPUs with few links.
func MaxRings(links [][]uint8, s topology.Mask) int {
	if s.Count() < 2 {
		return 0
	}
	left := make([][]int, len(links))
	for i := range links {
		left[i] = make([]int, len(links))
		for j := range links {
			left[i][j] = int(links[i][j])
		}
	}
	var rings [][]int
	Orders(s, func(order []int) {
		if len(order) > 2 && order[1] > order[len(order)-1] {
			return // the same ring in the other direction
		}
		usable := true
		hops(order, func(a, b int) { usable = usable && left[a][b] > 0 })
		if usable {
			rings = append(rings, slices.Clone(order))
		}
	})
	best := 0
	for want := 1; packRings(left, rings, want); want++ {
		best = want
	}
	return best
}

// packRings reports whether want rings from the list, repeats allowed, fit into the
// links that are left.
func packRings(left [][]int, rings [][]int, want int) bool {
	if want == 0 {
		return true
	}
	for i, ring := range rings {
		fits := true
		hops(ring, func(a, b int) { fits = fits && left[a][b] > 0 })
		if !fits {
			continue
		}
		take(left, ring, -1)
		done := enoughLeft(left, ring, want-1) && packRings(left, rings[i:], want-1)
		take(left, ring, +1)
		if done {
			return true
		}
	}
	return false
}

func take(left [][]int, ring []int, by int) {
	hops(ring, func(a, b int) {
		left[a][b] += by
		left[b][a] += by
	})
}

// enoughLeft is a necessary condition: every further ring takes two links of each
// member (one of a pair).
func enoughLeft(left [][]int, members []int, want int) bool {
	for _, a := range members {
		sum := 0
		for _, b := range members {
			if a != b {
				sum += left[a][b]
			}
		}
		if len(members) == 2 {
			sum *= 2
		}
		if sum < 2*want {
			return false
		}
	}
	return true
}

// BestRing returns what the best ring through s offers, by trying every order: the
// bandwidth of its slowest hop that is not an NVLink and that hop's class, or
// nvlink when it has none. reach is the smallest class that some ring does not
// exceed. s has two members at least.
func BestRing(m *topology.Machine, s topology.Mask) (mbps topology.MBps, class, reach topology.PCIe, nvlink bool) {
	first := true
	reach = topology.SYS
	Orders(s, func(order []int) {
		if nvlink {
			return
		}
		slowest, worst, farthest := topology.MBps(0), topology.PCIeSelf, topology.PCIeSelf
		onlyNVLink := true
		hops(order, func(a, b int) {
			if m.NVLinks[a][b] > 0 {
				return
			}
			w, c := m.WeightMBps(a, b), m.PCIe[a][b]
			if onlyNVLink || w < slowest || (w == slowest && c > worst) {
				slowest, worst = w, c
			}
			onlyNVLink = false
			farthest = max(farthest, c)
		})
		if onlyNVLink {
			nvlink = true
			return
		}
		reach = min(reach, farthest)
		if first || slowest > mbps {
			mbps, class, first = slowest, worst, false
		}
	})
	return mbps, class, reach, nvlink
}
