// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NoNUMA is the NUMA node of a GPU whose node is not known.
const NoNUMA = -1

// MaxLinks is the largest number of NVLinks between two GPUs: a device attribute
// carries it as one base-36 digit.
const MaxLinks = 35

// Warning is something a reader found odd and repaired, in words for people.
type Warning string

// GPUInfo describes one GPU apart from its links to the other GPUs.
type GPUInfo struct {
	// NUMA is the NUMA node of the PCIe slot, NoNUMA when unknown.
	NUMA int
	// NVLinkMBps is the rate of one NVLink per direction; 0 when unknown.
	NVLinkMBps MBps
	// PCIeGen is the PCIe generation of the slot; 0 when unknown.
	PCIeGen int
	// NearestNIC names the closest network card, "" when unknown.
	NearestNIC string
}

// Machine describes the GPUs of one machine in PCI address order.
type Machine struct {
	// Name is for people; nothing is derived from it.
	Name string
	GPUs []GPUInfo
	// NVLinks holds how many active NVLinks join GPUs i and j. On switched
	// machines it is the number of links both have into the switch.
	// Symmetric, 0 on the diagonal.
	NVLinks [][]uint8
	// PCIe holds the PCIe class of each pair, also of pairs joined by NVLinks.
	// Symmetric, PCIeSelf on the diagonal and nowhere else.
	PCIe [][]PCIe
	// Switched says that the NVLinks go into an NVSwitch fabric: the links of a
	// GPU then serve all its peers instead of being tied to one of them.
	Switched bool
}

// N returns the number of GPUs.
func (m *Machine) N() int { return len(m.GPUs) }

// New returns a machine of n GPUs without NVLinks, every pair SYS apart, NUMA
// nodes and everything else unknown.
func New(name string, n int) *Machine {
	m := &Machine{
		Name: name, GPUs: make([]GPUInfo, n),
		NVLinks: make([][]uint8, n), PCIe: make([][]PCIe, n),
	}
	for i := range n {
		m.GPUs[i].NUMA = NoNUMA
		m.NVLinks[i] = make([]uint8, n)
		m.PCIe[i] = make([]PCIe, n)
		for j := range n {
			if i != j {
				m.PCIe[i][j] = SYS
			}
		}
	}
	return m
}

// Clone returns a deep copy.
func (m *Machine) Clone() *Machine {
	c := *m
	c.GPUs = slices.Clone(m.GPUs)
	c.NVLinks = make([][]uint8, len(m.NVLinks))
	for i := range m.NVLinks {
		c.NVLinks[i] = slices.Clone(m.NVLinks[i])
	}
	c.PCIe = make([][]PCIe, len(m.PCIe))
	for i := range m.PCIe {
		c.PCIe[i] = slices.Clone(m.PCIe[i])
	}
	return &c
}

// Validate checks shapes, ranges and symmetry. The error names the row and the
// column of the first offence.
func (m *Machine) Validate() error {
	if m == nil {
		return errors.New("checking machine: there is none")
	}
	if err := m.validate(); err != nil {
		return fmt.Errorf("checking machine %q: %w", m.Name, err)
	}
	return nil
}

func (m *Machine) validate() error {
	n := len(m.GPUs)
	if n == 0 {
		return errors.New("it has no GPUs")
	}
	if n > MaxGPUs {
		return fmt.Errorf("it has %d GPUs, the limit is %d", n, MaxGPUs)
	}
	if len(m.NVLinks) != n || len(m.PCIe) != n {
		return fmt.Errorf("%d GPUs, but %d rows of NVLinks and %d rows of PCIe classes", n, len(m.NVLinks), len(m.PCIe))
	}
	for i, g := range m.GPUs {
		if g.NUMA < NoNUMA || g.PCIeGen < 0 || g.NVLinkMBps > MaxWeightMBps {
			return fmt.Errorf("GPU %d: NUMA node %d, PCIe generation %d or %d MBps per NVLink is out of range",
				i, g.NUMA, g.PCIeGen, g.NVLinkMBps)
		}
		if len(m.NVLinks[i]) != n || len(m.PCIe[i]) != n {
			return fmt.Errorf("row %d: %d GPUs, but %d columns of NVLinks and %d columns of PCIe classes",
				i, n, len(m.NVLinks[i]), len(m.PCIe[i]))
		}
	}
	for i := range n {
		for j := range n {
			if err := m.validatePair(i, j); err != nil {
				return fmt.Errorf("row %d, column %d: %w", i, j, err)
			}
		}
	}
	return nil
}

