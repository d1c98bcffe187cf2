// SPDX-License-Identifier: Apache-2.0

package livestate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/topology"
)

// Node is one node with GPUs.
type Node struct {
	// Name is the node's name.
	Name string
	// Machine is the node's GPUs with their links, as far as they are published. When Present is empty its links mean nothing.
	Machine *topology.Machine
	// Present are the GPUs of Machine that are published as whole devices.
	Present topology.Mask
	// GPUs holds one entry per GPU of Machine, by position.
	GPUs []GPU
	// Simulated tells that the driver says these GPUs exist only in a recorded machine.
	Simulated bool
	// Warnings are what had to be guessed or left out.
	Warnings []string
	// Pool and Generation name the version of the node's pool that is shown.
	Pool       string
	Generation int64
	// Published are the devices as they are in the slices, by name. Nobody may write to them.
	Published []resourceapi.Device

	placed map[string]int // position by device name
}

// Position returns the GPU that a published device is, or is a part of.
func (n *Node) Position(device string) (int, bool) {
	at, ok := n.placed[device]
	return at, ok
}

// GPU is one GPU and who holds it.
type GPU struct {
	// Position is the GPU's place in order of PCI address.
	Position int
	// Device is the name in the ResourceSlice; empty for a GPU that is not published as a whole.
	Device string
	// UUID and Product are what the driver says, if it does.
	UUID, Product string
	// Taints are the effects and keys of the device's taints, such as "NoSchedule:gpu.topodra.dev/unhealthy".
	Taints []string
	// Blocked tells that a taint keeps claims away that do not tolerate it.
	Blocked bool
	// Parts are the MIG devices that are published instead of the GPU, by name.
	Parts []Part
	// Total is what the GPU has; Free is what no claim holds. Neither is ever negative.
	Total, Free Capacity
	// Holders are the claims on this GPU, by namespace and name.
	Holders []Holder
}

// Capacity is an amount of a GPU.
type Capacity struct {
	MemoryMiB    int64 // mebibytes
	CoresPercent int64 // percent of the GPU's multiprocessors
	Slots        int64 // claims that can share the GPU; 0 in a total means any number
}

// Part is a MIG device.
type Part struct {
	// Device is the name in the ResourceSlice, Profile is such as "1g.10gb".
	Device, Profile string
	// MemoryMiB is the part's memory; 0 when it is not published.
	MemoryMiB int64
}

// Holder is a claim's hold on one GPU.
type Holder struct {
	Namespace, Claim string
	// UID is the claim's.
	UID types.UID
	// Request is the name of the request that the result is for.
	Request string
	// AllocatedAt is when the claim was allocated, to the second; zero when the scheduler did not say.
	AllocatedAt time.Time
	// Pods are the names of the pods that the claim is reserved for.
	Pods []string
	// Uses is what the claim took of this GPU.
	Uses Capacity
	// Whole tells that nobody else can use the GPU, whatever Uses says.
	Whole bool
	// Admin tells that the claim only looks on: it takes nothing away from others.
	Admin bool
	// Device is the MIG device that is held instead of the GPU, which then is not published itself; empty for the GPU.
	Device string
}

// Idle tells that the GPU is published and no claim takes anything of it.
func (g GPU) Idle() bool {
	return g.Device != "" && !slices.ContainsFunc(g.Holders, func(h Holder) bool { return !h.Admin })
}

// Idle returns the GPUs that nobody holds anything of.
func (n *Node) Idle() topology.Mask {
	var idle topology.Mask
	for _, g := range n.GPUs {
		if g.Idle() {
			idle = idle.With(g.Position)
		}
	}
	return idle
}

// Find returns the node's position of a device, or false.
func (n *Node) Find(device string) (int, bool) {
	for _, g := range n.GPUs {
		if g.Device == device && device != "" {
			return g.Position, true
		}
	}
	return 0, false
}

// Build puts slices and claims together. Slices of other drivers are left out, so are pools that belong to no single
// node. The result is ordered by node name. The error names the node whose attributes cannot be read.
func Build(resourceSlices []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) ([]Node, error) {
	pools := collectPools(resourceSlices)
	nodes := make([]Node, 0, len(pools))
	for _, p := range pools {
		node, err := p.node()
		if err != nil {
			return nil, fmt.Errorf("reading the devices of node %q: %w", p.nodeName, err)
		}
		nodes = append(nodes, node)
	}
	byPool := make(map[string]int, len(pools))
	for i, p := range pools {
		byPool[p.name] = i
	}
	for i := range claims {
		hold(&claims[i], func(name string) (*pool, *Node) {
			at, ok := byPool[name]
			if !ok {
				return nil, nil
			}
			return pools[at], &nodes[at]
		})
	}
	for i := range nodes {
		nodes[i].finish()
	}
	return nodes, nil
}

// pool is one pool of our driver with the devices of its newest generation.
type pool struct {
	name, nodeName string
	generation     int64
	slices, want   int64
	devices        []resourceapi.Device
	// placed is the position by device name, for GPUs and for MIG devices (that of the parent).
	placed map[string]int
}

