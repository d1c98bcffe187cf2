// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// linkEnds is where the active NVLinks of a GPU lead.
type linkEnds struct {
	direct   map[device.PCIAddress]int // to other GPUs, links by address
	switched int                       // into NVSwitches
	first    int                       // the lowest active link
	active   int
}

// PCI vendors in the lower half of a PCI device ID.
const (
	vendorMask   = 0xffff
	vendorNVIDIA = 0x10de
	vendorIBM    = 0x1014
)

// readLinks follows all links of the GPU.
func (g *foundGPU) readLinks() {
	g.links = linkEnds{direct: map[device.PCIAddress]int{}}
	r, unknown := g.reader, 0
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := call(r.caller, fmt.Sprintf("GetNvLinkState(%d) of %s", link, r.name), func() (nvml.EnableState, nvml.Return) { return g.handle.GetNvLinkState(link) })
		if err != nil || state != nvml.FEATURE_ENABLED {
			g.noteLinkError(err)
			continue
		}
		if g.links.active == 0 {
			g.links.first = link
		}
		g.links.active++
		if !g.followLink(link) {
			unknown++
		}
	}
	if unknown > 0 {
		r.warn("%d of its %d active NVLinks lead to something unknown: they do not count", unknown, g.links.active)
	}
	if g.links.active > 0 && r.lost == nil {
		g.info.NVLinkMBps = g.readLinkRate()
	}
}

// noteLinkError keeps an error about a link, unless it says that there is no such
// link.
func (g *foundGPU) noteLinkError(err error) {
	switch {
	case err == nil, notSupported(err), isInvalidArgument(err):
	case isLost(err):
		g.reader.lost = err
	default:
		g.reader.warn("a link that could not be read does not count: %v", err)
	}
}

// followLink counts one active link by its remote end. It reports whether the
// remote end is known; a link to a CPU is, but counts for nothing.
func (g *foundGPU) followLink(link int) bool {
	r := g.reader
	kind, haveKind := optional(r, "nvmlDeviceGetNvLinkRemoteDeviceType", fmt.Sprintf("GetNvLinkRemoteDeviceType(%d)", link),
		func() (nvml.IntNvLinkDeviceType, nvml.Return) { return g.handle.GetNvLinkRemoteDeviceType(link) })
	if haveKind && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
		// The remote PCI address of a switch is a placeholder on many systems.
		g.links.switched++
		return true
	}
	if haveKind && kind == nvml.NVLINK_DEVICE_TYPE_IBMNPU {
		return true
	}
	pci, ok := optional(r, "", fmt.Sprintf("GetNvLinkRemotePciInfo(%d)", link),
		func() (nvml.PciInfo, nvml.Return) { return g.handle.GetNvLinkRemotePciInfo(link) })
	if !ok {
		return false
	}
	if haveKind && kind == nvml.NVLINK_DEVICE_TYPE_GPU {
		return g.countDirect(&pci)
	}
	// Old drivers do not tell the kind. What is at a GPU's address becomes a
	// direct link later; an address of NVIDIA that is no GPU's is a switch.
	switch pci.PciDeviceId & vendorMask {
	case vendorNVIDIA:
		return g.countDirect(&pci)
	case vendorIBM:
		return true
	default:
		return false
	}
}

// countDirect counts a link that leads to a PCI address.
func (g *foundGPU) countDirect(pci *nvml.PciInfo) bool {
	address, ok := addressOf(pci)
	if ok {
		g.links.direct[address]++
	}
	return ok
}

// readLinkRate reads the rate of a link in one direction: by link on new drivers,
// for all links in common on old ones, else from the table of products.
func (g *foundGPU) readLinkRate() topology.MBps {
	for _, field := range []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(g.links.first)},
		{FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON},
	} {
		rate, ok := optional(g.reader, "nvmlDeviceGetFieldValues", fmt.Sprintf("GetFieldValues(%d)", field.FieldId), func() (uint64, nvml.Return) {
			values := []nvml.FieldValue{field}
			if ret := g.handle.GetFieldValues(values); ret != nvml.SUCCESS {
				return 0, ret
			}
			if ret := nvml.Return(values[0].NvmlReturn); ret != nvml.SUCCESS {
				return 0, nvml.ERROR_NOT_SUPPORTED // Other codes stand for unknown fields on old drivers.
			}
			return numberOf(&values[0]), nvml.SUCCESS
		})
		if ok && rate > 0 && rate <= uint64(topology.MaxWeightMBps) {
			return topology.MBps(rate)
		}
	}
	product, _ := topology.FindProduct(g.gpu.ProductName)
	return product.NVLinkMBps
}

// numberOf reads an unsigned value of any width; 0 for other types.
func numberOf(value *nvml.FieldValue) uint64 {
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(value.Value[:]))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(value.Value[:])
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(value.Value[:]))
	default:
		return 0
	}
}
