// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// Obstacle says why a pool must be left as it is. Its text is low-cardinality
// and serves as a metric label.
type Obstacle string

const (
	// NoObstacle means that the pool may be rearranged.
	NoObstacle Obstacle = ""
	// ObstacleSpread: the pool has slices of other nodes or of no node.
	ObstacleSpread Obstacle = "pool_spans_nodes"
	// ObstacleIncomplete: the driver is replacing the pool's slices.
	ObstacleIncomplete Obstacle = "pool_incomplete"
	// ObstacleInvalid: two devices have the same name.
	ObstacleInvalid Obstacle = "pool_invalid"
	// ObstacleSlices: the slices differ in what results depend on, so that no
	// device may move between them.
	ObstacleSlices Obstacle = "pool_slices_differ"
	// ObstacleCounters: devices consume shared counters.
	ObstacleCounters Obstacle = "pool_has_counters"
	// ObstacleBinding: devices have binding conditions.
	ObstacleBinding Obstacle = "pool_has_binding_conditions"
)

// Pool is the part of a resource pool that belongs to one node.
type Pool struct {
	// Driver and Name identify the pool.
	Driver, Name string
	// NodeName is the node.
	NodeName string
	// Devices of the newest generation, in the allocator's order: slices by
	// name, then as published.
	Devices []Device
	// Order says why the devices cannot be put into another order.
	Order Obstacle
	// Hide says why devices cannot be hidden.
	Hide Obstacle

	// slices that hold devices, of the newest generation, by name.
	slices []*sliceCopy

	// matches caches what Matcher computed, by request.
	matchMutex sync.Mutex
	matches    map[RequestKey]*Match

	deriveOnce sync.Once
	derived    any
}

// Derive returns what make returned when it was first called for this pool. It
// ties to the life of the pool what another package computes from its devices;
// all calls must pass an equivalent function.
func (p *Pool) Derive(make func() any) any {
	p.deriveOnce.Do(func() { p.derived = make() })
	return p.derived
}

// Device is one device of a pool.
type Device struct {
	*resourceapi.Device
	// ID as the allocated state knows it.
	ID structured.DeviceID
	// slice is the position among the pool's slices.
	slice int
}

// Shareable says whether several claims may hold the device.
func (d *Device) Shareable() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

// newPool makes a pool of the node's slices, which are sorted by name.
func newPool(nodeName string, key poolKey, copies []*sliceCopy, spread bool) *Pool {
	pool := &Pool{Driver: key.driver, Name: key.pool, NodeName: nodeName, matches: map[RequestKey]*Match{}}
	newest, declared := copies[0].original.Spec.Pool.Generation, int64(0)
	for _, c := range copies {
		newest = max(newest, c.original.Spec.Pool.Generation)
	}
	count := int64(0)
	hasCounters := false
	for _, c := range copies {
		spec := &c.original.Spec
		if spec.Pool.Generation != newest {
			continue
		}
		count++
		declared = spec.Pool.ResourceSliceCount
		if len(spec.SharedCounters) > 0 {
			hasCounters = true
			continue
		}
		for i := range spec.Devices {
			pool.Devices = append(pool.Devices, Device{
				Device: &spec.Devices[i],
				ID:     structured.MakeDeviceID(key.driver, key.pool, spec.Devices[i].Name),
				slice:  len(pool.slices),
			})
		}
		pool.slices = append(pool.slices, c)
	}
	pool.Order = pool.orderObstacle(spread, count != declared)
	pool.Hide = pool.hideObstacle(hasCounters)
	return pool
}

// orderObstacle looks for what forbids another order.
func (p *Pool) orderObstacle(spread, incomplete bool) Obstacle {
	switch {
	case spread:
		return ObstacleSpread
	case incomplete, len(p.slices) == 0:
		return ObstacleIncomplete
	}
	names := make(map[string]bool, len(p.Devices))
	for i := range p.Devices {
		if names[p.Devices[i].Name] {
			return ObstacleInvalid
		}
		names[p.Devices[i].Name] = true
	}
	first := &p.slices[0].original.Spec
	for _, c := range p.slices {
		spec := &c.original.Spec
		switch {
		case spec.Pool.ResourceSliceCount != first.Pool.ResourceSliceCount:
			return ObstacleIncomplete
		case !slices.Equal(spec.SkipNodeOperations, first.SkipNodeOperations),
			ptr.Deref(spec.PerDeviceNodeSelection, false),
			ptr.Deref(spec.PartitionTypeAttribute, "") != ptr.Deref(first.PartitionTypeAttribute, ""):
			return ObstacleSlices
		}
	}
	return NoObstacle
}

// hideObstacle looks for what forbids hiding devices. Counters that allocated
// devices consume are found through the devices in the slices, and so are
// compatibility groups.
func (p *Pool) hideObstacle(hasCounters bool) Obstacle {
	if p.Order != NoObstacle {
		return p.Order
	}
	if hasCounters {
		return ObstacleCounters
	}
	for i := range p.Devices {
		switch {
		case len(p.Devices[i].ConsumesCounters) > 0:
			return ObstacleCounters
		case len(p.Devices[i].BindingConditions) > 0:
			return ObstacleBinding
		}
	}
	return NoObstacle
}

// Arrange makes the allocator look at the chosen devices first, in the given
// order. chosen are distinct indices into Devices. With hide, all other devices
// disappear; otherwise they follow in their old order.
//
// It must not be called when Order, or Hide if hide is set, names an obstacle;
// it then does nothing and returns false.
func (p *Pool) Arrange(chosen []int, hide bool) bool {
	if p.Order != NoObstacle || hide && p.Hide != NoObstacle {
		return false
	}
	moved := make([]bool, len(p.Devices))
	front := make([]resourceapi.Device, 0, len(p.Devices))
	for _, i := range chosen {
		front = append(front, *p.Devices[i].Device)
		moved[i] = true
	}
	next := 0
	for s, c := range p.slices {
		devices := front
		if s > 0 {
			devices = nil
		}
		for range c.original.Spec.Devices {
			if !hide && !moved[next] {
				devices = append(devices, *p.Devices[next].Device)
			}
			next++
		}
		c.copied.Spec.Devices = devices
	}
	return true
}

// Restore puts the published order back.
func (p *Pool) Restore() {
	for _, c := range p.slices {
		c.copied.Spec.Devices = c.original.Spec.Devices
	}
}

// Restore puts all pools of the node back. It works on a nil node.
func (n *Node) Restore() {
	if n == nil {
		return
	}
	for _, pool := range n.Pools {
		if pool.Order == NoObstacle {
			pool.Restore()
		}
	}
}
