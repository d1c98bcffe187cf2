// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
)

// Device is what preparing needs to know of a device.
type Device struct {
	// Name in the ResourceSlice.
	Name string

	// UUID, ParentUUID (of MIG devices), Type and PCIAddress as published;
	// "" when unknown.
	UUID, ParentUUID, Type, PCIAddress string

	// Capacity by name; nil for devices that are taken whole.
	Capacity map[string]int64

	// Shareable says that several claims may have it at once.
	Shareable bool
}

// Inventory knows the devices of the node.
type Inventory interface {
	// Published returns the device that was last published under the name.
	Published(name string) (Device, bool)

	// Present reads the node anew. An error means that nothing is known; a
	// device that is lost is not in the result.
	Present(ctx context.Context) ([]Device, error)
}

// DeviceFrom takes over what a published device says. It is how an Inventory
// makes its answers, for both methods, so that they compare.
func DeviceFrom(published *resourceapi.Device) Device {
	device := Device{
		Name:       published.Name,
		UUID:       stringAttribute(published, api.AttrUUID),
		ParentUUID: stringAttribute(published, api.AttrParentUUID),
		Type:       stringAttribute(published, api.AttrType),
		PCIAddress: stringAttribute(published, api.AttrPCIBusID),
		Shareable:  published.AllowMultipleAllocations != nil && *published.AllowMultipleAllocations,
	}
	for name, capacity := range published.Capacity {
		if device.Capacity == nil {
			device.Capacity = map[string]int64{}
		}
		device.Capacity[string(name)] = capacity.Value.Value()
	}
	return device
}

// stringAttribute returns "" for attributes that are missing or of another type.
func stringAttribute(device *resourceapi.Device, name resourceapi.QualifiedName) string {
	if value := device.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}

// memoryMiB of the whole device in units of 1,048,576 bytes; 0 when unknown.
func (d *Device) memoryMiB() int64 { return d.Capacity[string(api.CapacityMemory)] >> 20 }

// String names the device for messages.
func (d *Device) String() string {
	text := d.Name + " (" + d.UUID
	if d.PCIAddress != "" {
		text += " at " + d.PCIAddress
	}
	return text + ")"
}
