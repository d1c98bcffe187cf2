// SPDX-License-Identifier: Apache-2.0

package topotest

import (
	"fmt"
	"math/rand/v2"

	"github.com/topodra/topodra/topology"
)

// Shape is a family of random machines.
type Shape uint8

// The shapes.
const (
	// AnyLinks joins random pairs by random numbers of NVLinks, over random PCIe
	// classes.
	AnyLinks Shape = iota
	// Bridged joins random disjoint pairs by bridges of different width.
	Bridged
	// Tree has PCIe switches under sockets and no NVLinks.
	Tree
	// Fabric has an NVSwitch, with some GPUs off it or with fewer links.
	Fabric
	// Quads has fully linked groups of up to four GPUs with links between them.
	Quads
	// Shapes is the number of shapes.
	Shapes
)

// Random returns a machine of n GPUs that depends on the seed alone.
func Random(shape Shape, n int, seed uint64) *topology.Machine {
	rng := rand.New(rand.NewPCG(seed, uint64(shape)))
	m := topology.New(fmt.Sprintf("random-%d-%d-%d", shape, n, seed), n)
	randomTree(m, rng)
	m.Switched = shape == Fabric
	count := linkCounts(shape, n, rng)
	for i := range n {
		for j := range i {
			links := uint8(count(i, j))
			m.NVLinks[i][j], m.NVLinks[j][i] = links, links
		}
	}
	return m
}

// linkCounts returns a function that is asked once for the links of each pair.
func linkCounts(shape Shape, n int, rng *rand.Rand) func(i, j int) int {
	order := rng.Perm(n)
	ports := make([]int, n)
	for i := range ports {
		ports[i] = []int{18, 18, 18, 18, 17, 12, 0}[rng.IntN(7)]
	}
	switch shape {
	case AnyLinks:
		return func(int, int) int { return max(0, rng.IntN(4)-1) }
	case Bridged:
		return func(i, j int) int {
			if order[i]/2 != order[j]/2 {
				return 0
			}
			return rng.IntN(5)
		}
	case Fabric:
		return func(i, j int) int { return min(ports[i], ports[j]) }
	case Quads:
		return func(i, j int) int {
			switch {
			case i/4 == j/4:
				return 1 + rng.IntN(2)
			case i%4 == j%4:
				return rng.IntN(3)
			}
			return 0
		}
	default: // Tree
		return func(int, int) int { return 0 }
	}
}

// randomTree fills in sockets, switches, rates and network cards.
func randomTree(m *topology.Machine, rng *rand.Rand) {
	perSocket, perSwitch := 1+rng.IntN(m.N()), 1+rng.IntN(4)
	near := []topology.PCIe{topology.PIX, topology.PXB}[rng.IntN(2)]
	mid := []topology.PCIe{topology.PHB, topology.NODE, topology.SYS}[rng.IntN(3)]
	gen, rate := rng.IntN(6), topology.MBps(rng.IntN(4))*10_000
	knownNUMA := rng.IntN(4) > 0
	for i := range m.GPUs {
		m.GPUs[i] = topology.GPUInfo{NUMA: topology.NoNUMA, NVLinkMBps: rate, PCIeGen: gen}
		if knownNUMA {
			m.GPUs[i].NUMA = i / perSocket
		}
		if rng.IntN(8) == 0 {
			m.GPUs[i].PCIeGen = rng.IntN(6)
			m.GPUs[i].NVLinkMBps = 20_000
		}
		if rng.IntN(2) == 0 {
			m.GPUs[i].NearestNIC = fmt.Sprintf("nic%d", i/perSwitch)
		}
		for j := range i {
			class := topology.SYS
			switch {
			case i/perSwitch == j/perSwitch && i/perSocket == j/perSocket:
				class = near
			case i/perSocket == j/perSocket:
				class = mid
			}
			m.PCIe[i][j], m.PCIe[j][i] = class, class
		}
	}
}
