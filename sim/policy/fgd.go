// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"math"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// newFGD is Fragmentation Gradient Descent.
//
// Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads
// with Fragmentation Gradient Descent" (ATC'23), and
// hkust-adsl/kubernetes-scheduler-simulator at commit 8f3d6417. A pod goes where the
// fragmentation of the node, [model.Remains.Fragmentation], grows least. Score of a
// node: 100 · sigmoid((F before − F after) / 1000 per mille), rounded down. A share
// takes the GPU with the largest score, the first one among equals; whole GPUs are
// the first idle ones, which makes no difference to F. Typical pods are the most
// frequent demands for GPUs, 95 % of them.
//
// Several shares in one pod do not occur there; here they take the fullest GPUs
// with room.
func newFGD(typical []model.Typical) Policy {
	f := &fgd{typical}
	return newTwoStep("fgd", f.pick, func(a, b offer) int { return cmp.Compare(b.score, a.score) })
}

type fgd struct{ typical []model.Typical }

// milli is a whole GPU in the unit of fragmentation, and maxScore the best score.
const (
	milli    = 1000.0
	maxScore = 100.0
)

// pick tries what each choice does to the node.
func (f *fgd) pick(n *model.Node, d model.Demand) (offer, bool, error) {
	now := n.Remains()
	before := now.Fragmentation(f.typical)
	after := model.Remains{GPUs: append([]int64(nil), now.GPUs...), CPUMilli: now.CPUMilli, Model: now.Model}
	if after.CPUMilli >= 0 {
		after.CPUMilli -= d.CPUMilli
	}
	fitting := n.Fitting(d)
	score := func(gpus topology.Mask) int64 {
		for g := range gpus.All() {
			after.GPUs[g] -= d.ShareMilli()
		}
		grown := (before - after.Fragmentation(f.typical)) / milli
		for g := range gpus.All() {
			after.GPUs[g] += d.ShareMilli()
		}
		return int64(maxScore / (1 + math.Exp(-grown)))
	}
	if d.GPUs == 1 && !d.Whole() {
		best := offer{score: -1}
		for g := range fitting.All() {
			if s := score(topology.MaskOf(g)); s > best.score {
				best = offer{gpus: topology.MaskOf(g), score: s}
			}
		}
		return best, true, nil
	}
	gpus := lowest(fitting, d.GPUs)
	if !d.Whole() {
		gpus = fullest(n, fitting, d.GPUs)
	}
	return offer{gpus: gpus, score: score(gpus)}, true, nil
}

// fullest returns the GPUs of which least is left.
func fullest(n *model.Node, fitting topology.Mask, count int) topology.Mask {
	var out topology.Mask
	for range count {
		best := -1
		for g := range (fitting &^ out).All() {
			if best < 0 || n.FreeMilli(g) < n.FreeMilli(best) {
				best = g
			}
		}
		out = out.With(best)
	}
	return out
}
