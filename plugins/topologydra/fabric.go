// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"errors"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// fabric is what the devices of one pool say about the links between GPUs. It is
// immutable and lives as long as the pool.
type fabric struct {
	class *quality.Class
	// position of each of the pool's devices on the machine, or
	// slicecodec.NoPosition.
	position []int
	// device at each position, or -1.
	device []int
	// present are the positions with a device.
	present topology.Mask
	// total capacity by position.
	total []placement.Capacity
	// names of the capacities.
	names capacityNames
	// unplannable says why there is no class; a metric label.
	unplannable string
}

// Why a pool has no fabric.
const (
	unplannableUnmapped = "pool_has_no_topology"
	unplannableDecode   = "pool_topology_invalid"
	unplannableNoGPUs   = "pool_has_no_gpus"
)

// capacityNames are the device capacities that the planner reckons with.
type capacityNames struct {
	memory, cores, slots resourceapi.QualifiedName
}

// fabricReader decodes pools.
type fabricReader struct {
	args    *api.TopologyDynamicResourcesArgs
	options Options
	classes *quality.Cache
	planner *placement.Planner
}

// of returns the pool's fabric, decoded once.
func (f *fabricReader) of(ctx context.Context, pool *kube.Pool) *fabric {
	decoded, ok := pool.Derive(func() any { return f.decode(ctx, pool) }).(*fabric)
	if !ok {
		return &fabric{unplannable: unplannableDecode}
	}
	return decoded
}

// decode reads the attributes. What is wrong with them is logged here, once for
// each version of the pool.
func (f *fabricReader) decode(ctx context.Context, pool *kube.Pool) *fabric {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "driver", pool.Driver, "pool", pool.Name)
	mapping := f.args.MappingFor(pool.Driver)
	if !f.plannable(pool, &mapping) {
		return &fabric{unplannable: unplannableUnmapped}
	}
	devices := make([]slicecodec.Device, len(pool.Devices))
	for i := range pool.Devices {
		devices[i] = slicecodec.Device{Name: pool.Devices[i].Name, Attributes: pool.Devices[i].Attributes}
	}
	decoded, err := slicecodec.Decode(pool.Name, devices, mapping)
	if errors.Is(err, slicecodec.ErrNoGPUs) {
		return &fabric{unplannable: unplannableNoGPUs}
	}
	if err != nil {
		logger.Error(err, "Topology attributes are unreadable, devices are allocated without planning")
		return &fabric{unplannable: unplannableDecode}
	}
	if len(decoded.Warnings) > 0 {
		logger.Info("Topology attributes contradict each other, the worse one counts", "warnings", decoded.Warnings)
	}
	class, err := f.classes.Get(decoded.Machine)
	if err != nil {
		logger.Error(err, "Topology is not plannable, devices are allocated without planning")
		return &fabric{unplannable: unplannableDecode}
	}
	n := decoded.Machine.N()
	fab := &fabric{
		class: class, position: decoded.Positions, device: make([]int, n), present: decoded.Present,
		total: make([]placement.Capacity, n),
		names: capacityNames{
			memory: resourceapi.QualifiedName(mapping.Capacities.Memory),
			cores:  resourceapi.QualifiedName(mapping.Capacities.Cores),
			slots:  resourceapi.QualifiedName(mapping.Capacities.Slots),
		},
	}
	for i := range fab.device {
		fab.device[i] = -1
	}
	for i, position := range fab.position {
		if position != slicecodec.NoPosition {
			fab.device[position] = i
			fab.total[position] = fab.names.totals(pool.Devices[i].Device)
		}
	}
	f.warm(class) //nolint:contextcheck // what it makes is for every later pod: no one pod's deadline may cut it short
	return fab
}

// warm plans a single GPU on an empty machine, so that the tables which the
// planner makes per class are there before anybody plans within a time limit. For
// the second pool of a class it costs next to nothing.
func (f *fabricReader) warm(class *quality.Class) {
	inventory := placement.WholeGPUs(class, topology.FullMask(class.N()))
	demand := placement.Demand{Requests: []placement.Request{placement.WholeRequest("warm", 1)}}
	// An error would come back when a pod is planned.
	_, _ = f.planner.Plan(context.Background(), inventory, demand)
}

