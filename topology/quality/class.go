// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"fmt"
	"sync"

	"github.com/topodra/topodra/topology"
)

// Options of a class. The zero value is the default.
type Options struct {
	// Weights values links that are not NVLinks; nil is topology.DefaultWeights.
	Weights *topology.Weights
}

// SingleMBps is the value of a single GPU in sums, in MBps: that of a SYS hop at PCIe
// Gen3. It is the same on every machine, because a claim for one GPU runs as well on
// one as on another: the odd GPU of a broken NVLink pair must not look dearer than an
// intact pair of a slower machine. It is not 0, so that a free GPU is worth something.
const SingleMBps = 6_000

// Class answers questions about the sets of GPUs of one kind of machine. It is
// read-only for callers.
type Class struct {
	machine *topology.Machine // private copy, without a name
	id      topology.ClassID
	n       int
	table   topology.Weights // what the class was built with
	weights [][]topology.MBps
	// bonus lifts every NVLink ring above every PCIe ring in sums of values. It is
	// 0 unless some NVLink ring is nominally slower than some PCIe ring.
	bonus int64

	dense  *dense  // nil above topology.MaxExactGPUs
	sparse *sparse // nil up to topology.MaxExactGPUs
	packs  [topology.MaxExactGPUs + 1]packTable

	numa, rails []topology.Mask // known groups, by lowest member

	localOnce sync.Once
	local     *Class
}

// NewClass builds the tables of a valid machine. It does not keep the machine.
func NewClass(m *topology.Machine, opts Options) (*Class, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("building topology class: %w", err)
	}
	table := topology.DefaultWeights()
	if opts.Weights != nil {
		if err := opts.Weights.Validate(); err != nil {
			return nil, fmt.Errorf("building topology class: %w", err)
		}
		table = *opts.Weights
	}
	return newClass(m.Clone(), table), nil
}

func newClass(m *topology.Machine, table topology.Weights) *Class {
	m.Name = ""
	c := &Class{machine: m, id: m.ClassID(), n: m.N(), table: table}
	c.numa = groups(m.GPUs, func(g topology.GPUInfo) (int, bool) { return g.NUMA, g.NUMA != topology.NoNUMA })
	c.rails = groups(m.GPUs, func(g topology.GPUInfo) (string, bool) { return g.NearestNIC, g.NearestNIC != "" })
	c.weigh()
	if c.n <= topology.MaxExactGPUs {
		c.dense = buildDense(c)
		c.bonus = c.dense.bonus()
	} else {
		c.sparse = newSparse(c)
	}
	return c
}

// weigh fills the pair weights and the constants that follow from them.
func (c *Class) weigh() {
	c.weights = make([][]topology.MBps, c.n)
	var slowestNV, fastestPCIe topology.MBps
	for i := range c.n {
		c.weights[i] = make([]topology.MBps, c.n)
		for j := range c.n {
			w := c.machine.WeightWith(&c.table, i, j)
			c.weights[i][j] = w
			switch {
			case i == j:
				continue
			case c.machine.NVLinks[i][j] > 0:
				if rate := min(c.machine.LinkRate(i), c.machine.LinkRate(j)); slowestNV == 0 || rate < slowestNV {
					slowestNV = rate
				}
			default:
				fastestPCIe = max(fastestPCIe, w)
			}
		}
	}
	if slowestNV > 0 && slowestNV <= fastestPCIe {
		c.bonus = int64(fastestPCIe-slowestNV) + 1 // an upper bound, see dense.bonus
	}
}

// groups returns the sets of GPUs with equal known keys, by lowest member.
func groups[K comparable](gpus []topology.GPUInfo, key func(topology.GPUInfo) (K, bool)) []topology.Mask {
	index := map[K]int{}
	var out []topology.Mask
	for i, g := range gpus {
		k, known := key(g)
		if !known {
			continue
		}
		at, ok := index[k]
		if !ok {
			at = len(out)
			index[k] = at
			out = append(out, 0)
		}
		out[at] = out[at].With(i)
	}
	return out
}

