// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// errFake is what the fake sysfs says about what it does not know.
var errFake = errors.New("not there")

// link is one NVLink slot of a fake GPU.
type link struct {
	active bool
	kind   nvml.IntNvLinkDeviceType
	remote nvml.PciInfo
}

// fakeGPU is a go-nvml mock and what its link functions answer from.
type fakeGPU struct {
	*mock.Device
	links []link
	rate  topology.MBps
}

// fakeNode is a node whose NVML is go-nvml's mock. NVML counts its GPUs from the
// last PCI address to the first, so that mixing up the two orders shows.
type fakeNode struct {
	t       *testing.T
	machine *topology.Machine
	gpus    []*fakeGPU // by PCI address
	missing map[string]bool
	p2p     map[[2]int]nvml.GpuP2PStatus // overrides

	*mock.Interface
}

// addressAt returns the PCI address of the GPU at position i, in Linux's form.
func addressAt(i int) device.PCIAddress {
	return device.PCIAddress(fmt.Sprintf("%04x:%02x:00.0", i%2, 0x10+i))
}

// pciAt returns what NVML says about the address of the GPU at position i.
func pciAt(i int) nvml.PciInfo {
	pci := nvml.PciInfo{Domain: uint32(i % 2), Bus: uint32(0x10 + i), PciDeviceId: 0x20b010de}
	copyText(pci.BusId[:], fmt.Sprintf("%08X:%02X:00.0", pci.Domain, pci.Bus))
	copyText(pci.BusIdLegacy[:], fmt.Sprintf("%04X:%02X:00.0", pci.Domain, pci.Bus))
	return pci
}

// copyText writes a C string.
func copyText(to []int8, text string) {
	for i := range text {
		to[i] = int8(text[i])
	}
}

// uuidAt returns the UUID of the GPU at position i.
func uuidAt(i int) string { return fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", 0xa000+i) }

// inOrder returns the positions of n GPUs in order of PCI address: those of domain
// 0 come first.
func inOrder(n int) []int {
	var out []int
	for _, domain := range []int{0, 1} {
		for i := domain; i < n; i += 2 {
			out = append(out, i)
		}
	}
	return out
}

// newFakeNode builds a node that looks like a machine, whose positions are in order
// of PCI address.
func newFakeNode(t *testing.T, m *topology.Machine) *fakeNode {
	t.Helper()
	n := &fakeNode{t: t, machine: m, missing: map[string]bool{}, p2p: map[[2]int]nvml.GpuP2PStatus{}}
	slots := inOrder(m.N())
	for i := range m.N() {
		n.gpus = append(n.gpus, n.newGPU(i, slots))
	}
	n.Interface = &mock.Interface{
		InitFunc:                       func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:                   func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "535.104.05", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 12020, nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return len(n.gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(index int) (nvml.Device, nvml.Return) {
			return n.gpus[len(n.gpus)-1-index].Device, nvml.SUCCESS
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(symbol string) error {
				if n.missing[symbol] {
					return errFake
				}
				return nil
			}}
		},
	}
	return n
}

// newGPU builds the GPU at position i. slots tells which slot each position has.
func (n *fakeNode) newGPU(i int, slots []int) *fakeGPU {
	gpu := &fakeGPU{rate: n.machine.GPUs[i].NVLinkMBps}
	for j, links := range n.machine.NVLinks[i] {
		if n.machine.Switched {
			for len(gpu.links) < int(links) {
				gpu.links = append(gpu.links, link{active: true, kind: nvml.NVLINK_DEVICE_TYPE_SWITCH})
			}
			continue
		}
		for range links {
			gpu.links = append(gpu.links, link{active: true, kind: nvml.NVLINK_DEVICE_TYPE_GPU, remote: pciAt(slots[j])})
		}
	}
	gpu.Device = &mock.Device{
		GetUUIDFunc:                  func() (string, nvml.Return) { return uuidAt(slots[i]), nvml.SUCCESS },
		GetPciInfoFunc:               func() (nvml.PciInfo, nvml.Return) { return pciAt(slots[i]), nvml.SUCCESS },
		GetMinorNumberFunc:           func() (int, nvml.Return) { return slots[i], nvml.SUCCESS },
		GetModuleIdFunc:              func() (int, nvml.Return) { return slots[i] + 1, nvml.SUCCESS },
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA Test", nvml.SUCCESS },
		GetBrandFunc:                 func() (nvml.BrandType, nvml.Return) { return nvml.BRAND_NVIDIA, nvml.SUCCESS },
		GetArchitectureFunc:          func() (nvml.DeviceArchitecture, nvml.Return) { return nvml.DEVICE_ARCH_AMPERE, nvml.SUCCESS },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 8, 0, nvml.SUCCESS },
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80 << 30}, nvml.SUCCESS },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 80 << 30, Reserved: 500 << 20}, nvml.SUCCESS
		},
		GetGpuFabricInfoFunc:         func() (nvml.GpuFabricInfo, nvml.Return) { return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED },
		GetMigModeFunc:               func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetMaxPcieLinkGenerationFunc: func() (int, nvml.Return) { return n.machine.GPUs[i].PCIeGen, nvml.SUCCESS },
		GetNvLinkStateFunc:           gpu.state,
		GetNvLinkRemoteDeviceTypeFunc: func(at int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return gpu.links[at].kind, nvml.SUCCESS
		},
		GetNvLinkRemotePciInfoFunc: func(at int) (nvml.PciInfo, nvml.Return) { return gpu.links[at].remote, nvml.SUCCESS },
		GetFieldValuesFunc:         gpu.fieldValues,
		GetP2PStatusFunc: func(other nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
			return n.peerToPeer(i, n.position(other), index), nvml.SUCCESS
		},
		GetTopologyCommonAncestorFunc: func(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			return levelOf(n.machine.PCIe[i][n.position(other)]), nvml.SUCCESS
		},
	}
	return gpu
}

