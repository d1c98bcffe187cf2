// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"cmp"
	"fmt"

	"github.com/topodra/topodra/topology"
)

// LinkKind is the kind of the weakest hop of a ring. Better kinds are smaller.
type LinkKind uint8

// The kinds of hops.
const (
	None   LinkKind = iota // no hop: a set of fewer than two GPUs
	NVLink                 // every hop is an NVLink
	PIX                    // the PCIe classes of the package topology
	PXB
	PHB
	NODE
	SYS
	numKinds
)

var kindNames = [numKinds]string{"none", "NVLink", "PIX", "PXB", "PHB", "NODE", "SYS"}

// String returns the name of the kind, such as "NVLink" or "PIX".
func (k LinkKind) String() string {
	if k >= numKinds {
		return fmt.Sprintf("LinkKind(%d)", uint8(k))
	}
	return kindNames[k]
}

// kindOf returns the kind of a hop of the PCIe class.
func kindOf(p topology.PCIe) LinkKind { return NVLink + LinkKind(p) }

// Quality says how well the members of a set can talk to each other.
type Quality struct {
	// Rings is the number of edge-disjoint NVLink rings through all members: the
	// number of NVLinks of a pair, half the smallest number of NVLinks that any
	// member has into the set for larger sets. 0 when there is no such ring, and
	// for fewer than two GPUs. On switched machines the links are counted as the
	// link matrix shows them, once for every peer.
	Rings int
	// MBps is Rings times the rate of the slowest member's link, on switched
	// machines not more than the links that the weakest member has into the
	// switch; without a ring of NVLinks it is the slowest hop of the best ring. 0
	// for fewer than two GPUs.
	MBps topology.MBps
	// Bottleneck is the kind of the weakest hop of the best ring.
	Bottleneck LinkKind
	// Reach is the worst kind of hop that a ring through the set cannot avoid. It
	// equals Bottleneck except on machines that mix PCIe generations, where the
	// fastest ring may use a farther class than another ring needs to.
	Reach LinkKind
}

// HasNVLink reports whether NVLinks alone join the set in a ring.
func (q Quality) HasNVLink() bool { return q.Rings > 0 }

// String prints the quality for people, such as "2 rings, 51.6 GB/s over NVLink".
func (q Quality) String() string {
	if q.Bottleneck == None {
		return "single GPU"
	}
	rings := "no NVLink ring"
	switch {
	case q.Rings == 1:
		rings = "1 ring"
	case q.Rings > 1:
		rings = fmt.Sprintf("%d rings", q.Rings)
	}
	return fmt.Sprintf("%s, %.1f GB/s over %s", rings, q.MBps.GBps(), q.Bottleneck)
}

// Compare orders qualities of sets of one size, the better one greater: rings of
// NVLinks before everything else, whatever the numbers say, then the bandwidth. A
// single NVLink of the first generation is nominally slower than a PCIe Gen4
// switch, and still the better path: it is not shared with anything.
func Compare(a, b Quality) int {
	if a.HasNVLink() != b.HasNVLink() {
		if a.HasNVLink() {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.MBps, b.MBps)
}

// DefaultTierPercent is how much slower than the best of its tier a set may be,
// in percent. It is larger than measurement noise between equal links and smaller
// than the smallest step between link classes, 12 %.
const DefaultTierPercent = 10

// SameTier reports whether bandwidth b is at most percent below a or above it.
func SameTier(a, b topology.MBps, percent int) bool {
	if a < b {
		a, b = b, a
	}
	return uint64(b)*100 >= uint64(a)*uint64(max(0, 100-percent))
}

// InTier reports whether q belongs to the tier whose best member is best.
func InTier(best, q Quality, percent int) bool {
	return best.HasNVLink() == q.HasNVLink() && SameTier(best.MBps, q.MBps, percent)
}
