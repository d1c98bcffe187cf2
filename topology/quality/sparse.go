// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"math/bits"
	"sync"

	"github.com/topodra/topodra/topology"
)

// maxSparseMemo bounds the memo of a machine above topology.MaxExactGPUs.
const maxSparseMemo = 1 << 15

// sparse answers for machines that are too large for one entry per set.
type sparse struct {
	levels, speeds []level
	ports          []topology.MBps
	uniform        bool          // all pairs are linked alike
	slowest        topology.MBps // weight of the slowest pair
	chunks         []chunk

	mu   sync.Mutex
	memo map[topology.Mask]Quality
}

// chunk is a group of at most topology.MaxExactGPUs GPUs with tables of its own.
type chunk struct {
	gpus  topology.Mask
	class *Class
}

func newSparse(c *Class) *sparse {
	s := &sparse{levels: classLevels(c), ports: portRates(c), memo: map[topology.Mask]Quality{}}
	if s.speeds = speedLevels(c); s.speeds == nil {
		s.speeds = s.levels
	}
	s.uniform = uniformPairs(c)
	s.slowest = c.weights[0][1]
	for i := range c.n {
		for j := range i {
			s.slowest = min(s.slowest, c.weights[i][j])
		}
	}
	for _, gpus := range chunksOf(c) {
		sub := newClass(c.machine.Sub(gpus), c.table)
		sub.bonus = c.bonus
		s.chunks = append(s.chunks, chunk{gpus: gpus, class: sub})
	}
	return s
}

func uniformPairs(c *Class) bool {
	for i := range c.n {
		for j := range i {
			if c.weights[i][j] != c.weights[1][0] || c.machine.LinkName(i, j) != c.machine.LinkName(1, 0) {
				return false
			}
		}
	}
	return true
}

// chunksOf splits the machine by NVLink domain, then by NUMA node where a domain is
// too large or where there are no NVLinks, then by position.
func chunksOf(c *Class) []topology.Mask {
	type key struct{ domain, numa int }
	var out []topology.Mask
	domains := c.machine.Domains()
	size := map[int]int{}
	for _, d := range domains {
		size[d]++
	}
	current := map[key]int{}
	for i, d := range domains {
		k := key{domain: d}
		if d < 0 || size[d] > topology.MaxExactGPUs {
			k.numa = c.machine.GPUs[i].NUMA
		}
		at, ok := current[k]
		if !ok || out[at].Count() == topology.MaxExactGPUs {
			at = len(out)
			current[k] = at
			out = append(out, 0)
		}
		out[at] = out[at].With(i)
	}
	return out
}

// Chunks returns the groups of GPUs that are searched exactly: one group of all
// GPUs up to topology.MaxExactGPUs, NVLink domains or parts of them above.
func (c *Class) Chunks() []topology.Mask {
	if c.dense != nil {
		return []topology.Mask{topology.FullMask(c.n)}
	}
	out := make([]topology.Mask, 0, len(c.sparse.chunks))
	for _, ch := range c.sparse.chunks {
		out = append(out, ch.gpus)
	}
	return out
}

func (s *sparse) of(c *Class, set topology.Mask) Quality {
	s.mu.Lock()
	q, ok := s.memo[set]
	s.mu.Unlock()
	if ok {
		return q
	}
	q = s.compute(c, set)
	s.mu.Lock()
	if len(s.memo) >= maxSparseMemo {
		clear(s.memo)
	}
	s.memo[set] = q
	s.mu.Unlock()
	return q
}

func (s *sparse) compute(c *Class, set topology.Mask) Quality {
	if set.Count() < 2 {
		return Quality{}
	}
	reach := firstLevelOf(s.levels, set)
	if reach == 0 {
		return ringQuality(c, set, minDegree(c, set), s.ports)
	}
	l := s.speeds[firstLevelOf(s.speeds, set)]
	return Quality{MBps: l.mbps, Bottleneck: l.kind, Reach: s.levels[reach].kind}
}

func minDegree(c *Class, set topology.Mask) int {
	lowest := -1
	for i := range set.All() {
		degree := 0
		for j := range set.All() {
			degree += int(c.machine.NVLinks[i][j])
		}
		if lowest < 0 || degree < lowest {
			lowest = degree
		}
	}
	return lowest
}

