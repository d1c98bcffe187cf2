// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Pair scores of go-gpuallocator, which HAMi uses as well: those of all ways between
// two GPUs are added.
const (
	scoreSYS  = 10
	scoreNODE = 20
	scorePHB  = 30
	scorePXB  = 40
	scorePIX  = 50
	// scoreLink is for each NVLink.
	scoreLink = 100
)

// pairScores are the scores of all pairs of one kind of machine.
type pairScores [][]int

// newPairScores computes the scores. switched says whether links into an NVSwitch
// are recognised as links between GPUs.
func newPairScores(m *topology.Machine, switched bool) pairScores {
	out := make(pairScores, m.N())
	for i := range out {
		out[i] = make([]int, m.N())
		for j := range out[i] {
			if i == j {
				continue
			}
			out[i][j] = classScore(m.PCIe[i][j])
			if !m.Switched || switched {
				out[i][j] += scoreLink * int(m.NVLinks[i][j])
			}
		}
	}
	return out
}

func classScore(p topology.PCIe) int {
	switch p {
	case topology.PIX:
		return scorePIX
	case topology.PXB:
		return scorePXB
	case topology.PHB:
		return scorePHB
	case topology.NODE:
		return scoreNODE
	default:
		return scoreSYS
	}
}

// sum returns the score of a set: the sum over its pairs.
func (s pairScores) sum(set topology.Mask) int {
	out := 0
	for i := range set.All() {
		for j := range set.All() {
			if i < j {
				out += s[i][j]
			}
		}
	}
	return out
}

// perClass remembers something about each kind of machine.
type perClass[T any] struct {
	known map[*quality.Class]T
	make  func(*topology.Machine) T
}

func newPerClass[T any](build func(*topology.Machine) T) *perClass[T] {
	return &perClass[T]{map[*quality.Class]T{}, build}
}

func (p *perClass[T]) of(c *quality.Class) T {
	v, ok := p.known[c]
	if !ok {
		v = p.make(c.Machine())
		p.known[c] = v
	}
	return v
}

// setKey names a question about one kind of machine: what is best among the free
// GPUs.
type setKey struct {
	class *quality.Class
	free  topology.Mask
	gpus  int
	talks bool
}

// memoised remembers the answers of a rule that depends on nothing but what setKey
// says.
func memoised(rule setRule) setRule {
	known := map[setKey]topology.Mask{}
	return func(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
		key := setKey{n.Class, fitting, d.GPUs, d.Communicates}
		set, ok := known[key]
		if !ok {
			set = rule(n, d, fitting)
			known[key] = set
		}
		return set
	}
}
