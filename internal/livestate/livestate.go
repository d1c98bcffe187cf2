// SPDX-License-Identifier: Apache-2.0

package livestate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

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
	// Total is what the GPU has; Free is what no claim holds. Neither is ever negative.
	Total, Free Capacity
	// Holders are the claims on this GPU, by namespace and name.
	Holders []Holder
}

// Capacity is an amount of a GPU.
type Capacity struct {
	MemoryMiB    int64 // mebibytes
	CoresPercent int64 // percent of the GPU's multiprocessors
}

// Holder is a claim's hold on one GPU.
type Holder struct {
	Namespace, Claim string
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
	p.placeParts(n.Machine.N())
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

// placeParts remembers the parents of MIG devices, whose index attribute is that of the parent.
func (p *pool) placeParts(gpus int) {
	for i := range p.devices {
		d := &p.devices[i]
		if isGPU(d) {
			continue
		}
		if index := d.Attributes[api.AttrIndex].IntValue; index != nil && *index >= 0 && *index < int64(gpus) {
			p.placed[d.Name] = int(*index)
		}
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
