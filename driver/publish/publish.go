// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/driver/device"
)

// MaxAttributesAndCapacities is what a device of ours may have at most. The API
// allows 32; the rest is kept free for later releases.
const MaxAttributesAndCapacities = 28

// Options are the choices of whoever runs the node.
type Options struct {
	// NodeName names the pool.
	NodeName string

	// RequireCores makes every claim take at least 1 percent of compute, and all
	// of it unless it says otherwise.
	RequireCores bool

	// MinMemory is the least memory that a claim takes; rounded up to 1Mi. 0
	// means 1Mi.
	MinMemory device.Bytes

	// MaxSharers limits how many claims share a GPU; 0 is no limit.
	MaxSharers int

	// WholeOnly publishes GPUs without capacities, for one claim at a time: claims
	// for a part of a GPU then go elsewhere.
	WholeOnly bool

	// MemoryReserve is kept free on every GPU, on top of what the kernel driver
	// reserves.
	MemoryReserve device.Bytes

	// Taints of a device in a stable order, at most 16 and of each key one; parent
	// is "" for a GPU and the GPU's UUID for a MIG device. Nil is none.
	Taints func(uuid, parent device.UUID) []resourceapi.DeviceTaint
}

// Validate reports the first option that makes no sense.
func (o *Options) Validate() error {
	switch {
	case o.NodeName == "":
		return fmt.Errorf("checking publishing options: the node name is missing")
	case o.MinMemory < 0:
		return fmt.Errorf("checking publishing options: minimum memory %d is negative", o.MinMemory)
	case o.MaxSharers < 0:
		return fmt.Errorf("checking publishing options: maximum number of sharers %d is negative", o.MaxSharers)
	case o.MemoryReserve < 0:
		return fmt.Errorf("checking publishing options: memory reserve %d is negative", o.MemoryReserve)
	default:
		return nil
	}
}

// Published is what a node offers.
type Published struct {
	// Resources is what the ResourceSlice controller wants.
	Resources resourceslice.DriverResources

	// Warnings tell what was left out, in order of device.
	Warnings []string
}

// Build describes the snapshot as ResourceSlices. The snapshot must be valid.
func Build(snapshot *device.Snapshot, options Options) (*Published, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if err := snapshot.Validate(); err != nil {
		return nil, err
	}
	b := &builder{snapshot: snapshot, options: options, names: deviceNames(snapshot)}
	if len(snapshot.GPUs) > 0 {
		topologyAttributes, err := slicecodec.Encode(snapshot.Machine)
		if err != nil {
			return nil, err
		}
		b.topology = topologyAttributes
	}
	for i := range snapshot.GPUs {
		b.addGPU(i)
	}
	for i := range b.devices {
		d := &b.devices[i]
		if n := len(d.Attributes) + len(d.Capacity); n > MaxAttributesAndCapacities {
			return nil, fmt.Errorf("describing device %q: %d attributes and capacities are more than %d",
				d.Name, n, MaxAttributesAndCapacities)
		}
	}
	return &Published{
		Resources: resourceslice.DriverResources{
			Pools: map[string]resourceslice.Pool{options.NodeName: {Slices: split(b.devices)}},
		},
		Warnings: b.warnings,
	}, nil
}

// split distributes devices over slices. An empty pool has one empty slice, so
// that it can be told from one that was not published yet.
func split(devices []resourceapi.Device) []resourceslice.Slice {
	if len(devices) == 0 {
		return []resourceslice.Slice{{}}
	}
	var out []resourceslice.Slice
	for chunk := range slices.Chunk(devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		out = append(out, resourceslice.Slice{Devices: chunk})
	}
	return out
}

// builder collects the devices of one node.
type builder struct {
	snapshot *device.Snapshot
	options  Options
	names    map[device.UUID]string
	topology []slicecodec.Attributes // by GPU
	devices  []resourceapi.Device
	warnings []string
}

// addGPU adds the GPU at position i, or its MIG devices.
func (b *builder) addGPU(i int) {
	gpu := &b.snapshot.GPUs[i]
	if gpu.MIGEnabled {
		for k := range gpu.MIGDevices {
			b.devices = append(b.devices, b.migDevice(i, &gpu.MIGDevices[k]))
		}
		return
	}
	name := b.names[gpu.UUID]
	d := resourceapi.Device{Name: name, Attributes: b.gpuAttributes(i, name), Taints: b.taints(gpu.UUID, "")}
	if capacity := b.gpuCapacity(gpu, name); capacity != nil {
		d.AllowMultipleAllocations = new(true)
		d.Capacity = capacity
	}
	b.devices = append(b.devices, d)
}

// taints of a device.
func (b *builder) taints(uuid, parent device.UUID) []resourceapi.DeviceTaint {
	if b.options.Taints == nil {
		return nil
	}
	return b.options.Taints(uuid, parent)
}

// warn keeps a warning about a device.
func (b *builder) warn(name, format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf("device %q: ", name)+fmt.Sprintf(format, args...))
}