func (m *Machine) validatePair(i, j int) error {
	links, class := m.NVLinks[i][j], m.PCIe[i][j]
	switch {
	case !class.Valid():
		return fmt.Errorf("%d is not a PCIe class", class)
	case (i == j) != (class == PCIeSelf):
		return fmt.Errorf("PCIe class %s: only the diagonal is %s", class, PCIeSelf)
	case i == j && links != 0:
		return fmt.Errorf("%d NVLinks from a GPU to itself", links)
	case links > MaxLinks:
		return fmt.Errorf("%d NVLinks, the limit is %d", links, MaxLinks)
	case links != m.NVLinks[j][i]:
		return fmt.Errorf("%d NVLinks, but %d in the opposite direction", links, m.NVLinks[j][i])
	case class != m.PCIe[j][i]:
		return fmt.Errorf("PCIe class %s, but %s in the opposite direction", class, m.PCIe[j][i])
	}
	return nil
}

// Domains returns the NVLink domain of each GPU: a number per connected component
// of the NVLink graph, counted from 0 in the order of their lowest members, or -1
// for a GPU without NVLinks.
func (m *Machine) Domains() []int {
	out := make([]int, m.N())
	for i := range out {
		out[i] = -1
	}
	next := 0
	for start := range out {
		if out[start] >= 0 || !m.linked(start) {
			continue
		}
		out[start] = next
		for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
			for j, links := range m.NVLinks[queue[0]] {
				if links > 0 && out[j] < 0 {
					out[j] = next
					queue = append(queue, j)
				}
			}
		}
		next++
	}
	return out
}

func (m *Machine) linked(i int) bool {
	for _, links := range m.NVLinks[i] {
		if links > 0 {
			return true
		}
	}
	return false
}

// LinkName returns what nvidia-smi prints for a pair: "X", "NV12" or the PCIe class.
func (m *Machine) LinkName(i, j int) string {
	if links := m.NVLinks[i][j]; links > 0 {
		return "NV" + strconv.Itoa(int(links))
	}
	return m.PCIe[i][j].String()
}

// Matrix prints the links as `nvidia-smi topo -m` does: a row and a column per
// GPU, then the NUMA node ("N/A" when unknown). Columns are separated by tabs.
func (m *Machine) Matrix() string {
	var b strings.Builder
	for i := range m.GPUs {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	b.WriteString("\tNUMA Affinity\n")
	for i, g := range m.GPUs {
		fmt.Fprintf(&b, "GPU%d", i)
		for j := range m.GPUs {
			b.WriteByte('\t')
			b.WriteString(m.LinkName(i, j))
		}
		numa := "N/A"
		if g.NUMA != NoNUMA {
			numa = strconv.Itoa(g.NUMA)
		}
		b.WriteString("\t" + numa + "\n")
	}
	return b.String()
}

// Sub returns the machine that consists of the given GPUs alone, in ascending
// order of their positions. Positions that the machine does not have are ignored.
func (m *Machine) Sub(s Mask) *Machine {
	at := (s & FullMask(m.N())).Positions()
	out := &Machine{
		Name: m.Name, Switched: m.Switched, GPUs: make([]GPUInfo, len(at)),
		NVLinks: make([][]uint8, len(at)), PCIe: make([][]PCIe, len(at)),
	}
	for i, from := range at {
		out.GPUs[i] = m.GPUs[from]
		out.NVLinks[i] = make([]uint8, len(at))
		out.PCIe[i] = make([]PCIe, len(at))
		for j, to := range at {
			out.NVLinks[i][j] = m.NVLinks[from][to]
			out.PCIe[i][j] = m.PCIe[from][to]
		}
	}
	return out
}

// Permute returns the machine whose GPU i is GPU order[i] of this one. order must
// be a permutation of the positions.
func (m *Machine) Permute(order []int) *Machine {
	out := m.Clone()
	for i, from := range order {
		out.GPUs[i] = m.GPUs[from]
		for j, to := range order {
			out.NVLinks[i][j] = m.NVLinks[from][to]
			out.PCIe[i][j] = m.PCIe[from][to]
		}
	}
	return out
}
