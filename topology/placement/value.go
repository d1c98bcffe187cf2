// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// maxLayers bounds how many shares of one GPU the value of a state counts.
const maxLayers = 64

// valuer computes V(state) = Σ over typical claims of weight × how much of them
// still fits.
//
// For a claim for k whole GPUs that is the best packing of the idle GPUs with sets
// of k. For a claim for shares a GPU counts once for every share that still fits on
// it: layer t are the GPUs with room for at least t shares, and each layer is
// packed by itself.
type valuer struct {
	class  *quality.Class
	whole  []Typical
	shared []Typical
	weight int64 // sum of all weights
	mix    []Typical
}

func newValuer(opts *Options, class *quality.Class) *valuer {
	v := &valuer{class: class, mix: opts.Mix}
	for _, t := range opts.Mix {
		v.weight += t.Weight
		switch {
		case t.GPUs > class.N(): // never fits
		case t.whole():
			v.whole = append(v.whole, t)
		default:
			v.shared = append(v.shared, t)
		}
	}
	return v
}

// of returns V of a state.
func (v *valuer) of(s *stock) int64 {
	return v.ofIdle(v.class, s.idle) + v.ofShares(s.present, s.left, s.total)
}

// ofIdle is the part of V that depends on the idle GPUs alone, with the packings
// of the given class.
func (v *valuer) ofIdle(class *quality.Class, idle topology.Mask) int64 {
	var sum int64
	for _, t := range v.whole {
		sum += t.Weight * class.Pack(t.GPUs, idle)
	}
	return sum
}

// ofShares is the part of V that typical shares contribute.
func (v *valuer) ofShares(present topology.Mask, left, total []Capacity) int64 {
	var sum int64
	for _, t := range v.shared {
		var layers [maxLayers]topology.Mask
		for g := range present.All() {
			for i := range slots(t.Use, left[g], total[g]) {
				layers[i] = layers[i].With(g)
			}
		}
		for _, layer := range layers {
			if layer == 0 {
				break
			}
			sum += t.Weight * v.class.Pack(t.GPUs, layer)
		}
	}
	return sum
}

// slots returns how many shares fit in what is left, at most maxLayers.
func slots(use, left, total Capacity) int {
	n := int64(maxLayers)
	limit := func(use, left, total int64) {
		if total > 0 && use > 0 {
			n = min(n, max(0, left)/use)
		}
	}
	limit(use.MemoryMiB, left.MemoryMiB, total.MemoryMiB)
	limit(use.CoresPercent, left.CoresPercent, total.CoresPercent)
	limit(use.Slots, left.Slots, total.Slots)
	return int(n)
}

// stranded returns how much of a GPU no typical claim can use, in per mille times
// the sum of the weights: for each typical claim that does not fit, all that is
// left. A GPU that is full strands nothing.
func (v *valuer) stranded(left, total Capacity, idle bool) int64 {
	rest := left.permille(total, idle)
	if rest == 0 {
		return 0
	}
	var sum int64
	for _, t := range v.mix {
		fits := idle
		if !t.whole() {
			fits = slots(t.Use, left, total) > 0
		}
		if !fits {
			sum += t.Weight * rest
		}
	}
	return sum
}