// state answers as NVML does for links that are down and that do not exist.
func (g *fakeGPU) state(at int) (nvml.EnableState, nvml.Return) {
	switch {
	case at >= len(g.links):
		return 0, nvml.ERROR_INVALID_ARGUMENT
	case g.links[at].active:
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	default:
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	}
}

// fieldValues knows the rate of single links that are up.
func (g *fakeGPU) fieldValues(values []nvml.FieldValue) nvml.Return {
	for i := range values {
		at := int(values[i].ScopeId)
		if values[i].FieldId != nvml.FI_DEV_NVLINK_GET_SPEED || g.rate == 0 || at >= len(g.links) || !g.links[at].active {
			values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
		binary.NativeEndian.PutUint32(values[i].Value[:], uint32(g.rate))
	}
	return nvml.SUCCESS
}

// position finds a GPU by its handle.
func (n *fakeNode) position(handle nvml.Device) int {
	for i, gpu := range n.gpus {
		if gpu.Device == handle {
			return i
		}
	}
	n.t.Errorf("unknown device handle %v", handle)
	return 0
}

// peerToPeer is OK for pairs that the machine links, unless a test overrides it.
func (n *fakeNode) peerToPeer(i, j int, index nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus {
	if index != nvml.P2P_CAPS_INDEX_NVLINK {
		n.t.Errorf("unexpected peer to peer index %d", index)
	}
	if status, ok := n.p2p[[2]int{i, j}]; ok {
		return status
	}
	if n.machine.NVLinks[i][j] == 0 {
		return nvml.P2P_STATUS_NOT_SUPPORTED
	}
	return nvml.P2P_STATUS_OK
}

// levelOf translates a PCIe class into NVML's level.
func levelOf(class topology.PCIe) nvml.GpuTopologyLevel {
	return map[topology.PCIe]nvml.GpuTopologyLevel{
		topology.PIX: nvml.TOPOLOGY_SINGLE, topology.PXB: nvml.TOPOLOGY_MULTIPLE, topology.PHB: nvml.TOPOLOGY_HOSTBRIDGE,
		topology.NODE: nvml.TOPOLOGY_NODE, topology.SYS: nvml.TOPOLOGY_SYSTEM,
	}[class]
}

// The node is its own sysfs.

func (n *fakeNode) find(address device.PCIAddress) (int, error) {
	for i, slot := range inOrder(n.machine.N()) {
		if addressAt(slot) == address {
			return i, nil
		}
	}
	return 0, errFake
}

// NUMANode implements locator.
func (n *fakeNode) NUMANode(address device.PCIAddress) (int, error) {
	i, err := n.find(address)
	if err == nil && n.machine.GPUs[i].NUMA == topology.NoNUMA {
		err = errFake
	}
	if err != nil {
		return 0, err
	}
	return n.machine.GPUs[i].NUMA, nil
}

// PCIeRoot implements locator.
func (n *fakeNode) PCIeRoot(address device.PCIAddress) (string, error) {
	_, err := n.find(address)
	return "pci" + string(address)[:7], err
}

// NearestNIC implements locator.
func (n *fakeNode) NearestNIC(address device.PCIAddress) (string, error) {
	i, err := n.find(address)
	if err != nil {
		return "", err
	}
	return n.machine.GPUs[i].NearestNIC, nil
}

// Class implements locator.
func (n *fakeNode) Class(a, b device.PCIAddress) (topology.PCIe, error) {
	i, errA := n.find(a)
	j, errB := n.find(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	return n.machine.PCIe[i][j], nil
}

// discover runs a discovery that must succeed.
func (n *fakeNode) discover() *device.Snapshot {
	n.t.Helper()
	snapshot, err := newSource(n, n).Discover(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return snapshot
}
