// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// Reader reads one sysfs.
type Reader struct {
	fsys fs.ReadLinkFS
}

// New returns a Reader for the sysfs mounted at root, usually "/sys".
func New(root string) (*Reader, error) {
	fsys, ok := os.DirFS(root).(fs.ReadLinkFS)
	if !ok {
		return nil, fmt.Errorf("opening sysfs at %q: symbolic links cannot be read", root)
	}
	return NewFS(fsys), nil
}

// NewFS returns a Reader for a tree that looks like sysfs.
func NewFS(fsys fs.ReadLinkFS) *Reader {
	return &Reader{fsys: fsys}
}

// NUMANode returns the NUMA node of the slot of a PCI device. It is an error when
// the firmware names none.
func (r *Reader) NUMANode(address device.PCIAddress) (int, error) {
	attribute, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(string(address), deviceattribute.ScalarAttribute, deviceattribute.WithFS(r.fsys))
	if err != nil {
		return 0, fmt.Errorf("reading the NUMA node of PCI device %q: %w", address, err)
	}
	if attribute.Value.IntValue == nil {
		return 0, fmt.Errorf("reading the NUMA node of PCI device %q: it is no number", address)
	}
	return int(*attribute.Value.IntValue), nil
}

// PCIeRoot returns the root complex above a PCI device, such as "pci0000:00".
func (r *Reader) PCIeRoot(address device.PCIAddress) (string, error) {
	attribute, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(string(address), deviceattribute.WithFS(r.fsys))
	if err != nil {
		return "", fmt.Errorf("reading the PCIe root of device %q: %w", address, err)
	}
	if attribute.Value.StringValue == nil {
		return "", fmt.Errorf("reading the PCIe root of device %q: it is no string", address)
	}
	return *attribute.Value.StringValue, nil
}

var (
	rootName    = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	addressName = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// pciPath is the way from the root complex down to a device: the name of the
// root, the addresses of the bridges, the address of the device.
type pciPath []string

// parsePCIPath takes the PCI part out of a path below sysfs. What follows the
// device itself is cut off.
func parsePCIPath(target string) (pciPath, error) {
	parts := strings.Split(target, "/")
	for i, part := range parts {
		if !rootName.MatchString(part) {
			continue
		}
		end := i + 1
		for end < len(parts) && addressName.MatchString(parts[end]) {
			end++
		}
		if end > i+1 {
			return pciPath(parts[i:end]), nil
		}
	}
	return nil, fmt.Errorf("%q does not lead to a PCI device", target)
}

// pathOf finds a device below its root.
func (r *Reader) pathOf(address device.PCIAddress) (pciPath, error) {
	if !addressName.MatchString(string(address)) {
		return nil, fmt.Errorf("%q is not a PCI address", address)
	}
	target, err := r.fsys.ReadLink(path.Join("bus", "pci", "devices", string(address)))
	if err != nil {
		return nil, fmt.Errorf("finding PCI device %q: %w", address, err)
	}
	found, err := parsePCIPath(target)
	if err != nil {
		return nil, fmt.Errorf("finding PCI device %q: %w", address, err)
	}
	if last := found[len(found)-1]; last != string(address) {
		return nil, fmt.Errorf("finding PCI device %q: the link leads to %q", address, last)
	}
	return found, nil
}

// Class returns how far apart two PCI devices are:
//
//	PIX   below the same switch, or the same bridge, and below nothing else there
//	PXB   below a common bridge, with more bridges in between
//	PHB   below the same root complex
//	NODE  below different root complexes of one NUMA node
//	SYS   anything else
func (r *Reader) Class(a, b device.PCIAddress) (topology.PCIe, error) {
	pathA, errA := r.pathOf(a)
	pathB, errB := r.pathOf(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	return r.classOf(pathA, pathB), nil
}

// classOf compares two paths.
func (r *Reader) classOf(a, b pciPath) topology.PCIe {
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	switch {
	case common == len(a) && common == len(b):
		return topology.PCIeSelf
	case common == 0:
		nodeA, errA := r.NUMANode(device.PCIAddress(a[len(a)-1]))
		nodeB, errB := r.NUMANode(device.PCIAddress(b[len(b)-1]))
		if errA == nil && errB == nil && nodeA == nodeB {
			return topology.NODE
		}
		return topology.SYS
	case common == 1:
		return topology.PHB
	case len(a)-common <= portAndDevice && len(b)-common <= portAndDevice:
		return topology.PIX
	default:
		return topology.PXB
	}
}

// portAndDevice is what lies below a switch on the way to a device that is plugged
// into it: the downstream port and the device itself.
const portAndDevice = 2
