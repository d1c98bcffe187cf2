// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/topodra/topodra/topology"
)

// dense holds one entry per set of GPUs, indexed by the mask.
type dense struct {
	rank     []uint16  // index into distinct
	distinct []Quality // best first
	pairs    []int64   // sum of pair weights
}

const unresolved = ^uint8(0)

// builder is the scratch of building a dense table.
type builder struct {
	c    *Class
	n    int
	size int
	path []uint16 // see cycles
}

func buildDense(c *Class) *dense {
	b := &builder{c: c, n: c.n, size: 1 << c.n, path: make([]uint16, 1<<c.n)}
	levels := classLevels(c)
	reach := b.firstLevels(levels)
	fastest, speeds := reach, levels
	if mixed := speedLevels(c); mixed != nil {
		speeds = mixed
		fastest = b.firstLevels(speeds)
	}
	d := &dense{pairs: b.pairSums()}
	d.fill(c, b.minDegrees(), levels, reach, speeds, fastest)
	return d
}

// level is a threshold: the graph of all NVLinks and all PCIe hops that are at
// least as good. The first level is the graph of the NVLinks alone.
type level struct {
	adjacent []topology.Mask
	kind     LinkKind
	mbps     topology.MBps // of the weakest hop allowed; 0 for NVLink
}

// classLevels returns the thresholds by class: NVLink, PIX, … SYS, without classes
// that no pair has. mbps is set when all hops of the class are equally fast.
func classLevels(c *Class) []level {
	out := []level{{adjacent: adjacency(c, func(int, int) bool { return false }), kind: NVLink}}
	for class := topology.PIX; class <= topology.SYS; class++ {
		var mbps topology.MBps
		found := false
		for i := range c.n {
			for j := range i {
				if c.machine.NVLinks[i][j] == 0 && c.machine.PCIe[i][j] == class {
					found, mbps = true, c.weights[i][j]
				}
			}
		}
		if found {
			out = append(out, level{
				adjacent: adjacency(c, func(i, j int) bool { return c.machine.PCIe[i][j] <= class }),
				kind:     kindOf(class), mbps: mbps,
			})
		}
	}
	return out
}

// speedLevels returns the thresholds by bandwidth on machines where a class has
// hops of different speeds or a farther class is faster, which happens when PCIe
// generations are mixed. It is nil where classLevels says it all.
func speedLevels(c *Class) []level {
	kinds := map[topology.MBps]LinkKind{} // the worst kind of each speed
	speed := map[LinkKind]topology.MBps{}
	mixed := false
	for i := range c.n {
		for j := range i {
			if c.machine.NVLinks[i][j] > 0 {
				continue
			}
			w, kind := c.weights[i][j], kindOf(c.machine.PCIe[i][j])
			kinds[w] = max(kinds[w], kind)
			if s, ok := speed[kind]; ok && s != w {
				mixed = true
			}
			speed[kind] = w
		}
	}
	if !mixed && inOrder(speed) {
		return nil
	}
	var speeds []topology.MBps
	for s := range kinds {
		speeds = append(speeds, s)
	}
	slices.SortFunc(speeds, func(a, b topology.MBps) int { return cmp.Compare(b, a) })
	out := []level{{adjacent: adjacency(c, func(int, int) bool { return false }), kind: NVLink}}
	for _, s := range speeds {
		out = append(out, level{
			adjacent: adjacency(c, func(i, j int) bool { return c.weights[i][j] >= s }),
			kind:     kinds[s], mbps: s,
		})
	}
	return out
}

// inOrder reports whether farther kinds are slower.
func inOrder(speed map[LinkKind]topology.MBps) bool {
	last := topology.MaxWeightMBps + 1
	for kind := PIX; kind <= SYS; kind++ {
		s, ok := speed[kind]
		if !ok {
			continue
		}
		if s >= last {
			return false
		}
		last = s
	}
	return true
}

// adjacency returns the graph of all NVLinks and the PCIe hops that are allowed.
func adjacency(c *Class, allowed func(i, j int) bool) []topology.Mask {
	out := make([]topology.Mask, c.n)
	for i := range c.n {
		for j := range c.n {
			if i != j && (c.machine.NVLinks[i][j] > 0 || allowed(i, j)) {
				out[i] = out[i].With(j)
			}
		}
	}
	return out
}

// firstLevels returns for every set the first level at which its members can be
// joined in a ring; for pairs, at which they are joined.
func (b *builder) firstLevels(levels []level) []uint8 {
	out := make([]uint8, b.size)
	open := 0
	for mask := range out {
		if bits.OnesCount(uint(mask)) >= 2 {
			out[mask] = unresolved
			open++
		}
	}
	for at, l := range levels {
		if open == 0 {
			break
		}
		open -= b.cycles(l.adjacent, uint8(at), out)
	}
	return out
}

// cycles writes at for every unresolved set that has a Hamiltonian cycle in the
// graph (for pairs: an edge) and returns how many there were.
//
// path[S] is the set of vertices v such that a path starts at the lowest member of
// S, visits all of S and ends at v. It follows from path[S without v] for each v,
// so sets in ascending order suffice. S has a cycle if the lowest member is joined
// to one of the ends.
func (b *builder) cycles(graph []topology.Mask, at uint8, out []uint8) int {
	if complete(graph) {
		return fillUnresolved(out, at)
	}
	adjacent := make([]uint16, len(graph))
	for i, a := range graph {
		adjacent[i] = uint16(a)
	}
	resolved := 0
	for mask := 1; mask < b.size; mask++ {
		low := mask & -mask
		rest := mask ^ low
		if rest == 0 {
			b.path[mask] = uint16(mask)
			continue
		}
		var ends uint16
		for r := rest; r != 0; r &= r - 1 {
			v := bits.TrailingZeros(uint(r))
			if b.path[mask^1<<v]&adjacent[v] != 0 {
				ends |= 1 << v
			}
		}
		b.path[mask] = ends
		if out[mask] == unresolved && ends&adjacent[bits.TrailingZeros(uint(mask))] != 0 {
			out[mask] = at
			resolved++
		}
	}
	return resolved
}