// firstLevelOf returns the first level at which the set can be joined in a ring.
// Every level has the hops of those before it and the last joins every pair, so
// halving finds it.
func firstLevelOf(levels []level, set topology.Mask) int {
	low, high := 0, len(levels)-1
	for low < high {
		if middle := (low + high) / 2; joined(levels[middle].adjacent, set) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// joined reports whether the graph has a Hamiltonian cycle through the set (a pair:
// an edge). It is exact up to topology.MaxExactGPUs members; for larger sets a yes
// is always right, a no may be wrong. The cheap answers come first: thousands of
// sets are asked about.
func joined(adjacent []topology.Mask, set topology.Mask) bool {
	members := set.Positions()
	k := len(members)
	if k == 2 {
		return adjacent[members[0]].Has(members[1])
	}
	local := make([]topology.Mask, k)
	least := k
	for i, v := range members {
		for j, w := range members {
			if adjacent[v].Has(w) {
				local[i] = local[i].With(j)
			}
		}
		least = min(least, local[i].Count())
	}
	switch {
	case least < 2:
		return false
	case 2*least >= k: // Dirac's theorem
		return true
	case !staysConnected(local):
		return false
	case k > topology.MaxExactGPUs:
		return rotateToCycle(local, k)
	default: // one start finds most cycles there are
		return rotateToCycle(local, 1) || cycleThroughAll(local)
	}
}

// staysConnected reports whether the graph is connected and stays so without any
// one of its vertices, as every graph with a Hamiltonian cycle is.
func staysConnected(adjacent []topology.Mask) bool {
	all := topology.FullMask(len(adjacent))
	for without := range adjacent {
		open := all.Without(without)
		reached := topology.Mask(0)
		for front := topology.MaskOf(open.Lowest()); front != 0; {
			v := front.Lowest()
			reached = reached.With(v)
			front = (front | adjacent[v]) & open &^ reached
		}
		if reached != open {
			return false
		}
	}
	return true
}

// cycleThroughAll is the bit DP of builder.cycles for a single graph of at most
// topology.MaxExactGPUs vertices: ends[S] are the ends of paths that start at the
// last vertex and visit all of S, a set of the others.
func cycleThroughAll(adjacent []topology.Mask) bool {
	last := len(adjacent) - 1
	ends := make([]uint16, 1<<last)
	for set := 1; set < len(ends); set++ {
		for rest := set; rest != 0; rest &= rest - 1 {
			v := bits.TrailingZeros(uint(rest))
			before := set &^ (1 << v)
			if before == 0 && adjacent[last].Has(v) || ends[before]&uint16(adjacent[v]) != 0 {
				ends[set] |= 1 << v
			}
		}
	}
	return ends[len(ends)-1]&uint16(adjacent[last]) != 0
}

// rotateToCycle looks for a Hamiltonian cycle by Pósa's rotations: extend a path
// as far as it goes, then turn its tail around at a neighbour of the end and go on.
// The given number of starts get a fixed number of rotations each, so the answer is
// deterministic.
func rotateToCycle(adjacent []topology.Mask, starts int) bool {
	n := len(adjacent)
	for start := range starts {
		path := []int{start}
		used := topology.MaskOf(start)
		for turn := range 8 * n {
			end := path[len(path)-1]
			if next := adjacent[end] &^ used; next != 0 {
				path = append(path, next.Lowest())
				used = used.With(next.Lowest())
				continue
			}
			if len(path) == n && adjacent[end].Has(start) {
				return true
			}
			path = rotate(path, adjacent[end], turn)
		}
	}
	return false
}

// rotate reverses the part of the path behind one of the neighbours of its end.
func rotate(path []int, neighbours topology.Mask, turn int) []int {
	choice := turn % max(1, neighbours.Count())
	for i, v := range path[:len(path)-1] {
		if !neighbours.Has(v) {
			continue
		}
		if choice > 0 {
			choice--
			continue
		}
		tail := path[i+1:]
		for a, b := 0, len(tail)-1; a < b; a, b = a+1, b-1 {
			tail[a], tail[b] = tail[b], tail[a]
		}
		break
	}
	return path
}

// pack adds up the packings of the chunks. GPUs that are left over in several
// chunks form sets over the slowest links. Machines whose pairs are all alike are
// exact.
func (s *sparse) pack(c *Class, k int, free topology.Mask) int64 {
	if s.uniform {
		var set topology.Mask
		for i := range free.All() {
			if set.Count() < k {
				set = set.With(i)
			}
		}
		return int64(free.Count()/k) * c.Value(set)
	}
	var sum int64
	left := 0
	for _, ch := range s.chunks {
		inside := compress(free, ch.gpus)
		sum += ch.class.Pack(k, inside)
		left += inside.Count() % k
	}
	return sum + int64(left/k)*int64(s.slowest)
}

// compress renumbers the members of s that are in group from 0.
func compress(s, group topology.Mask) topology.Mask {
	var out topology.Mask
	at := 0
	for i := range group.All() {
		if s.Has(i) {
			out = out.With(at)
		}
		at++
	}
	return out
}
