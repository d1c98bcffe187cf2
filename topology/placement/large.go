// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/topodra/topodra/topology"
)

// selectUnions yields unions to look at on machines that are too large to look at
// all: every set inside one group of closely linked GPUs (an NVLink domain or a
// part of it), and for each GPU the set that grows from it by always adding the
// GPU that is linked best to the set.
func (pr *problem) selectUnions(open topology.Mask, count int, yield func(topology.Mask) bool) {
	seen := newMaskSet(topology.MaxGPUs, true)
	more := true
	emit := func(s topology.Mask) bool {
		if !seen.has(s) {
			seen.add(s)
			more = yield(s)
		}
		return more
	}
	for _, group := range pr.class.Chunks() {
		eachSubset(open&group, count, pr.d.Forced, emit)
		if !more {
			return
		}
	}
	for seed := range open.All() {
		if !emit(pr.grow(pr.d.Forced.With(seed), open, count-1)) {
			return
		}
	}
}

// grow adds count GPUs of open to the set, each time the one with the largest sum
// of weights to it, the lowest position on ties.
func (pr *problem) grow(set, open topology.Mask, count int) topology.Mask {
	for range count {
		best, bestGain := -1, int64(-1)
		for g := range (open &^ set).All() {
			if gain := pr.class.PairMBps(set.With(g)); gain > bestGain {
				best, bestGain = g, gain
			}
		}
		if best < 0 {
			break
		}
		set = set.With(best)
	}
	return set
}