// collectPools groups the slices of our driver by pool, in the order of node and pool names.
func collectPools(resourceSlices []resourceapi.ResourceSlice) []*pool {
	byName := map[string]*pool{}
	for i := range resourceSlices {
		spec := &resourceSlices[i].Spec
		if spec.Driver != api.DriverName || spec.NodeName == nil {
			continue
		}
		p := byName[spec.Pool.Name]
		if p == nil || spec.Pool.Generation > p.generation {
			p = &pool{name: spec.Pool.Name, nodeName: *spec.NodeName, generation: spec.Pool.Generation, want: spec.Pool.ResourceSliceCount}
			byName[spec.Pool.Name] = p
		}
		if spec.Pool.Generation == p.generation {
			p.slices++
			p.devices = append(p.devices, spec.Devices...)
		}
	}
	pools := make([]*pool, 0, len(byName))
	for _, p := range byName {
		slices.SortFunc(p.devices, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
		pools = append(pools, p)
	}
	slices.SortFunc(pools, func(a, b *pool) int {
		return cmp.Or(strings.Compare(a.nodeName, b.nodeName), strings.Compare(a.name, b.name))
	})
	return pools
}

// node decodes the pool's devices.
func (p *pool) node() (Node, error) {
	n := Node{Name: p.nodeName}
	var gpus []resourceapi.Device
	var described []slicecodec.Device
	for i := range p.devices {
		if isGPU(&p.devices[i]) {
			gpus = append(gpus, p.devices[i])
			described = append(described, slicecodec.Device{Name: p.devices[i].Name, Attributes: p.devices[i].Attributes})
		}
	}
	decoded, err := slicecodec.Decode(p.nodeName, described, api.OwnMapping())
	switch {
	case errors.Is(err, slicecodec.ErrNoGPUs):
		decoded = p.partsOnly()
		n.Warnings = append(n.Warnings, "no GPU is published as a whole, so the links are not known")
	case err != nil:
		return Node{}, fmt.Errorf("decoding the links: %w", err)
	}
	n.Machine, n.Present = decoded.Machine, decoded.Present
	n.Pool, n.Generation, n.Published = p.name, p.generation, p.devices
	for _, w := range decoded.Warnings {
		n.Warnings = append(n.Warnings, string(w))
	}
	if p.slices != p.want {
		n.Warnings = append(n.Warnings, fmt.Sprintf("pool %q is incomplete: %d of %d slices are there", p.name, p.slices, p.want))
	}
	n.GPUs = make([]GPU, n.Machine.N())
	for i := range n.GPUs {
		n.GPUs[i].Position = i
	}
	p.placed = map[string]int{}
	for i := range gpus {
		at := decoded.Positions[i]
		if at == slicecodec.NoPosition {
			continue
		}
		p.placed[gpus[i].Name] = at
		n.GPUs[at] = describe(&gpus[i], at)
		n.Simulated = n.Simulated || boolAttribute(&gpus[i], api.AttrSimulated)
	}
	p.placeParts(&n)
	n.placed = p.placed
	return n, nil
}

// partsOnly stands for the machine of a pool without whole GPUs: as many GPUs as the parts name, without links.
func (p *pool) partsOnly() *slicecodec.Decoded {
	count := 1
	for i := range p.devices {
		if index := p.devices[i].Attributes[api.AttrIndex].IntValue; index != nil && *index >= 0 && *index < topology.MaxGPUs {
			count = max(count, int(*index)+1)
		}
	}
	return &slicecodec.Decoded{Machine: topology.New(p.nodeName, count)}
}

// placeParts enters MIG devices at their parents, whose index attribute they have.
func (p *pool) placeParts(n *Node) {
	for i := range p.devices {
		d := &p.devices[i]
		if isGPU(d) {
			continue
		}
		index := d.Attributes[api.AttrIndex].IntValue
		if index == nil || *index < 0 || *index >= int64(len(n.GPUs)) {
			continue
		}
		p.placed[d.Name] = int(*index)
		part := Part{Device: d.Name, Profile: stringAttribute(d, api.AttrProfile)}
		if memory, ok := d.Capacity[api.CapacityMemory]; ok {
			part.MemoryMiB = memory.Value.Value() >> 20
		}
		n.GPUs[*index].Parts = append(n.GPUs[*index].Parts, part)
	}
}

func isGPU(d *resourceapi.Device) bool {
	kind := d.Attributes[api.AttrType].StringValue
	return kind == nil || *kind == api.DeviceTypeGPU
}

func describe(d *resourceapi.Device, position int) GPU {
	g := GPU{
		Position: position, Device: d.Name,
		UUID: stringAttribute(d, api.AttrUUID), Product: stringAttribute(d, api.AttrProductName),
		Total: capacityOf(d),
	}
	g.Free = g.Total
	for _, t := range d.Taints {
		g.Taints = append(g.Taints, string(t.Effect)+":"+t.Key)
		g.Blocked = g.Blocked || t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
	}
	return g
}

// capacityOf reads what a device has. A GPU without a cores capacity still has all of its cores.
func capacityOf(d *resourceapi.Device) Capacity {
	c := Capacity{CoresPercent: 100}
	if memory, ok := d.Capacity[api.CapacityMemory]; ok {
		c.MemoryMiB = memory.Value.Value() >> 20
	}
	if cores, ok := d.Capacity[api.CapacityCores]; ok {
		c.CoresPercent = cores.Value.Value()
	}
	if slots, ok := d.Capacity[api.CapacitySlots]; ok {
		c.Slots = slots.Value.Value()
	}
	return c
}

func stringAttribute(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	if v := d.Attributes[name].StringValue; v != nil {
		return *v
	}
	return ""
}

func boolAttribute(d *resourceapi.Device, name resourceapi.QualifiedName) bool {
	v := d.Attributes[name].BoolValue
	return v != nil && *v
}
