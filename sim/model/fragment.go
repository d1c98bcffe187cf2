// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
)

// Typical is a demand that is expected to come.
type Typical struct {
	Demand Demand
	// Share is how large a part of all demands it is, 0 to 1.
	Share float64
}

// popularPercent is how much of all demands the typical ones stand for, at least.
const popularPercent = 95

// TypicalOf returns the most frequent GPU demands of the jobs, as many as make up
// 95 percent of all pods with GPUs, with shares that add up to 1. Whether a demand
// communicates makes no difference.
func TypicalOf(jobs []Job) []Typical {
	counts := map[Demand]int{}
	total := 0
	for i := range jobs {
		d := jobs[i].Demand
		if d.GPUs == 0 {
			continue
		}
		d.Communicates = false
		counts[d] += jobs[i].Pods
		total += jobs[i].Pods
	}
	all := make([]Demand, 0, len(counts))
	for d := range counts {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Demand) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), compareDemands(a, b)) })
	covered, used := 0, 0
	for used < len(all) && covered*100 < total*popularPercent {
		covered += counts[all[used]]
		used++
	}
	out := make([]Typical, 0, used)
	for _, d := range all[:used] {
		out = append(out, Typical{d, float64(counts[d]) / float64(covered)})
	}
	return out
}

func compareDemands(a, b Demand) int {
	return cmp.Or(
		cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.MemoryMilli, b.MemoryMilli), cmp.Compare(a.CoresPercent, b.CoresPercent),
		cmp.Compare(a.CPUMilli, b.CPUMilli), cmp.Compare(a.HostMiB, b.HostMiB), cmp.Compare(a.Models, b.Models),
	)
}

// Remains is what is left of a node, as fragmentation looks at it. Hypothetical
// ones can be made by changing a copy.
type Remains struct {
	// GPUs is what is left of each GPU, in per mille.
	GPUs []int64
	// CPUMilli is what is left of the CPU; negative means without limit.
	CPUMilli int64
	Model    string
}

// Remains returns what is left of the node.
func (n *Node) Remains() Remains {
	r := Remains{GPUs: make([]int64, len(n.free)), CPUMilli: -1, Model: n.Model}
	for g := range n.free {
		r.GPUs[g] = n.FreeMilli(g)
	}
	if milli, limited := n.FreeCPU(); limited {
		r.CPUMilli = milli
	}
	return r
}

// Fragmentation returns how much of what is left of the node's GPUs a typical demand
// cannot use, in per mille of a GPU, after Weng et al., "Beware of Fragmentation"
// (ATC'23):
//
//	F = Σ share(m) · lost(m), where lost(m) is
//	everything that is left, when m does not fit on the node, otherwise
//	what is left of GPUs with less than one share of m
func (r *Remains) Fragmentation(mix []Typical) float64 {
	var left int64
	for _, g := range r.GPUs {
		left += g
	}
	if left == 0 {
		return 0
	}
	var sum float64
	for i := range mix {
		d, lost := &mix[i].Demand, left
		if r.CPUMilli < 0 || d.CPUMilli <= r.CPUMilli {
			lost = r.lostTo(d, left)
		}
		sum += float64(mix[i].Share * float64(lost))
	}
	return sum
}

// lostTo returns lost(m) of a demand for which there is CPU enough.
func (r *Remains) lostTo(d *Demand, left int64) int64 {
	share, room, small := d.ShareMilli(), 0, int64(0)
	for _, g := range r.GPUs {
		if g >= share {
			room++
		} else {
			small += g
		}
	}
	if room < d.GPUs || !d.admits(r.Model) {
		return left
	}
	return small
}
