// SPDX-License-Identifier: Apache-2.0

package topology

import "fmt"

// MBps is a bandwidth in megabytes (10^6 bytes) per second in one direction.
type MBps uint32

// GBps returns the bandwidth in gigabytes (10^9 bytes) per second.
func (b MBps) GBps() float64 { return float64(b) / 1000 }

// PCIe says how far apart two GPUs are on PCIe, in the classes that
// `nvidia-smi topo -m` prints. Closer is smaller.
type PCIe uint8

// The PCIe classes.
const (
	PCIeSelf PCIe = iota // the same GPU
	PIX                  // at most one PCIe bridge between them
	PXB                  // several PCIe bridges, not crossing the host bridge
	PHB                  // crossing a PCIe host bridge, typically the CPU
	NODE                 // crossing host bridges inside one NUMA node
	SYS                  // crossing the link between NUMA nodes
	numPCIe
)

var pcieNames = [numPCIe]string{"X", "PIX", "PXB", "PHB", "NODE", "SYS"}

const pcieLetters = "xpbhns"

// Valid reports whether the value is one of the classes.
func (p PCIe) Valid() bool { return p < numPCIe }

// String returns the name nvidia-smi prints, such as "PIX".
func (p PCIe) String() string {
	if !p.Valid() {
		return fmt.Sprintf("PCIe(%d)", uint8(p))
	}
	return pcieNames[p]
}

// Letter returns the one-character form that device attributes carry: 'p' PIX,
// 'b' PXB, 'h' PHB, 'n' NODE, 's' SYS, 'x' the GPU itself; '?' for an invalid value.
func (p PCIe) Letter() byte {
	if !p.Valid() {
		return '?'
	}
	return pcieLetters[p]
}

// ParsePCIe reads a name as nvidia-smi prints it. "PSB" (through a PCIe switch
// on the board, printed for boards with two GPUs) counts as PIX.
func ParsePCIe(name string) (PCIe, error) {
	for i, s := range pcieNames {
		if s == name {
			return PCIe(i), nil
		}
	}
	switch name {
	case "PSB":
		return PIX, nil
	case "SOC": // The name that drivers before 384 print for SYS.
		return SYS, nil
	}
	return 0, fmt.Errorf("unknown PCIe class %q", name)
}

// PCIeFromLetter is the inverse of [PCIe.Letter].
func PCIeFromLetter(letter byte) (PCIe, error) {
	for i := range len(pcieLetters) {
		if pcieLetters[i] == letter {
			return PCIe(i), nil
		}
	}
	return 0, fmt.Errorf("unknown PCIe class letter %q", letter)
}
