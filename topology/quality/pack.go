// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"math/bits"
	"sync"

	"github.com/topodra/topodra/topology"
)

// packTable holds the best packing of every set of GPUs with sets of one size. It
// is computed when it is first asked for.
type packTable struct {
	once sync.Once
	// uniform is the value of a set when all sets of the size have the same, which
	// makes the table unnecessary; -1 otherwise.
	uniform int64
	best    []uint32
}

// Pack returns the largest total [Class.Value] of disjoint sets of k GPUs inside
// free. It is 0 when fewer than k GPUs are free. Above topology.MaxExactGPUs it is
// the sum over groups of GPUs that are packed separately, a lower bound.
func (c *Class) Pack(k int, free topology.Mask) int64 {
	free &= topology.FullMask(c.n)
	count := free.Count()
	switch {
	case k < 1 || k > count:
		return 0
	case k == 1:
		return int64(count) * SingleMBps
	case c.dense == nil:
		return c.sparse.pack(c, k, free)
	case k == count:
		return c.Value(free)
	}
	t := &c.packs[k]
	t.once.Do(func() { t.build(c, k) })
	if t.uniform >= 0 {
		return int64(count/k) * t.uniform
	}
	return int64(t.best[free])
}

// build fills the table. In the best packing of F the lowest member of F is either
// unused or in a set T; best[F] = max(best[F − lowest], max over T of value(T) +
// best[F − T]). All F with a higher lowest member are known when T is tried, so
// the lowest member runs downwards and each T is joined with every rest above it.
func (t *packTable) build(c *Class, k int) {
	if t.uniform = uniformValue(c, k); t.uniform >= 0 {
		return
	}
	t.best = make([]uint32, 1<<c.n)
	for low := c.n - k; low >= 0; low-- {
		above := uint(1<<c.n-1) &^ (1<<(low+1) - 1)
		base := uint(1) << low
		for rest := above; ; rest = (rest - 1) & above {
			t.best[base|rest] = t.best[rest]
			if rest == 0 {
				break
			}
		}
		for others := firstSubset(k - 1); others < 1<<(c.n-low-1); others = nextSubset(others) {
			set := base | others<<(low+1)
			value := uint32(c.valueOf(c.dense.distinct[c.dense.rank[set]]))
			open := above &^ set
			for rest := open; ; rest = (rest - 1) & open {
				if v := value + t.best[rest]; v > t.best[set|rest] {
					t.best[set|rest] = v
				}
				if rest == 0 {
					break
				}
			}
		}
	}
}

// uniformValue returns the common value of all sets of k GPUs, or -1.
func uniformValue(c *Class, k int) int64 {
	first := int64(-1)
	for set := firstSubset(k); set < 1<<c.n; set = nextSubset(set) {
		v := c.valueOf(c.dense.distinct[c.dense.rank[set]])
		if first < 0 {
			first = v
		}
		if v != first {
			return -1
		}
	}
	return first
}

// firstSubset returns the smallest word with k bits set.
func firstSubset(k int) uint { return 1<<k - 1 }

// nextSubset returns the next larger word with as many bits set; k ≥ 1.
func nextSubset(x uint) uint {
	low := x & -x
	carry := x + low
	return carry | (x^carry)>>(2+bits.TrailingZeros(low))
}
