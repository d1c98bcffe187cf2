// SPDX-License-Identifier: Apache-2.0

package publish

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/device"
)

// allCores is the compute of a whole GPU, in percent.
const allCores = 100

// capacities by name.
type capacities = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity

// gpuCapacity returns what claims may share of a GPU; nil when it is to be taken
// whole, or cannot be shared because its memory is not known.
func (b *builder) gpuCapacity(gpu *device.GPU, name string) capacities {
	if b.options.WholeOnly {
		return nil
	}
	if gpu.Memory <= 0 {
		b.warn(name, "its memory is not known: publishing it without capacities, for one claim at a time")
		return nil
	}
	usable := (gpu.Memory - gpu.MemoryReserved - b.options.MemoryReserve) / device.MiB * device.MiB
	if usable < device.MiB {
		b.warn(name, "of %d bytes of memory, reserves leave less than 1Mi: publishing it without capacities, for one claim at a time", gpu.Memory)
		return nil
	}
	out := capacities{
		api.CapacityMemory: memoryCapacity(usable, b.options.MinMemory),
		api.CapacityCores:  coresCapacity(b.options.RequireCores),
	}
	if b.options.MaxSharers > 0 {
		out[api.CapacitySlots] = slotsCapacity(b.options.MaxSharers)
	}
	return out
}

// memoryCapacity lets claims take usable bytes in steps of 1Mi, all by default.
// Both the value and the least request are multiples of the step, which the API
// server demands. Where not even one step fits above the least request, only the
// whole is valid.
func memoryCapacity(usable, least device.Bytes) resourceapi.DeviceCapacity {
	least = max(device.MiB, (least+device.MiB-1)/device.MiB*device.MiB)
	policy := &resourceapi.CapacityRequestPolicy{Default: binary(usable)}
	if least >= usable {
		policy.ValidValues = []resource.Quantity{*binary(usable)}
	} else {
		policy.ValidRange = &resourceapi.CapacityRequestPolicyRange{
			Min: binary(least), Max: binary(usable), Step: binary(device.MiB),
		}
	}
	return resourceapi.DeviceCapacity{Value: *binary(usable), RequestPolicy: policy}
}

// coresCapacity lets claims take compute by the percent, none by default unless
// every claim has to take some.
func coresCapacity(required bool) resourceapi.DeviceCapacity {
	least, standard := int64(0), int64(0)
	if required {
		least, standard = 1, allCores
	}
	return resourceapi.DeviceCapacity{
		Value: *decimal(allCores),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    decimal(standard),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: decimal(least), Max: decimal(allCores), Step: decimal(1)},
		},
	}
}

// slotsCapacity gives each claim exactly one slot.
func slotsCapacity(sharers int) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{
		Value:         *decimal(int64(sharers)),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: decimal(1), ValidValues: []resource.Quantity{*decimal(1)}},
	}
}

// binary formats bytes as Ki, Mi and so on.
func binary(value device.Bytes) *resource.Quantity {
	return resource.NewQuantity(int64(value), resource.BinarySI)
}

// decimal formats a plain number.
func decimal(value int64) *resource.Quantity {
	return resource.NewQuantity(value, resource.DecimalSI)
}
