// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
)

// Source reads one file.
type Source struct {
	path, nodeName string
}

var _ device.Source = &Source{}

// New returns a Source for the recording at path, as seen by the node of the
// given name.
func New(path, nodeName string) *Source {
	return &Source{path: path, nodeName: nodeName}
}

// Discover implements device.Source.
func (s *Source) Discover(ctx context.Context) (*device.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("discovering GPUs of a recorded machine: %w", err)
	}
	recording, err := capture.Load(s.path)
	if err != nil {
		return nil, fmt.Errorf("discovering GPUs of a recorded machine: %w", err)
	}
	simulation, err := LoadSimulation(s.path)
	if err != nil {
		return nil, fmt.Errorf("discovering GPUs of a recorded machine: %w", err)
	}
	snapshot, err := Snapshot(recording, s.nodeName)
	if err != nil {
		return nil, err
	}
	if snapshot, err = simulation.apply(snapshot); err != nil {
		return nil, fmt.Errorf("discovering GPUs of a recorded machine: %w", err)
	}
	return snapshot, nil
}

// Versions that simulated nodes report.
var (
	driverVersion     = device.Version{Major: 580, Minor: 95, Patch: 5}
	cudaDriverVersion = device.Version{Major: 13}
)

// Snapshot turns a recording into the state of a node.
func Snapshot(recording *capture.Recorded, nodeName string) (*device.Snapshot, error) {
	machine := recording.Machine
	snapshot := &device.Snapshot{
		Simulated:         true,
		DriverVersion:     new(driverVersion),
		CUDADriverVersion: new(cudaDriverVersion),
		Machine:           machine,
		GPUs:              make([]device.GPU, machine.N()),
	}
	for _, warning := range recording.Warnings {
		snapshot.Warnings = append(snapshot.Warnings, string(warning))
	}
	product := findProduct(recording.Product.Name, recording.Hardware)
	roots := rootMembers(machine)
	for i := range snapshot.GPUs {
		snapshot.GPUs[i] = device.GPU{
			UUID:              uuidOf(machine.Name, i, nodeName),
			PCIAddress:        device.PCIAddress(fmt.Sprintf("0000:%02x:00.0", busOf(i))),
			PCIeRoot:          fmt.Sprintf("pci0000:%02x", busOf(roots[i])-1),
			Minor:             new(device.Minor(i)),
			ProductName:       product.name,
			Brand:             product.brand,
			Architecture:      product.architecture,
			ComputeCapability: new(product.capability),
			Memory:            product.memory,
		}
	}
	if err := snapshot.Validate(); err != nil {
		return nil, fmt.Errorf("simulating recorded machine %q: %w", machine.Name, err)
	}
	return snapshot, nil
}

// busOf spreads up to 64 GPUs over the PCI buses below 0xc8, in order of index
// and far enough apart for a root bus of each one's own.
func busOf(i int) int { return 7 + 3*i }

// rootMembers returns for each GPU the lowest one that shares its PCIe root.
func rootMembers(m *topology.Machine) []int {
	root := make([]int, m.N())
	for i := range root {
		root[i] = i
		for j := range i {
			if m.PCIe[i][j] > topology.PHB {
				continue
			}
			// i joins the group of j, and with it every group that i is in already.
			from, to := max(root[i], root[j]), min(root[i], root[j])
			for k := range i + 1 {
				if root[k] == from {
					root[k] = to
				}
			}
		}
	}
	return root
}

// uuidOf hashes what makes a simulated GPU unique in a cluster.
func uuidOf(machine string, index int, nodeName string) device.UUID {
	hash := sha256.New()
	writeTexts(hash, machine, nodeName)
	_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(index))) // Never fails.
	var id [16]byte
	copy(id[:], hash.Sum(nil))
	return device.UUID("GPU-" + device.FormatUUID(id))
}

// hashOf hashes texts.
func hashOf(texts ...string) [16]byte {
	hash := sha256.New()
	writeTexts(hash, texts...)
	var id [16]byte
	copy(id[:], hash.Sum(nil))
	return id
}

// writeTexts writes texts so that "ab"+"c" differs from "a"+"bc".
func writeTexts(to hash.Hash, texts ...string) {
	for _, text := range texts {
		_, _ = to.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))) // Never fails.
		_, _ = to.Write([]byte(text))
	}
}
