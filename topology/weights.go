// SPDX-License-Identifier: Apache-2.0

package topology

import "fmt"

// DefaultNVLinkMBps is the rate of one NVLink per direction that is assumed when
// a machine does not say it: the nominal 25 GB/s of NVLink 2, 3 and 4.
const DefaultNVLinkMBps MBps = 25_000

const (
	// MaxPCIeGen is the highest PCIe generation the weight table knows. Higher
	// generations are valued like this one.
	MaxPCIeGen = 7
	// unknownPCIeGen values links of an unknown generation like this one.
	unknownPCIeGen = 3
	// gen3PIX is NCCL's constant for PCIe Gen3 x16 (PCI_BW, 12.0 GB/s), about
	// three quarters of the raw 15.75 GB/s. The raw rate doubles per generation
	// and so does this value: 24 GB/s for Gen4 and 48 GB/s for Gen5, where
	// posted measurements of 52 to 56 GB/s are the best case.
	gen3PIX MBps = 12_000
	// MaxWeightMBps bounds every pair weight, so that sums over a machine fit.
	MaxWeightMBps MBps = 100_000_000
)

// classPercent is the value of a PCIe class in percent of PIX. Real ratios depend
// on the machine: SYS measures 0.87 of PIX on Gen5 and 0.4 to 0.5 on old Xeons.
// The table keeps neighbours more than one tier (10 %) apart, so that the order
// PIX, PXB, PHB, NODE, SYS always counts.
var classPercent = [numPCIe]MBps{PIX: 100, PXB: 88, PHB: 77, NODE: 67, SYS: 50}

// Weights values links that are not NVLinks: [generation][class] in MBps.
// Generation 0 stands for unknown.
type Weights [MaxPCIeGen + 1][numPCIe]MBps

// DefaultWeights returns the built-in table.
func DefaultWeights() Weights {
	var w Weights
	for gen := range w {
		effective := gen
		if gen == 0 {
			effective = unknownPCIeGen
		}
		pix := gen3PIX
		if effective >= unknownPCIeGen {
			pix <<= effective - unknownPCIeGen
		} else {
			pix >>= unknownPCIeGen - effective
		}
		for class := PIX; class < numPCIe; class++ {
			w[gen][class] = pix * classPercent[class] / 100
		}
	}
	return w
}

// Validate checks that closer classes are worth more and nothing is zero or
// larger than [MaxWeightMBps].
func (w *Weights) Validate() error {
	for gen := range w {
		for class := PIX; class < numPCIe; class++ {
			if w[gen][class] == 0 || w[gen][class] > MaxWeightMBps {
				return fmt.Errorf("checking PCIe weights: generation %d, class %s: %d MBps is not in 1..%d",
					gen, class, w[gen][class], MaxWeightMBps)
			}
			if class > PIX && w[gen][class] >= w[gen][class-1] {
				return fmt.Errorf("checking PCIe weights: generation %d: %s (%d MBps) must be slower than %s (%d MBps)",
					gen, class, w[gen][class], class-1, w[gen][class-1])
			}
		}
	}
	return nil
}

var defaultWeights = DefaultWeights()

// WeightMBps values the link between GPUs i and j with the built-in table: n
// NVLinks are worth n times the per-link rate of the slower end, everything else
// is taken from the PCIe table at the generation of the slower end, or at 0 when one
// of them is unknown. The weight is 0 for i == j.
func (m *Machine) WeightMBps(i, j int) MBps { return m.WeightWith(&defaultWeights, i, j) }

// WeightWith is [Machine.WeightMBps] with another table.
func (m *Machine) WeightWith(w *Weights, i, j int) MBps {
	if i == j {
		return 0
	}
	if links := m.NVLinks[i][j]; links > 0 {
		total := uint64(links) * uint64(min(m.LinkRate(i), m.LinkRate(j)))
		return MBps(min(total, uint64(MaxWeightMBps)))
	}
	return w[min(pcieGen(m.GPUs[i]), pcieGen(m.GPUs[j]))][m.PCIe[i][j]] // 0 when either is unknown
}

// LinkRate returns the rate of one NVLink of GPU i per direction, which is
// [DefaultNVLinkMBps] when the machine does not say it.
func (m *Machine) LinkRate(i int) MBps {
	if r := m.GPUs[i].NVLinkMBps; r > 0 {
		return r
	}
	return DefaultNVLinkMBps
}

func pcieGen(g GPUInfo) int { return min(max(g.PCIeGen, 0), MaxPCIeGen) }
