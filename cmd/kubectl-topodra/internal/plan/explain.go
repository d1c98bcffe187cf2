// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"

	"github.com/topodra/topodra/topology/placement"
)

// maxDigits is how many digits behind the point a number gets at most to tell it from another.
const maxDigits = 6

// words says for each of the planner's criteria why lost is worse than best, given that no earlier criterion decided. vMax is
// the value of the whole machine.
var words = map[placement.Criterion]func(best, lost *placement.Set, vMax int64) string{
	placement.CriterionTier: func(best, lost *placement.Set, _ int64) string {
		if best.Quality.HasNVLink() != lost.Quality.HasNVLink() {
			return fmt.Sprintf("lower tier: no NVLink ring, %.1f GB/s over %s instead of %.1f GB/s",
				lost.Quality.MBps.GBps(), lost.Quality.Bottleneck, best.Quality.MBps.GBps())
		}
		worse, better := apart(lost.Quality.MBps.GBps(), best.Quality.MBps.GBps())
		return fmt.Sprintf("lower tier: %s instead of %s GB/s", worse, better)
	},
	placement.CriterionDeltaV: func(best, lost *placement.Set, vMax int64) string {
		return "takes more from later jobs: " + ofAll(lost.DeltaV, best.DeltaV, vMax)
	},
	placement.CriterionSize: func(best, lost *placement.Set, _ int64) string {
		return fmt.Sprintf("takes more GPUs: %d instead of %d", lost.GPUs.Count(), best.GPUs.Count())
	},
	placement.CriterionStranded: func(best, lost *placement.Set, _ int64) string {
		return fmt.Sprintf("strands more: %.3f of a GPU becomes useless to typical jobs instead of %.3f",
			float64(lost.Keys.Stranded)/1000, float64(best.Keys.Stranded)/1000)
	},
	placement.CriterionResidual: func(best, lost *placement.Set, _ int64) string {
		return fmt.Sprintf("leaves more of its GPUs over: %.3f GPU instead of %.3f",
			float64(lost.Keys.Residual)/1000, float64(best.Keys.Residual)/1000)
	},
	placement.CriterionPairs: func(best, lost *placement.Set, _ int64) string {
		worse, better := apart(float64(lost.Keys.PairMBps)/1000, float64(best.Keys.PairMBps)/1000)
		return fmt.Sprintf("weaker pairs: %s GB/s over all pairs instead of %s", worse, better)
	},
	placement.CriterionCut: func(best, lost *placement.Set, _ int64) string {
		worse, better := apart(float64(lost.Keys.CutMBps)/1000, float64(best.Keys.CutMBps)/1000)
		return fmt.Sprintf("cuts off more: %s GB/s of links to the GPUs that stay free instead of %s", worse, better)
	},
	placement.CriterionNUMA: func(best, lost *placement.Set, _ int64) string {
		return fmt.Sprintf("spans more NUMA nodes: %d instead of %d", lost.Keys.NUMANodes, best.Keys.NUMANodes)
	},
	placement.CriterionLocal: func(best, lost *placement.Set, _ int64) string {
		text := "breaks up more GPUs that are close on PCIe and NUMA"
		if best.Keys.DeltaLocal > 0 {
			more := 100 * float64(lost.Keys.DeltaLocal-best.Keys.DeltaLocal) / float64(best.Keys.DeltaLocal)
			number, _ := apart(more, 0)
			text += ": by " + number + " %"
		}
		return text
	},
	placement.CriterionRails: func(best, lost *placement.Set, _ int64) string {
		return fmt.Sprintf("needs more network cards: %d instead of %d", lost.Keys.Rails, best.Keys.Rails)
	},
	placement.CriterionPosition: func(_, _ *placement.Set, _ int64) string {
		return "equal in everything: the lower indices win"
	},
}

// apart prints two different numbers with as many digits as it takes to tell them apart, at least one.
func apart(a, b float64) (textA, textB string) {
	for digits := 1; ; digits++ {
		textA, textB = strconv.FormatFloat(a, 'f', digits, 64), strconv.FormatFloat(b, 'f', digits, 64)
		if textA != textB || digits >= maxDigits {
			return textA, textB
		}
	}
}

// ofAll prints two costs as shares of the value of the whole machine, or as they are where the shares look alike.
func ofAll(lost, best, all int64) string {
	if all > 0 {
		worse, better := apart(100*float64(lost)/float64(all), 100*float64(best)/float64(all))
		if worse != better {
			return fmt.Sprintf("%s %% of the machine's worth to them (ΔV) instead of %s %%", worse, better)
		}
	}
	return fmt.Sprintf("ΔV %d instead of %d", lost, best)
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

// why returns the first criterion on which a set is worse than the best, in words. Which one that is, is for the planner to say.
func why(r *placement.Result, best, lost placement.Set) string {
	return words[placement.Decides(best, lost, r.Communicates)](&best, &lost, r.VMax)
}
