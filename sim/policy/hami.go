// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// newHAMi is HAMi's policy "topology-aware" with its default node policy "binpack".
//
// Source: HAMi v2.10.0. The scores of pairs are those of go-gpuallocator, with
// NVSwitch recognised. Fit collects all devices that have room. One GPU: the device
// with the lowest sum of scores to the other ones that have room. Several: of all
// combinations the one with the largest sum over its pairs, the first one among
// equals. The same holds for shares, so usage of a device plays no part. Links
// never influence the node, which is the fuller one.
func newHAMi() Policy {
	scores := newPerClass(func(m *topology.Machine) pairScores { return newPairScores(m, true) })
	rule := memoised(func(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
		if s := scores.of(n.Class); d.GPUs > 1 {
			return s.bestSum(fitting, d.GPUs)
		} else {
			return s.leastConnected(fitting)
		}
	})
	return newTwoStep("hami", pickBy(rule), mostAllocated)
}

// bestSum returns the set of count members with the largest sum of pairs.
func (s pairScores) bestSum(free topology.Mask, count int) topology.Mask {
	best, bestSum := topology.Mask(0), -1
	eachSet(free, count, func(set topology.Mask) bool {
		if sum := s.sum(set); sum > bestSum {
			best, bestSum = set, sum
		}
		return true
	})
	return best
}

// leastConnected returns the GPU with the lowest sum of scores to the others.
func (s pairScores) leastConnected(free topology.Mask) topology.Mask {
	best, bestSum := topology.Mask(0), -1
	for i := range free.All() {
		sum := 0
		for j := range free.All() {
			sum += s[i][j]
		}
		if bestSum < 0 || sum < bestSum {
			best, bestSum = topology.MaskOf(i), sum
		}
	}
	return best
}