func complete(graph []topology.Mask) bool {
	for i, a := range graph {
		if a.With(i) != topology.FullMask(len(graph)) {
			return false
		}
	}
	return true
}

func fillUnresolved(out []uint8, at uint8) int {
	count := 0
	for mask := range out {
		if out[mask] == unresolved {
			out[mask] = at
			count++
		}
	}
	return count
}

// minDegrees returns for every set the smallest number of NVLinks that a member
// has to the other members.
func (b *builder) minDegrees() []uint16 {
	out := make([]uint16, b.size)
	for mask := range out {
		out[mask] = ^uint16(0)
	}
	degree := make([]uint16, b.size)
	for v := range b.n {
		links := b.c.machine.NVLinks[v]
		for mask := 1; mask < b.size; mask++ {
			low := bits.TrailingZeros(uint(mask))
			degree[mask] = degree[mask&(mask-1)] + uint16(links[low])
			if mask>>v&1 == 1 {
				out[mask] = min(out[mask], degree[mask])
			}
		}
	}
	return out
}

func (b *builder) pairSums() []int64 {
	out := make([]int64, b.size)
	for mask := 1; mask < b.size; mask++ {
		rest := mask & (mask - 1)
		sum := out[rest]
		w := b.c.weights[bits.TrailingZeros(uint(mask))]
		for r := rest; r != 0; r &= r - 1 {
			sum += int64(w[bits.TrailingZeros(uint(r))])
		}
		out[mask] = sum
	}
	return out
}

// fill computes the quality of every set and numbers the distinct ones.
func (d *dense) fill(c *Class, degrees []uint16, levels []level, reach []uint8, speeds []level, fastest []uint8) {
	ports := portRates(c)
	index := map[Quality]uint16{}
	var last Quality
	var lastAt uint16
	d.rank = make([]uint16, len(reach))
	for mask := range d.rank {
		q := Quality{}
		if mask&(mask-1) != 0 {
			s := topology.Mask(mask)
			if reach[mask] == 0 {
				q = ringQuality(c, s, int(degrees[mask]), ports)
			} else {
				l := speeds[fastest[mask]]
				q = Quality{MBps: l.mbps, Bottleneck: l.kind, Reach: levels[reach[mask]].kind}
			}
		}
		if q != last || mask == 0 {
			at, ok := index[q]
			if !ok {
				at = uint16(len(d.distinct))
				index[q] = at
				d.distinct = append(d.distinct, q)
			}
			last, lastAt = q, at
		}
		d.rank[mask] = lastAt
	}
	d.sort()
}

// sort orders distinct from the best to the worst. Qualities that Compare calls
// equal get an arbitrary but fixed order; see Class.Rank.
func (d *dense) sort() {
	order := make([]int, len(d.distinct))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		qa, qb := d.distinct[a], d.distinct[b]
		return cmp.Or(Compare(qb, qa), cmp.Compare(qa.Bottleneck, qb.Bottleneck),
			cmp.Compare(qa.Reach, qb.Reach), cmp.Compare(qb.Rings, qa.Rings))
	})
	sorted := make([]Quality, len(order))
	renumber := make([]uint16, len(order))
	for to, from := range order {
		sorted[to] = d.distinct[from]
		renumber[from] = uint16(to)
	}
	d.distinct = sorted
	for mask := range d.rank {
		d.rank[mask] = renumber[d.rank[mask]]
	}
}

// bonus returns what has to be added to the bandwidth of every NVLink ring so that
// the slowest is worth more than the fastest ring that needs PCIe.
func (d *dense) bonus() int64 {
	var slowestNV, fastestPCIe topology.MBps
	for _, q := range d.distinct {
		switch {
		case !q.HasNVLink():
			fastestPCIe = max(fastestPCIe, q.MBps)
		case slowestNV == 0 || q.MBps < slowestNV:
			slowestNV = q.MBps
		}
	}
	if slowestNV == 0 || slowestNV > fastestPCIe {
		return 0
	}
	return int64(fastestPCIe-slowestNV) + 1
}

// ringQuality is the closed form for a set that NVLinks join in a ring (a pair:
// join at all). degree is the smallest number of NVLinks a member has into it.
func ringQuality(c *Class, s topology.Mask, degree int, ports []topology.MBps) Quality {
	rings := degree
	if s.Count() > 2 {
		rings /= 2
	}
	rate, limit := topology.MaxWeightMBps, topology.MaxWeightMBps
	for i := range s.All() {
		rate = min(rate, c.machine.LinkRate(i))
		limit = min(limit, ports[i])
	}
	mbps := min(uint64(rings)*uint64(rate), uint64(limit))
	return Quality{Rings: rings, MBps: topology.MBps(mbps), Bottleneck: NVLink, Reach: NVLink}
}

// portRates returns what each GPU can send into the switch at most. Without a
// switch the links of a ring are counted already, and nothing limits them.
func portRates(c *Class) []topology.MBps {
	out := make([]topology.MBps, c.n)
	for i := range out {
		out[i] = topology.MaxWeightMBps
		if c.machine.Switched {
			links := slices.Max(c.machine.NVLinks[i])
			out[i] = topology.MBps(min(uint64(links)*uint64(c.machine.LinkRate(i)), uint64(topology.MaxWeightMBps)))
		}
	}
	return out
}
