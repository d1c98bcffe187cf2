// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// Device is a GPU or MIG device that is published.
type Device struct {
	// UUID, and Parent, which is that of a MIG device's GPU.
	UUID, Parent string

	// Name in ResourceSlices.
	Name string

	// Index of the GPU, or of the MIG device's GPU, by PCI address.
	Index int

	// Type, Product, PCIAddress and Link are for people; Link is the best kind of
	// link to another GPU of the node, see linkOf.
	Type, Product, PCIAddress, Link string

	// Profile, GPUInstance and ComputeInstance of a MIG device.
	Profile                      string
	GPUInstance, ComputeInstance int

	// TotalBytes of memory, and OfferedBytes of them to claims; 0 when unknown.
	TotalBytes, OfferedBytes int64
}

// Kinds of links, the best first.
const (
	linkNVSwitch = "NVSwitch"
	linkNVLink   = "NVLink"
	linkPCIe     = "PCIe"
	linkSystem   = "system" // only through the processor
	linkNone     = "none"   // there is no other GPU
)

// Devices describes what is published of a snapshot, in the order of slices.
func Devices(snapshot *device.Snapshot, resources *resourceslice.DriverResources) []Device {
	published := map[string]*resourceapi.Device{}
	for _, pool := range resources.Pools {
		for s := range pool.Slices {
			for d := range pool.Slices[s].Devices {
				device := &pool.Slices[s].Devices[d]
				if uuid := device.Attributes[api.AttrUUID].StringValue; uuid != nil {
					published[*uuid] = device
				}
			}
		}
	}
	var out []Device
	add := func(one Device, reserved int64) {
		offer := published[one.UUID]
		if offer == nil {
			return
		}
		one.Name = offer.Name
		one.OfferedBytes = max(0, one.TotalBytes-reserved)
		if memory, ok := offer.Capacity[api.CapacityMemory]; ok {
			one.OfferedBytes = memory.Value.Value()
		}
		out = append(out, one)
	}
	for i := range snapshot.GPUs {
		gpu := &snapshot.GPUs[i]
		whole := Device{
			UUID: string(gpu.UUID), Index: i, Type: api.DeviceTypeGPU, Product: gpu.ProductName, PCIAddress: string(gpu.PCIAddress),
			Link: linkOf(snapshot.Machine, i), TotalBytes: int64(gpu.Memory),
		}
		add(whole, int64(gpu.MemoryReserved))
		for k := range gpu.MIGDevices {
			mig, part := &gpu.MIGDevices[k], whole
			part.UUID, part.Parent, part.Type, part.Link = string(mig.UUID), whole.UUID, api.DeviceTypeMIG, linkNone
			part.Profile, part.GPUInstance, part.ComputeInstance = mig.Profile, mig.GPUInstance, mig.ComputeInstance
			part.TotalBytes = int64(mig.Memory)
			add(part, 0)
		}
	}
	return out
}

// linkOf returns the best kind of link that the GPU has to any other.
func linkOf(machine *topology.Machine, gpu int) string {
	best := linkNone
	for other := range machine.GPUs {
		switch {
		case other == gpu:
		case machine.NVLinks[gpu][other] > 0 && machine.Switched:
			return linkNVSwitch
		case machine.NVLinks[gpu][other] > 0:
			best = linkNVLink
		case best == linkNVLink:
		case machine.PCIe[gpu][other] == topology.PIX || machine.PCIe[gpu][other] == topology.PXB:
			best = linkPCIe
		case best == linkNone:
			best = linkSystem
		}
	}
	return best
}

// send tells what the device is.
func (d *Device) send(out sink, node string) {
	out.send(gpuInfo, 1, d.UUID, node, d.Name, strconv.Itoa(d.Index), d.Type, d.Parent, d.Product, d.PCIAddress, d.Link)
	if d.TotalBytes > 0 {
		out.send(gpuMemoryTotal, float64(d.TotalBytes), d.UUID)
		out.send(gpuMemoryReserved, float64(max(0, d.TotalBytes-d.OfferedBytes)), d.UUID)
	}
}
