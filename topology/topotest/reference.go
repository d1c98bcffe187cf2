// SPDX-License-Identifier: Apache-2.0

package topotest

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/topology"
)

// Quality is the reference for quality.Quality.
type Quality struct {
	Rings int
	MBps  topology.MBps
	// Class and Reach are PCIeSelf for rings of NVLinks.
	Class, Reach topology.PCIe
}

// Reference answers like the planner does for whole GPUs, slowly.
type Reference struct {
	M *topology.Machine
	// Mix are the typical claims for whole GPUs.
	Mix []TypicalGPUs
	// TierPercent is the width of a tier.
	TierPercent int
	// ClosedForm counts rings by the smallest number of links instead of by
	// packing, as is always done on switched machines.
	ClosedForm bool

	quality map[topology.Mask]Quality
	packs   map[packKey]int64
	local   *Reference
}

// TypicalGPUs is a typical claim for whole GPUs.
type TypicalGPUs struct {
	GPUs   int
	Weight int64
}

type packKey struct {
	k    int
	free topology.Mask
}

// NewReference returns a reference for a machine with the default mix and tiers,
// which are written out here on purpose.
func NewReference(m *topology.Machine) *Reference {
	return &Reference{
		M:           m,
		Mix:         []TypicalGPUs{{1, 50}, {2, 22}, {4, 20}, {8, 8}},
		TierPercent: 10,
		quality:     map[topology.Mask]Quality{},
		packs:       map[packKey]int64{},
	}
}

// Quality values a set.
func (r *Reference) Quality(s topology.Mask) Quality {
	if q, ok := r.quality[s]; ok {
		return q
	}
	q := r.compute(s)
	r.quality[s] = q
	return q
}

func (r *Reference) compute(s topology.Mask) Quality {
	if s.Count() < 2 {
		return Quality{}
	}
	mbps, class, reach, nvlink := BestRing(r.M, s)
	if !nvlink {
		return Quality{MBps: mbps, Class: class, Reach: reach}
	}
	rate := r.M.LinkRate(s.Lowest())
	for i := range s.All() {
		rate = min(rate, r.M.LinkRate(i))
	}
	if !r.M.Switched && !r.ClosedForm {
		rings := MaxRings(r.M.NVLinks, s)
		return Quality{Rings: rings, MBps: topology.MBps(rings) * rate}
	}
	rings := r.degreeRings(s)
	total := topology.MBps(rings) * rate
	if !r.M.Switched {
		return Quality{Rings: rings, MBps: total}
	}
	for i := range s.All() {
		var ports topology.MBps
		for _, links := range r.M.NVLinks[i] {
			ports = max(ports, topology.MBps(links))
		}
		total = min(total, ports*r.M.LinkRate(i))
	}
	return Quality{Rings: rings, MBps: total}
}

// degreeRings counts rings on a switched machine by what each member's links allow;
// an exhaustive search over its fat mesh would not end.
func (r *Reference) degreeRings(s topology.Mask) int {
	least := -1
	for i := range s.All() {
		sum := 0
		for j := range s.All() {
			sum += int(r.M.NVLinks[i][j])
		}
		if least < 0 || sum < least {
			least = sum
		}
	}
	if s.Count() == 2 {
		return least
	}
	return least / 2
}

// Value is the worth of a set in sums.
func (r *Reference) Value(s topology.Mask) int64 {
	if s.Count() == 1 {
		return 6000 // a SYS hop at PCIe Gen3, on every machine
	}
	q := r.Quality(s)
	v := int64(q.MBps)
	if q.Rings > 0 {
		v += r.lift()
	}
	return v
}

// lift is what NVLink rings need on top to be worth more than PCIe rings.
func (r *Reference) lift() int64 {
	key := packKey{k: -1}
	if v, ok := r.packs[key]; ok {
		return v
	}
	var slowNV, fastPCIe int64
	for s := topology.Mask(0); s <= topology.FullMask(r.M.N()); s++ {
		q := r.Quality(s)
		switch v := int64(q.MBps); {
		case q.Rings == 0:
			fastPCIe = max(fastPCIe, v)
		case slowNV == 0 || v < slowNV:
			slowNV = v
		}
	}
	out := int64(0)
	if slowNV > 0 && slowNV <= fastPCIe {
		out = fastPCIe - slowNV + 1
	}
	r.packs[key] = out
	return out
}

// Pack returns the largest total value of disjoint sets of k GPUs inside free.
func (r *Reference) Pack(k int, free topology.Mask) int64 {
	if free.Count() < k {
		return 0
	}
	key := packKey{k: k, free: free}
	if v, ok := r.packs[key]; ok {
		return v
	}
	low := free.Lowest()
	best := r.Pack(k, free.Without(low))
	for _, s := range Subsets(free.Without(low), k-1) {
		set := s.With(low)
		best = max(best, r.Value(set)+r.Pack(k, free&^set))
	}
	r.packs[key] = best
	return best
}

// V values the idle GPUs.
func (r *Reference) V(idle topology.Mask) int64 {
	var sum int64
	for _, t := range r.Mix {
		sum += t.Weight * r.Pack(t.GPUs, idle)
	}
	return sum
}