// N returns the number of GPUs.
func (c *Class) N() int { return c.n }

// ID identifies the class. Classes built with different options share it.
func (c *Class) ID() topology.ClassID { return c.id }

// Machine returns a copy of the machine, without its name.
func (c *Class) Machine() *topology.Machine { return c.machine.Clone() }

// Exact reports whether every value of the class is exact.
func (c *Class) Exact() bool { return c.dense != nil }

// Of returns the quality of a set. GPUs that the machine does not have are ignored.
func (c *Class) Of(s topology.Mask) Quality {
	s &= topology.FullMask(c.n)
	if c.dense != nil {
		return c.dense.distinct[c.dense.rank[s]]
	}
	return c.sparse.of(c, s)
}

// Rank returns a number that orders the qualities of a class like [Compare], better
// ones smaller. Sets of one quality have one rank; [Class.Ranked] is its inverse. It
// is only available when [Class.Exact].
func (c *Class) Rank(s topology.Mask) int { return int(c.dense.rank[s&topology.FullMask(c.n)]) }

// Ranked returns the quality of a rank.
func (c *Class) Ranked(rank int) Quality { return c.dense.distinct[rank] }

// PairMBps returns the sum of the weights of all pairs of the set.
func (c *Class) PairMBps(s topology.Mask) int64 {
	s &= topology.FullMask(c.n)
	if c.dense != nil {
		return c.dense.pairs[s]
	}
	var sum int64
	for i := range s.All() {
		for j := range s.All() {
			if i < j {
				sum += int64(c.weights[i][j])
			}
		}
	}
	return sum
}

// NUMANodes counts the known NUMA nodes of the set.
func (c *Class) NUMANodes(s topology.Mask) int { return countGroups(c.numa, s) }

// Rails counts the distinct nearest network cards of the set. A GPU without one
// counts for itself: it shares its way to the network with nobody.
func (c *Class) Rails(s topology.Mask) int {
	s &= topology.FullMask(c.n)
	var near topology.Mask
	for _, g := range c.rails {
		near |= g
	}
	return countGroups(c.rails, s) + (s &^ near).Count()
}

func countGroups(groups []topology.Mask, s topology.Mask) int {
	count := 0
	for _, g := range groups {
		if g&s != 0 {
			count++
		}
	}
	return count
}

// Value is the worth of a set in sums such as [Class.Pack], in MBps: the
// bandwidth of its quality. A single GPU counts [SingleMBps]. On the rare machine
// where an NVLink ring is nominally slower than a PCIe ring every NVLink ring gets
// the difference on top, so that sums cannot prefer PCIe.
func (c *Class) Value(s topology.Mask) int64 {
	s &= topology.FullMask(c.n)
	switch s.Count() {
	case 0:
		return 0
	case 1:
		return SingleMBps
	}
	return c.valueOf(c.Of(s))
}

func (c *Class) valueOf(q Quality) int64 {
	v := int64(q.MBps)
	if q.HasNVLink() {
		v += c.bonus
	}
	return v
}

// Local returns the class of the same machine seen without its NVLinks: PCIe
// classes alone, and SYS counted as NODE between GPUs of one NUMA node, because
// some machines print SYS for every pair. It keeps sockets and switches whole
// where the NVLinks make no difference.
func (c *Class) Local() *Class {
	c.localOnce.Do(func() {
		m := c.machine.Clone()
		for i := range m.NVLinks {
			clear(m.NVLinks[i])
			m.GPUs[i].NVLinkMBps, m.GPUs[i].PCIeGen = 0, 0
			for j := range m.PCIe[i] {
				if m.PCIe[i][j] == topology.SYS && m.GPUs[i].NUMA != topology.NoNUMA && m.GPUs[i].NUMA == m.GPUs[j].NUMA {
					m.PCIe[i][j] = topology.NODE
				}
			}
		}
		m.Switched = false
		c.local = newClass(m, topology.DefaultWeights())
	})
	return c.local
}
