// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/driver/device"
)

// attributes collects the attributes of one device.
type attributes struct {
	builder *builder
	device  string
	values  slicecodec.Attributes
}

// text sets a string unless it is empty or longer than the API allows.
func (a *attributes) text(name resourceapi.QualifiedName, value string) {
	switch {
	case value == "":
	case len(value) > resourceapi.DeviceAttributeMaxValueLength:
		a.builder.warn(a.device, "leaving out attribute %q: %d bytes are more than %d",
			name, len(value), resourceapi.DeviceAttributeMaxValueLength)
	default:
		a.values[name] = resourceapi.DeviceAttribute{StringValue: &value}
	}
}

// version sets a version unless it is unknown.
func (a *attributes) version(name resourceapi.QualifiedName, value *device.Version) {
	if value != nil {
		a.values[name] = resourceapi.DeviceAttribute{VersionValue: new(value.String())}
	}
}

// number sets an int unless it is unknown.
func number[T ~int](a *attributes, name resourceapi.QualifiedName, value *T) {
	if value != nil {
		a.values[name] = resourceapi.DeviceAttribute{IntValue: new(int64(*value))}
	}
}

// gpuAttributes describes the GPU at position i.
func (b *builder) gpuAttributes(i int, name string) slicecodec.Attributes {
	gpu := &b.snapshot.GPUs[i]
	a := &attributes{builder: b, device: name, values: maps.Clone(b.topology[i])}
	a.common(b.snapshot, gpu)
	a.text(api.AttrType, api.DeviceTypeGPU)
	a.text(api.AttrUUID, string(gpu.UUID))
	number(a, api.AttrMinor, gpu.Minor)
	if gpu.Fabric != nil {
		a.text(api.AttrFabricClique, gpu.Fabric.String())
	}
	return a.values
}

// common sets what a GPU and its MIG devices have in common.
func (a *attributes) common(snapshot *device.Snapshot, gpu *device.GPU) {
	a.text(api.AttrPCIBusID, string(gpu.PCIAddress))
	a.text(api.AttrPCIeRoot, gpu.PCIeRoot)
	number(a, api.AttrModuleID, gpu.ModuleID)
	a.text(api.AttrProductName, gpu.ProductName)
	a.text(api.AttrBrand, gpu.Brand)
	a.text(api.AttrArchitecture, gpu.Architecture)
	a.version(api.AttrCUDAComputeCapability, gpu.ComputeCapability)
	a.version(api.AttrDriverVersion, snapshot.DriverVersion)
	a.version(api.AttrCUDADriverVersion, snapshot.CUDADriverVersion)
	if snapshot.Simulated {
		a.values[api.AttrSimulated] = resourceapi.DeviceAttribute{BoolValue: new(true)}
	}
}

// migDevice describes a MIG device of the GPU at position i.
func (b *builder) migDevice(i int, mig *device.MIGDevice) resourceapi.Device {
	gpu := &b.snapshot.GPUs[i]
	name := b.names[mig.UUID]
	a := &attributes{builder: b, device: name, values: slicecodec.Attributes{}}
	for _, inherited := range []resourceapi.QualifiedName{api.AttrIndex, api.AttrNUMANode, api.AttrPCIeGen, api.AttrNearestNIC} {
		if value, ok := b.topology[i][inherited]; ok {
			a.values[inherited] = value
		}
	}
	a.common(b.snapshot, gpu)
	a.text(api.AttrType, api.DeviceTypeMIG)
	a.text(api.AttrUUID, string(mig.UUID))
	a.text(api.AttrParentUUID, string(gpu.UUID))
	a.text(api.AttrProfile, mig.Profile)
	for name, slices := range map[resourceapi.QualifiedName]int{
		api.AttrGPUSlices: mig.GPUSlices, api.AttrComputeSlices: mig.ComputeSlices, api.AttrMemorySlices: mig.MemorySlices,
	} {
		if slices > 0 {
			number(a, name, &slices)
		}
	}
	d := resourceapi.Device{Name: name, Attributes: a.values, Taints: b.taints(mig.UUID, gpu.UUID)}
	if mig.Memory > 0 {
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			api.CapacityMemory: {Value: *binary(mig.Memory)},
		}
	}
	return d
}