// plannable says whether anything is known about the pool's topology: its driver
// is ours or listed in the arguments, or some device has a standard attribute.
func (f *fabricReader) plannable(pool *kube.Pool, mapping *api.DriverMapping) bool {
	if f.options.PlanEveryPool || pool.Driver == api.DriverName {
		return true
	}
	for i := range f.args.Drivers {
		if f.args.Drivers[i].Driver == pool.Driver {
			return true
		}
	}
	for i := range pool.Devices {
		attributes := pool.Devices[i].Attributes
		for _, name := range []string{mapping.Attributes.PCIeRoot, mapping.Attributes.NUMANode} {
			if _, ok := attributes[resourceapi.QualifiedName(name)]; ok {
				return true
			}
		}
	}
	return false
}

// totals reads the device's capacities.
func (n capacityNames) totals(device *resourceapi.Device) placement.Capacity {
	return n.read(func(name resourceapi.QualifiedName) *resource.Quantity {
		capacity, ok := device.Capacity[name]
		if !ok {
			return nil
		}
		return &capacity.Value
	})
}

// use reads what a request consumes.
func (n capacityNames) use(consumption kube.Consumption) placement.Capacity {
	return n.read(func(name resourceapi.QualifiedName) *resource.Quantity {
		quantity, ok := consumption[name]
		if !ok {
			return nil
		}
		return &quantity
	})
}

// consumed reads what the sharers of a device consume.
func (n capacityNames) consumed(state map[resourceapi.QualifiedName]*resource.Quantity) placement.Capacity {
	return n.read(func(name resourceapi.QualifiedName) *resource.Quantity { return state[name] })
}

// read translates quantities into the planner's units. Memory is in whole MiB:
// what is lost by rounding is decided by the allocator.
func (n capacityNames) read(lookup func(resourceapi.QualifiedName) *resource.Quantity) placement.Capacity {
	value := func(name resourceapi.QualifiedName) int64 {
		if name == "" {
			return 0
		}
		quantity := lookup(name)
		if quantity == nil {
			return 0
		}
		return max(quantity.Value(), 0)
	}
	return placement.Capacity{MemoryMiB: toMiB(value(n.memory)), CoresPercent: value(n.cores), Slots: value(n.slots)}
}

// minus subtracts, not below zero.
func minus(a, b placement.Capacity) placement.Capacity {
	return placement.Capacity{
		MemoryMiB:    max(a.MemoryMiB-b.MemoryMiB, 0),
		CoresPercent: max(a.CoresPercent-b.CoresPercent, 0),
		Slots:        max(a.Slots-b.Slots, 0),
	}
}

// maximum takes the larger amount in each dimension.
func maximum(a, b placement.Capacity) placement.Capacity {
	return placement.Capacity{
		MemoryMiB:    max(a.MemoryMiB, b.MemoryMiB),
		CoresPercent: max(a.CoresPercent, b.CoresPercent),
		Slots:        max(a.Slots, b.Slots),
	}
}

// inventory returns what is left of the pool's machine. GPUs that are tainted for
// everybody are not there; those that a request tolerates are in also.
func (f *fabric) inventory(view *kube.View, pool *kube.Pool, also topology.Mask) placement.Inventory {
	inventory := placement.Inventory{
		Class: f.class, Free: make([]placement.Capacity, len(f.total)), Total: f.total,
	}
	for position, i := range f.device {
		if i < 0 {
			continue
		}
		device := &pool.Devices[i]
		if also.Has(position) || !kube.Tainted(device.Device, nil) {
			inventory.Present = inventory.Present.With(position)
		}
		switch {
		case view.Exclusive(device):
		case view.Idle(device):
			inventory.Free[position] = f.total[position]
			if inventory.Present.Has(position) {
				inventory.Idle = inventory.Idle.With(position)
			}
		default:
			inventory.Free[position] = minus(f.total[position], f.names.consumed(view.Consumed(device)))
		}
	}
	return inventory
}
