// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// NodeOrder says how the best sets of the nodes are compared.
type NodeOrder int

// The orders. All but ByScore are trials that no plugin has.
const (
	// ByScore uses the score of the plugin TopologyScore.
	ByScore NodeOrder = iota
	// ByAllocated compares tier, how full the node is, and ΔV, one after the other.
	ByAllocated
	// ByRemaining compares tier, ΔV, and how full the node is.
	ByRemaining
)

// TopoDRAOptions are what can be tried. The zero value is what the plugins do by
// default.
type TopoDRAOptions struct {
	// Mix are the typical claims; nil is the default of the plugins' arguments.
	Mix []placement.Typical
	// TierPercent is the width of a tier; 0 is the default, negative makes every
	// difference a tier.
	TierPercent int
	// Weights of the node score; the zero value is the default.
	Weights placement.ScoreWeights
	// Order of the nodes.
	Order NodeOrder
	// AllCommunicate treats every pod with several GPUs as one that communicates,
	// as if no user had marked the others.
	AllCommunicate bool
	// KeepHosts prefers, inside the best tier and for pods without GPUs as well,
	// nodes on which CPU is not used up before the GPUs are. No plugin does that.
	KeepHosts bool
	// Relative counts quality relative to what the node could give when empty, so
	// that machines with faster links are not preferred as such. No plugin does that.
	Relative bool
}

// hostTolerance is how much more of a GPU, in per mille, a node may strand than the
// best one and still be as good, with TopoDRAOptions.KeepHosts.
const hostTolerance = 50

// keepHosts drops nodes of lower tiers, and those that strand more for want of CPU
// than others do: the pod takes part of the CPU and part of the GPUs of its node;
// where less CPU than GPUs remains, in parts of what the node had, the difference
// counts as stranded.
func (p *topoDRA) keepHosts(c *model.Cluster, d model.Demand, offers []offer) []offer {
	top := topQuality(offers)
	costs := make([]int64, len(offers))
	least, first := int64(0), true
	for i, o := range offers {
		n := c.Nodes[o.node]
		if p.communicates(d) && !quality.InTier(top, o.quality, p.planner.TierPercent()) {
			continue
		}
		var free int64
		for g := range n.Class.N() {
			free += n.FreeMilli(g)
		}
		cpu, _ := n.FreeCPU()
		costs[i] = stranded(n, cpu-d.CPUMilli, free-int64(d.GPUs)*d.ShareMilli()) - stranded(n, cpu, free)
		if first || costs[i] < least {
			least, first = costs[i], false
		}
	}
	// Relieving a node of GPUs that are stranded already is no merit.
	limit := max(least, -hostTolerance) + hostTolerance
	out := make([]offer, 0, len(offers))
	for i, o := range offers {
		if p.communicates(d) && !quality.InTier(top, o.quality, p.planner.TierPercent()) {
			continue
		}
		if costs[i] <= limit {
			out = append(out, o)
		}
	}
	return out
}

// stranded returns how much of the node's GPUs, in per mille of one, is beyond what
// the CPU that is left would be for.
func stranded(n *model.Node, cpu, gpus int64) int64 {
	if n.CPUMilli == 0 {
		return 0
	}
	return max(0, gpus-cpu*int64(n.Class.N())*model.WholeMilli/n.CPUMilli)
}

// relativeBest is what the best set of an empty node counts with
// TopoDRAOptions.Relative.
const relativeBest = 100_000

// relative replaces qualities by their parts of the best of an empty node.
func (p *topoDRA) relative(c *model.Cluster, d model.Demand, offers []offer) []offer {
	out := slices.Clone(offers)
	for i := range out {
		if best := p.best.Of(c.Nodes[out[i].node].Class, d.GPUs).MBps; best > 0 {
			part := int64(out[i].quality.MBps) * relativeBest / int64(best)
			out[i].quality = quality.Quality{MBps: topology.MBps(part), Bottleneck: quality.SYS, Reach: quality.SYS}
		}
	}
	return out
}

func topQuality(offers []offer) quality.Quality {
	var top quality.Quality
	for i := range offers {
		if quality.Compare(offers[i].quality, top) > 0 {
			top = offers[i].quality
		}
	}
	return top
}

// inOrder compares one criterion after the other.
func (p *topoDRA) inOrder(offers []offer, communicates bool) offer {
	top := topQuality(offers)
	return slices.MinFunc(offers, func(a, b offer) int {
		if communicates {
			if c := p.compareTiers(top, a.quality, b.quality); c != 0 {
				return c
			}
		}
		if p.opts.Order == ByRemaining {
			return cmp.Or(cmp.Compare(a.deltaV, b.deltaV), mostAllocated(a, b))
		}
		return cmp.Or(mostAllocated(a, b), cmp.Compare(a.deltaV, b.deltaV))
	})
}

// compareTiers puts the best tier first and all others after it by quality.
func (p *topoDRA) compareTiers(top, a, b quality.Quality) int {
	inA, inB := quality.InTier(top, a, p.planner.TierPercent()), quality.InTier(top, b, p.planner.TierPercent())
	switch {
	case inA && inB:
		return 0
	case inA:
		return -1
	case inB:
		return 1
	default:
		return quality.Compare(b, a)
	}
}

// mixUnit turns shares of demands into weights.
const mixUnit = 10_000

// MixOf returns what the jobs most often ask for as typical claims for the planner.
func MixOf(jobs []model.Job) []placement.Typical {
	var out []placement.Typical
	for _, t := range model.TypicalOf(jobs) {
		typical := placement.Typical{GPUs: t.Demand.GPUs, Weight: 1 + int64(t.Share*mixUnit)}
		if !t.Demand.Whole() {
			typical.Use = placement.Capacity{MemoryMiB: t.Demand.MemoryMilli, CoresPercent: t.Demand.CoresPercent}
		}
		out = append(out, typical)
	}
	return out
}
