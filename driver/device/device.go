// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/topodra/topodra/topology"
)

// Source finds the GPUs of the node.
type Source interface {
	// Discover reads the present state of the node. It returns an error only
	// when nothing can be said about any GPU; what is wrong with a single one is
	// a warning in the Snapshot. It returns soon after ctx ends. It is not called
	// concurrently.
	Discover(ctx context.Context) (*Snapshot, error)
}

// UUID identifies a GPU or MIG device, as the vendor's tools print it.
type UUID string

// PCIAddress is a PCI address in the form that Linux and Kubernetes use: domain,
// bus, device and function in lower-case hexadecimal, "0000:07:00.0".
type PCIAddress string

// Minor is the number in the name of a device file, /dev/nvidia<minor>.
type Minor int

// ModuleID is the number of a GPU on its baseboard.
type ModuleID int

// Bytes is an amount of memory in bytes.
type Bytes int64

// MiB is 2^20 bytes.
const MiB Bytes = 1 << 20

// Snapshot is the state of the node at one moment.
type Snapshot struct {
	// Simulated says that the GPUs exist only in a recording.
	Simulated bool

	// DriverVersion is that of the kernel driver; nil when unknown.
	DriverVersion *Version

	// CUDADriverVersion is the newest CUDA version that the driver supports; nil
	// when unknown.
	CUDADriverVersion *Version

	// Machine has the links between GPUs. It is nil when there are no GPUs.
	Machine *topology.Machine

	// GPUs are in order of PCI address.
	GPUs []GPU

	// Warnings tell what is wrong with the node, in a stable order and wording.
	Warnings []string
}

// GPU is one physical GPU.
type GPU struct {
	UUID UUID

	// PCIAddress is "" when unknown.
	PCIAddress PCIAddress

	// PCIeRoot is the root complex above the GPU, "pci0000:00"; "" when unknown.
	PCIeRoot string

	// Minor and ModuleID are nil when unknown.
	Minor    *Minor
	ModuleID *ModuleID

	// ProductName, Brand and Architecture are for people; "" when unknown.
	ProductName, Brand, Architecture string

	// ComputeCapability is nil when unknown.
	ComputeCapability *Version

	// Memory is the total, of which the kernel driver keeps MemoryReserved for
	// itself; both 0 when unknown.
	Memory, MemoryReserved Bytes

	// Fabric is nil unless the GPU has completed its registration with a fabric
	// that spans nodes.
	Fabric *Fabric

	// MIGEnabled says that the GPU can be used only through MIGDevices.
	MIGEnabled bool

	// MIGDevices are in order of GPU instance, then compute instance.
	MIGDevices []MIGDevice
}

// MIGDevice is one partition of a GPU.
type MIGDevice struct {
	UUID UUID

	// Profile is its size, such as "1g.10gb"; "" when unknown.
	Profile string

	// Memory is 0 when unknown.
	Memory Bytes

	// GPUInstance and ComputeInstance are the numbers by which the kernel driver
	// knows it.
	GPUInstance, ComputeInstance int

	// GPUSlices, ComputeSlices and MemorySlices say how many of the GPU's equal
	// parts it has; 0 when unknown. GPUSlices are those of its GPU instance, of
	// which ComputeSlices are its own.
	GPUSlices, ComputeSlices, MemorySlices int
}

// Fabric is a GPU's place in a fabric that spans nodes. GPUs with the same value
// reach each other by NVLink.
type Fabric struct {
	ClusterUUID [16]byte
	CliqueID    uint32
}

// String returns "<cluster UUID>.<clique ID>".
func (f Fabric) String() string {
	return FormatUUID(f.ClusterUUID) + "." + strconv.FormatUint(uint64(f.CliqueID), 10)
}

// FormatUUID writes 16 bytes in the usual form with dashes.
func FormatUUID(b [16]byte) string {
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// Validate checks the invariants of the package comment.
func (s *Snapshot) Validate() error {
	if err := s.validateMachine(); err != nil {
		return fmt.Errorf("checking discovered GPUs: %w", err)
	}
	seen := map[UUID]string{}
	for i := range s.GPUs {
		gpu := &s.GPUs[i]
		what := "GPU " + strconv.Itoa(i)
		if i > 0 && s.GPUs[i-1].PCIAddress > gpu.PCIAddress {
			return fmt.Errorf("checking discovered GPUs: %s at %q comes after %q", what, gpu.PCIAddress, s.GPUs[i-1].PCIAddress)
		}
		if err := checkUUID(seen, gpu.UUID, what); err != nil {
			return err
		}
		for k := range gpu.MIGDevices {
			if err := checkUUID(seen, gpu.MIGDevices[k].UUID, what+", MIG device "+strconv.Itoa(k)); err != nil {
				return err
			}
		}
	}
	return nil
}

// validateMachine checks that the machine describes the same GPUs.
func (s *Snapshot) validateMachine() error {
	switch {
	case len(s.GPUs) == 0 && s.Machine == nil:
		return nil
	case s.Machine == nil:
		return fmt.Errorf("%d GPUs without a machine", len(s.GPUs))
	case s.Machine.N() != len(s.GPUs):
		return fmt.Errorf("%d GPUs, but the machine has %d", len(s.GPUs), s.Machine.N())
	case len(s.GPUs) == 0:
		return errors.New("a machine without GPUs")
	default:
		return s.Machine.Validate()
	}
}

// checkUUID remembers who has which UUID.
func checkUUID(seen map[UUID]string, uuid UUID, what string) error {
	if uuid == "" {
		return fmt.Errorf("checking discovered GPUs: %s has no UUID", what)
	}
	if other, ok := seen[uuid]; ok {
		return fmt.Errorf("checking discovered GPUs: %s has the same UUID %q as %s", what, uuid, other)
	}
	seen[uuid] = what
	return nil
}
