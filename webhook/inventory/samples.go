// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/topodra/topodra/api"
)

// everything selects all objects.
var everything = labels.Everything()

// samples are devices as our driver publishes them, so that classes are recognised before the first node is up.
func samples() []cel.Device {
	str := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	num := func(value int64) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{IntValue: &value}
	}
	common := func(kind string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		version := resourceapi.DeviceAttribute{VersionValue: new("9.0.0")}
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			api.AttrType: str(kind), api.AttrUUID: str("GPU-00000000-0000-0000-0000-000000000000"), api.AttrIndex: num(0), api.AttrMinor: num(0),
			api.AttrProductName: str("NVIDIA H100 80GB HBM3"), api.AttrBrand: str("NVIDIA"), api.AttrArchitecture: str("Hopper"),
			api.AttrCUDAComputeCapability: version, api.AttrDriverVersion: version, api.AttrCUDADriverVersion: version,
			api.AttrPCIBusID: str("0000:07:00.0"), api.AttrPCIeRoot: str("pci0000:00"), api.AttrNUMANode: num(0),
		}
	}
	memory := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.CapacityMemory: {Value: resource.MustParse("80Gi")}}
	gpu := cel.Device{Driver: api.DriverName, AllowMultipleAllocations: new(true), Attributes: common(api.DeviceTypeGPU), Capacity: memory}
	mig := cel.Device{Driver: api.DriverName, AllowMultipleAllocations: new(false), Attributes: common(api.DeviceTypeMIG), Capacity: memory}
	mig.Attributes[api.AttrParentUUID], mig.Attributes[api.AttrProfile] = str("GPU-00000000-0000-0000-0000-000000000000"), str("1g.10gb")
	return []cel.Device{gpu, mig}
}
