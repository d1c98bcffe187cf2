// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/topodra/topodra/topology/placement"
)

// criterion is one key of the planner's order, with words for the case that it decides.
type criterion struct {
	// value is the key, the smaller the better.
	value func(s placement.Set) int64
	// lost says in words why lost is worse than best, given that no earlier key decided.
	lost func(best, lost placement.Set, r *placement.Result) string
}

var (
	byTier = criterion{
		value: func(s placement.Set) int64 { return int64(s.Tier) },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			if best.Quality.HasNVLink() != lost.Quality.HasNVLink() {
				return fmt.Sprintf("lower tier: no NVLink ring, %.1f GB/s over %s instead of %.1f GB/s",
					lost.Quality.MBps.GBps(), lost.Quality.Bottleneck, best.Quality.MBps.GBps())
			}
			return fmt.Sprintf("lower tier: %.1f instead of %.1f GB/s", lost.Quality.MBps.GBps(), best.Quality.MBps.GBps())
		},
	}
	byDeltaV = criterion{
		value: func(s placement.Set) int64 { return s.DeltaV },
		lost: func(best, lost placement.Set, r *placement.Result) string {
			return "takes more from later jobs: " + ofAll(lost.DeltaV, r.VMax) + " of the machine's worth to them (ΔV) instead of " + ofAll(best.DeltaV, r.VMax)
		},
	}
	byStranded = criterion{
		value: func(s placement.Set) int64 { return s.Keys.Stranded },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			return fmt.Sprintf("strands more: %.3f of a GPU becomes useless to typical jobs instead of %.3f",
				float64(lost.Keys.Stranded)/1000, float64(best.Keys.Stranded)/1000)
		},
	}
	byResidual = criterion{
		value: func(s placement.Set) int64 { return s.Keys.Residual },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			return fmt.Sprintf("leaves more of its GPUs over: %.3f GPU instead of %.3f",
				float64(lost.Keys.Residual)/1000, float64(best.Keys.Residual)/1000)
		},
	}
	byPairs = criterion{
		value: func(s placement.Set) int64 { return -s.Keys.PairMBps },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			return fmt.Sprintf("weaker pairs: %.1f GB/s over all pairs instead of %.1f",
				float64(lost.Keys.PairMBps)/1000, float64(best.Keys.PairMBps)/1000)
		},
	}
	byNUMA = criterion{
		value: func(s placement.Set) int64 { return int64(s.Keys.NUMANodes) },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			return fmt.Sprintf("spans more NUMA nodes: %d instead of %d", lost.Keys.NUMANodes, best.Keys.NUMANodes)
		},
	}
	byDeltaLocal = criterion{
		value: func(s placement.Set) int64 { return s.Keys.DeltaLocal },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			text := "breaks up more GPUs that are close on PCIe and NUMA"
			if best.Keys.DeltaLocal > 0 {
				more := 100 * float64(lost.Keys.DeltaLocal-best.Keys.DeltaLocal) / float64(best.Keys.DeltaLocal)
				text += fmt.Sprintf(": by %.1f %%", more)
			}
			return text
		},
	}
	byRails = criterion{
		value: func(s placement.Set) int64 { return int64(s.Keys.Rails) },
		lost: func(best, lost placement.Set, _ *placement.Result) string {
			return fmt.Sprintf("needs more network cards: %d instead of %d", lost.Keys.Rails, best.Keys.Rails)
		},
	}
)

// ofAll prints a cost as a share of the value of the whole machine.
func ofAll(delta, all int64) string {
	if all <= 0 {
		return fmt.Sprint(delta)
	}
	return fmt.Sprintf("%.1f %%", 100*float64(delta)/float64(all))
}

// order returns the criteria in the order in which the planner asks them; docs/objective.md says why it is this one.
func order(communicates bool) []criterion {
	tail := []criterion{byStranded, byResidual, byPairs, byNUMA, byDeltaLocal, byRails}
	if communicates {
		return append([]criterion{byTier, byDeltaV}, tail...)
	}
	return append([]criterion{byDeltaV, byTier}, tail...)
}

// explain says for each set but the best which criterion decided against it.
func explain(r *placement.Result) *Answer {
	a := &Answer{Considered: r.Feasible, Exact: r.Exact, Communicates: r.Communicates}
	for i, s := range r.Sets {
		c := Choice{GPUs: s.GPUs, Quality: s.Quality, Tier: s.Tier}
		if i == 0 {
			a.Best = c
			continue
		}
		c.Lost = why(r, r.Sets[0], s)
		a.Alternatives = append(a.Alternatives, c)
	}
	return a
}

// why returns the first criterion on which a set is worse than the best, in words.
func why(r *placement.Result, best, lost placement.Set) string {
	for _, c := range order(r.Communicates) {
		if c.value(best) != c.value(lost) {
			return c.lost(best, lost, r)
		}
	}
	return "equal in everything: the lower indices win"
}