// Ranked is one set with everything that ranks it.
type Ranked struct {
	GPUs       topology.Mask
	Quality    Quality
	Tier       int
	DeltaV     int64
	Pairs      int64
	Cut        int64
	NUMA       int
	DeltaLocal int64
	Rails      int
}

// Rank returns all sets of k of the idle GPUs in the order of docs/objective.md.
func (r *Reference) Rank(idle topology.Mask, k int, communicates bool) []Ranked {
	var out []Ranked
	before, localBefore := r.V(idle), r.Local().V(idle)
	for _, s := range Subsets(idle, k) {
		out = append(out, Ranked{
			GPUs: s, Quality: r.Quality(s), DeltaV: before - r.V(idle&^s), Pairs: r.pairs(s), Cut: r.cut(s, idle&^s),
			NUMA: r.numa(s), DeltaLocal: localBefore - r.Local().V(idle&^s), Rails: r.rails(s),
		})
	}
	r.setTiers(out)
	slices.SortStableFunc(out, func(a, b Ranked) int {
		if rankedBefore(a, b, communicates) {
			return -1
		}
		return 1 // two different sets are never equal
	})
	return out
}

// rankedBefore reports whether a is ranked before b.
func rankedBefore(a, b Ranked, communicates bool) bool {
	if communicates && a.Tier != b.Tier {
		return a.Tier < b.Tier
	}
	if a.DeltaV != b.DeltaV {
		return a.DeltaV < b.DeltaV
	}
	if a.Tier != b.Tier {
		return a.Tier < b.Tier
	}
	if a.Pairs != b.Pairs {
		return a.Pairs > b.Pairs
	}
	if a.Cut != b.Cut {
		return a.Cut < b.Cut
	}
	if a.NUMA != b.NUMA {
		return a.NUMA < b.NUMA
	}
	if a.DeltaLocal != b.DeltaLocal {
		return a.DeltaLocal < b.DeltaLocal
	}
	if a.Rails != b.Rails {
		return a.Rails < b.Rails
	}
	return a.GPUs < b.GPUs
}

// setTiers finds the best remaining quality, puts all that are close to it in the
// next tier, and repeats.
func (r *Reference) setTiers(sets []Ranked) {
	done := make([]bool, len(sets))
	for tier := 0; ; tier++ {
		best := -1
		for i := range sets {
			if !done[i] && (best < 0 || better(sets[i].Quality, sets[best].Quality)) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		top := sets[best].Quality
		for i := range sets {
			q := sets[i].Quality
			sameKind := (q.Rings > 0) == (top.Rings > 0)
			if !done[i] && sameKind && int64(q.MBps)*100 >= int64(top.MBps)*int64(100-r.TierPercent) {
				sets[i].Tier, done[i] = tier, true
			}
		}
	}
}

func better(a, b Quality) bool {
	if (a.Rings > 0) != (b.Rings > 0) {
		return a.Rings > 0
	}
	return a.MBps > b.MBps
}

func (r *Reference) pairs(s topology.Mask) int64 {
	var sum int64
	for i := range s.All() {
		for j := range s.All() {
			if i < j {
				sum += int64(r.M.WeightMBps(i, j))
			}
		}
	}
	return sum
}

func (r *Reference) cut(s, rest topology.Mask) int64 {
	var sum int64
	for i := range s.All() {
		for j := range rest.All() {
			sum += int64(r.M.WeightMBps(i, j))
		}
	}
	return sum
}

func (r *Reference) numa(s topology.Mask) int {
	seen := map[int]bool{}
	for i := range s.All() {
		if n := r.M.GPUs[i].NUMA; n != topology.NoNUMA {
			seen[n] = true
		}
	}
	return len(seen)
}

func (r *Reference) rails(s topology.Mask) int {
	seen := map[string]bool{}
	for i := range s.All() {
		name := r.M.GPUs[i].NearestNIC
		if name == "" {
			name = fmt.Sprintf("none near GPU %d", i)
		}
		seen[name] = true
	}
	return len(seen)
}

// Local is the reference of the machine without NVLinks.
func (r *Reference) Local() *Reference {
	if r.local == nil {
		m := topology.New(r.M.Name, r.M.N())
		for i := range m.PCIe {
			m.GPUs[i].NUMA = r.M.GPUs[i].NUMA
			for j := range m.PCIe[i] {
				class := r.M.PCIe[i][j]
				if class == topology.SYS && m.GPUs[i].NUMA != topology.NoNUMA && r.M.GPUs[j].NUMA == m.GPUs[i].NUMA {
					class = topology.NODE
				}
				m.PCIe[i][j] = class
			}
		}
		r.local = NewReference(m)
		r.local.Mix, r.local.TierPercent, r.local.ClosedForm = r.Mix, r.TierPercent, r.ClosedForm
	}
	return r.local
}

// Subsets returns all subsets of s with k members, by recursion on the highest.
func Subsets(s topology.Mask, k int) []topology.Mask {
	if k == 0 {
		return []topology.Mask{0}
	}
	if s.Count() < k {
		return nil
	}
	top := s.Highest()
	out := Subsets(s.Without(top), k)
	for _, rest := range Subsets(s.Without(top), k-1) {
		out = append(out, rest.With(top))
	}
	return out
}
