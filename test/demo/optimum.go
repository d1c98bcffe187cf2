// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"slices"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// Judge works out by brute force what sets of GPUs are worth. It remembers what it has seen: machines do not change during a
// demo. It must not be used from several goroutines.
type Judge struct {
	tierPercent int
	references  map[string]*topotest.Reference // by node
}

// NewJudge returns a judge for whom bandwidths within the given percentage are of one tier.
func NewJudge(tierPercent int) *Judge {
	return &Judge{tierPercent: tierPercent, references: map[string]*topotest.Reference{}}
}

// Value returns what a set of a node's GPUs is worth. The node's machine must be the same every time.
func (j *Judge) Value(node *livestate.Node, set topology.Mask) topotest.Quality {
	reference, ok := j.references[node.Name]
	if !ok {
		reference = topotest.NewReference(node.Machine)
		j.references[node.Name] = reference
	}
	return reference.Quality(set)
}

// better orders qualities, the better one first: a ring of NVLinks before everything else, then bandwidth.
func better(a, b topotest.Quality) int {
	if nvlinkA, nvlinkB := a.Rings > 0, b.Rings > 0; nvlinkA != nvlinkB {
		if nvlinkA {
			return -1
		}
		return 1
	}
	return cmp.Compare(b.MBps, a.MBps)
}

// inTier tells whether a quality belongs to the tier that another, not worse one opens.
func inTier(head, q topotest.Quality, percent int) bool {
	return (head.Rings > 0) == (q.Rings > 0) && int64(q.MBps)*100 >= int64(head.MBps)*int64(100-percent)
}

// Ranking is every set that a job could get at one moment, summed up.
type Ranking struct {
	// Best is the best set that satisfies the job, nil if none does. Among equals it is on the first node, with the lowest GPUs.
	Best *Placement
	// BestFitting is the best set that fits, whatever the job guarantees; nil if none fits.
	BestFitting *Placement
	// heads is the best quality of each tier of the satisfying sets, the best tier first.
	heads   []topotest.Quality
	percent int
}

// candidate is one set that fits.
type candidate struct {
	node    int
	set     topology.Mask
	quality topotest.Quality
}

// Rank tries every set of every node.
func (j *Judge) Rank(nodes []livestate.Node, job Job) Ranking {
	var all []candidate
	for i := range nodes {
		for _, set := range subsets(fitting(&nodes[i], job), job.GPUs) {
			all = append(all, candidate{node: i, set: set, quality: j.Value(&nodes[i], set)})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(better(a.quality, b.quality), cmp.Compare(a.node, b.node), compareSets(a.set, b.set))
	})
	r := Ranking{percent: j.tierPercent}
	if len(all) > 0 {
		r.BestFitting = place(&nodes[all[0].node], all[0].set, all[0].quality)
	}
	for _, c := range all {
		if !Satisfies(job, c.quality) {
			continue
		}
		if r.Best == nil {
			r.Best = place(&nodes[c.node], c.set, c.quality)
		}
		if len(r.heads) == 0 || !inTier(r.heads[len(r.heads)-1], c.quality, j.tierPercent) {
			r.heads = append(r.heads, c.quality)
		}
	}
	return r
}

// Tier returns the tier of a quality: 0 for the best, counting up; the number of tiers if it is worse than all of them.
func (r Ranking) Tier(q topotest.Quality) int {
	for tier, head := range r.heads {
		if better(q, head) <= 0 || inTier(head, q, r.percent) {
			return tier
		}
	}
	return len(r.heads)
}

// Satisfies tells whether a set of the quality keeps what the job guarantees. One GPU always does.
func Satisfies(job Job, q topotest.Quality) bool {
	if job.GPUs < 2 {
		return true
	}
	if q.MBps < topology.MBps(job.MinGBps)*1000 {
		return false
	}
	switch job.Level {
	case api.LevelNVLink:
		return q.Rings > 0
	case api.LevelPCIe:
		return q.Reach <= topology.PXB
	case api.LevelNUMA:
		return q.Reach <= topology.NODE
	default:
		return true
	}
}

// fitting returns the GPUs of a node that have enough left for the job.
func fitting(node *livestate.Node, job Job) topology.Mask {
	if job.Whole() {
		return node.Idle()
	}
	var mask topology.Mask
	for _, g := range node.GPUs {
		if g.Device != "" && g.Free.MemoryMiB >= job.MemoryMiB && g.Free.CoresPercent >= job.CoresPercent {
			mask = mask.With(g.Position)
		}
	}
	return mask
}

// allFree returns the nodes as they would be if nobody held anything.
func allFree(nodes []livestate.Node) []livestate.Node {
	free := slices.Clone(nodes)
	for i := range free {
		free[i].GPUs = slices.Clone(free[i].GPUs)
		for g := range free[i].GPUs {
			free[i].GPUs[g].Free, free[i].GPUs[g].Holders = free[i].GPUs[g].Total, nil
		}
	}
	return free
}

// subsets returns every set of k members of a mask, in lexicographic order of their members.
func subsets(of topology.Mask, k int) []topology.Mask {
	var out []topology.Mask
	var grow func(chosen, rest topology.Mask, missing int)
	grow = func(chosen, rest topology.Mask, missing int) {
		if missing == 0 {
			out = append(out, chosen)
			return
		}
		for i := range rest.All() {
			rest = rest.Without(i)
			if rest.Count() < missing-1 {
				return
			}
			grow(chosen.With(i), rest, missing-1)
		}
	}
	grow(0, of, k)
	return out
}

// compareSets orders sets of one size by their members.
func compareSets(a, b topology.Mask) int { return slices.Compare(a.Positions(), b.Positions()) }

func place(node *livestate.Node, set topology.Mask, q topotest.Quality) *Placement {
	p := &Placement{Node: node.Name, GPUs: set.Positions(), Rings: q.Rings, GBps: q.MBps.GBps()}
	switch {
	case len(p.GPUs) < 2:
	case q.Rings > 0:
		p.Link = "NVLink"
	default:
		p.Link = q.Class.String()
	}
	return p
}
