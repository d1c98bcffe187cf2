// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// foundGPU is a GPU while it is being read.
type foundGPU struct {
	reader *gpuReader
	handle nvml.Device
	gpu    device.GPU
	info   topology.GPUInfo
	links  linkEnds
}

// identify reads what a GPU cannot be published without.
func identify(c *caller, index int) (*foundGPU, error) {
	name := "GPU with NVML index " + strconv.Itoa(index)
	handle, err := call(c, "DeviceGetHandleByIndex for "+name, func() (nvml.Device, nvml.Return) { return c.library.DeviceGetHandleByIndex(index) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	uuid, err := call(c, "GetUUID of "+name, handle.GetUUID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	name = fmt.Sprintf("GPU %q", uuid)
	pci, err := call(c, "GetPciInfo of "+name, handle.GetPciInfo)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	address, ok := addressOf(&pci)
	if !ok {
		return nil, fmt.Errorf("%s: its PCI address %q cannot be understood", name, textOf(pci.BusId[:]))
	}
	return &foundGPU{
		reader: &gpuReader{caller: c, name: name},
		handle: handle,
		gpu:    device.GPU{UUID: device.UUID(uuid), PCIAddress: address},
		info:   topology.GPUInfo{NUMA: topology.NoNUMA},
	}, nil
}

// describe reads everything else about the GPU alone.
func (g *foundGPU) describe() {
	r, h, gpu := g.reader, g.handle, &g.gpu
	if minor, ok := optional(r, "", "GetMinorNumber", h.GetMinorNumber); ok {
		gpu.Minor = new(device.Minor(minor))
	}
	if module, ok := optional(r, "nvmlDeviceGetModuleId", "GetModuleId", h.GetModuleId); ok {
		gpu.ModuleID = new(device.ModuleID(module))
	}
	gpu.ProductName, _ = optional(r, "", "GetName", h.GetName)
	if brand, ok := optional(r, "", "GetBrand", h.GetBrand); ok {
		gpu.Brand = brandName(brand)
	}
	if architecture, ok := optional(r, "nvmlDeviceGetArchitecture", "GetArchitecture", h.GetArchitecture); ok {
		gpu.Architecture = architectureName(architecture)
	}
	gpu.ComputeCapability, _ = optional(r, "", "GetCudaComputeCapability", func() (*device.Version, nvml.Return) {
		major, minor, ret := h.GetCudaComputeCapability()
		return &device.Version{Major: major, Minor: minor}, ret
	})
	g.describeMemory()
	g.describeFabric()
	g.describeMIG()
	g.info.PCIeGen, _ = optional(r, "", "GetMaxPcieLinkGeneration", h.GetMaxPcieLinkGeneration)
}

// describeMemory reads the total memory and, where the driver tells, what it keeps
// for itself.
func (g *foundGPU) describeMemory() {
	if memory, ok := optional(g.reader, "nvmlDeviceGetMemoryInfo_v2", "GetMemoryInfo_v2", g.handle.GetMemoryInfo_v2); ok {
		g.gpu.Memory, g.gpu.MemoryReserved = device.Bytes(memory.Total), device.Bytes(memory.Reserved)
		return
	}
	if memory, ok := optional(g.reader, "", "GetMemoryInfo", g.handle.GetMemoryInfo); ok {
		g.gpu.Memory = device.Bytes(memory.Total)
	}
}

// describeFabric reads the place in a fabric that spans nodes. A machine with an
// NVSwitch of its own registers, too, but has no cluster UUID.
func (g *foundGPU) describeFabric() {
	fabric, ok := optional(g.reader, "nvmlDeviceGetGpuFabricInfo", "GetGpuFabricInfo", g.handle.GetGpuFabricInfo)
	if !ok {
		return
	}
	switch fabric.State {
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		switch {
		case nvml.Return(fabric.Status) != nvml.SUCCESS:
			g.reader.warn("its registration with the fabric failed with status %d: leaving the fabric out", fabric.Status)
		case fabric.ClusterUuid != [16]uint8{}:
			g.gpu.Fabric = &device.Fabric{ClusterUUID: fabric.ClusterUuid, CliqueID: fabric.CliqueId}
		}
	case nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		g.reader.warn("its registration with the fabric is not completed (state %d): leaving the fabric out until it is", fabric.State)
	}
}

// locate reads where the GPU sits. Virtual machines often hide it, so what is
// missing is not worth a warning.
func (g *foundGPU) locate(sysfs locator) {
	if node, err := sysfs.NUMANode(g.gpu.PCIAddress); err == nil {
		g.info.NUMA = node
	}
	if root, err := sysfs.PCIeRoot(g.gpu.PCIAddress); err == nil {
		g.gpu.PCIeRoot = root
	}
	if nic, err := sysfs.NearestNIC(g.gpu.PCIAddress); err == nil {
		g.info.NearestNIC = nic
	}
}
