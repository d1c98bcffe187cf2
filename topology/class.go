// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ClassID identifies machines on which every set of GPUs has the same quality and
// locality. It is comparable and can be a map key.
type ClassID [sha256.Size]byte

// String returns the first twelve hexadecimal digits, enough for people.
func (id ClassID) String() string { return hex.EncodeToString(id[:6]) }

// classVersion changes when the encoding below does.
const classVersion = 1

// ClassID hashes everything that quality and locality depend on: number of GPUs,
// links, PCIe classes, rates, generations, which GPUs share a NUMA node or a
// network card, and whether the links are switched. Names are not part of it.
// The machine must be valid.
func (m *Machine) ClassID() ClassID {
	n := m.N()
	buf := make([]byte, 0, 16+n*(2*n+32))
	buf = append(buf, classVersion, byte(n), boolByte(m.Switched))
	numa := make(map[int]int, n)
	nic := make(map[string]int, n)
	for i, g := range m.GPUs {
		buf = binary.AppendUvarint(buf, uint64(m.LinkRate(i)))
		buf = binary.AppendUvarint(buf, uint64(pcieGen(g)))
		buf = append(buf, groupOf(numa, g.NUMA, g.NUMA != NoNUMA), groupOf(nic, g.NearestNIC, g.NearestNIC != ""))
		buf = append(buf, m.NVLinks[i]...)
		for _, class := range m.PCIe[i] {
			buf = append(buf, byte(class))
		}
	}
	return sha256.Sum256(buf)
}

// groupOf numbers distinct known values from 1 in the order they appear; an
// unknown value is 0.
func groupOf[K comparable](seen map[K]int, key K, known bool) byte {
	if !known {
		return 0
	}
	if _, ok := seen[key]; !ok {
		seen[key] = len(seen) + 1
	}
	return byte(seen[key]) // at most MaxGPUs
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
