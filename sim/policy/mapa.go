// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// newMAPA is the policy Preserve of MAPA, for applications that communicate in a ring.
//
// Source: Ranganath et al., "MAPA: Multi-Accelerator Pattern Allocation Policy for
// Multi-Tenant GPU Servers" (SC'21), and socal-ucr/MAPA at commit 15e58ab3. All ways
// to lay a ring over free GPUs are looked at. Several GPUs that are sensitive to
// bandwidth: the largest predicted effective bandwidth. Others: the largest sum of
// bandwidths between the GPUs that stay free, then the largest sum along the ring.
// The first one among equals. Every hop that is no NVLink counts 10 GB/s.
//
// The effective bandwidth is a regression over the number of double links, single
// links and other hops of the ring, fitted to a DGX-1 with V100. It means nothing
// on machines whose NVLinks are neither single nor double; there the sum of bandwidths
// along the ring, MAPA's other measure, takes its place. MAPA chooses on one machine;
// nodes by MostAllocated. It knows no shares; they are treated like single GPUs.
func newMAPA() Policy {
	rings := map[*quality.Class]*ringTable{}
	rule := memoised(func(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
		t, ok := rings[n.Class]
		if !ok {
			t = newRingTable(n.Class.Machine())
			rings[n.Class] = t
		}
		if d.Communicates && d.GPUs > 1 {
			return t.mostEffective(fitting, d.GPUs)
		}
		return t.mostPreserved(fitting, d.GPUs)
	})
	return newTwoStep("mapa", pickBy(rule), mostAllocated)
}

// otherGBps is the bandwidth of a hop that is no NVLink.
const otherGBps = 10

// ringTable values the sets of GPUs of one kind of machine.
type ringTable struct {
	machine *topology.Machine
	// fitted says that all NVLinks are single or double.
	fitted bool
	gbps   [][]float64
	known  map[topology.Mask]ringValue
}

// ringValue is the best that a ring through a set can have of each measure.
type ringValue struct{ effective, sum float64 }

func newRingTable(m *topology.Machine) *ringTable {
	t := &ringTable{machine: m, fitted: true, known: map[topology.Mask]ringValue{}}
	for i := range m.N() {
		t.gbps = append(t.gbps, make([]float64, m.N()))
		for j := range m.N() {
			if i == j {
				continue
			}
			t.gbps[i][j] = otherGBps
			if links := m.NVLinks[i][j]; links > 0 {
				t.gbps[i][j] = m.WeightMBps(i, j).GBps()
				t.fitted = t.fitted && links <= 2
			}
		}
	}
	return t
}

func (t *ringTable) mostEffective(free topology.Mask, count int) topology.Mask {
	best, bestValue := topology.Mask(0), 0.0
	eachSet(free, count, func(set topology.Mask) bool {
		if v := t.value(set).effective; best == 0 || v > bestValue {
			best, bestValue = set, v
		}
		return true
	})
	return best
}

func (t *ringTable) mostPreserved(free topology.Mask, count int) topology.Mask {
	best, bestLeft, bestSum := topology.Mask(0), 0.0, 0.0
	eachSet(free, count, func(set topology.Mask) bool {
		left, sum := t.between(free&^set), t.value(set).sum
		if best == 0 || left > bestLeft || left == bestLeft && sum > bestSum {
			best, bestLeft, bestSum = set, left, sum
		}
		return true
	})
	return best
}

// between returns the sum of the bandwidths of all pairs.
func (t *ringTable) between(set topology.Mask) float64 {
	sum := 0.0
	for i := range set.All() {
		for j := range set.All() {
			if i < j {
				sum += t.gbps[i][j]
			}
		}
	}
	return sum
}

// value looks at every ring through the set.
func (t *ringTable) value(set topology.Mask) ringValue {
	if v, ok := t.known[set]; ok {
		return v
	}
	members := set.Positions()
	var best ringValue
	first := true
	var walk func(at int)
	walk = func(at int) {
		if at < len(members) {
			for i := at; i < len(members); i++ {
				members[at], members[i] = members[i], members[at]
				walk(at + 1)
				members[at], members[i] = members[i], members[at]
			}
			return
		}
		v := t.ring(members)
		if first {
			best, first = v, false
		}
		best.effective, best.sum = max(best.effective, v.effective), max(best.sum, v.sum)
	}
	if len(members) > 1 {
		walk(1) // where the ring starts makes no difference
	}
	t.known[set] = best
	return best
}

// ring values one ring; two GPUs have one hop.
func (t *ringTable) ring(order []int) ringValue {
	var double, single, other, sum float64
	hops := len(order)
	if hops == 2 {
		hops = 1
	}
	for h := range hops {
		i, j := order[h], order[(h+1)%len(order)]
		sum += t.gbps[i][j]
		switch t.machine.NVLinks[i][j] {
		case 0:
			other++
		case 1:
			single++
		default:
			double++
		}
	}
	if !t.fitted {
		return ringValue{sum, sum}
	}
	return ringValue{effectiveGBps(double, single, other), sum}
}

// effectiveGBps is MAPA's regression for x double links, y single links and z other
// hops.
func effectiveGBps(x, y, z float64) float64 {
	return 16.39670455*x + 4.536821878*y + 1.55623404*z -
		20.69484581/(x+1) - 9.467461958/(y+1) + 7.615106783/(z+1) -
		7.973335727*x*y + 12.73323772*y*z - 4.195655221*x*z -
		8.413419363/(x*y+1) + 62.85125807/(y*z+1) + 27.41832588/(x*z+1) -
		5.114108079*x*y*z - 46.97390071/(x*y*z+1)
}
