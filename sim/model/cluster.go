// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// Spec describes a node.
type Spec struct {
	Name string
	// Model is the GPU model that [Demand].Models speaks about.
	Model string
	// Class has the tables of the node's links.
	Class *quality.Class
	// CPUMilli and HostMiB are what the node has besides GPUs; 0 is no limit.
	CPUMilli, HostMiB int64
}

// Node is a node and what is left of it.
type Node struct {
	Spec
	// Index is the position in Cluster.Nodes.
	Index int
	// Version changes whenever something is taken or given back.
	Version uint64

	free      []placement.Capacity
	total     []placement.Capacity
	idle      topology.Mask
	cpu, host int64
}

// Place is where a pod is: some GPUs of a node.
type Place struct {
	Node int
	GPUs topology.Mask
}

// Cluster is the state of all nodes.
type Cluster struct {
	Nodes []*Node

	gpus      int64
	freeMilli int64
}

// NewCluster makes an empty cluster. Nodes keep their order; names must be unique.
func NewCluster(specs []Spec) (*Cluster, error) {
	c := &Cluster{}
	seen := map[string]bool{}
	for i, spec := range specs {
		if spec.Class == nil {
			return nil, fmt.Errorf("building cluster: node %q has no topology class", spec.Name)
		}
		if seen[spec.Name] {
			return nil, fmt.Errorf("building cluster: two nodes are called %q", spec.Name)
		}
		seen[spec.Name] = true
		n := &Node{Spec: spec, Index: i, idle: topology.FullMask(spec.Class.N()), cpu: spec.CPUMilli, host: spec.HostMiB}
		for range spec.Class.N() {
			n.total = append(n.total, placement.Capacity{MemoryMiB: WholeMilli, CoresPercent: WholeCores})
		}
		n.free = slices.Clone(n.total)
		c.Nodes = append(c.Nodes, n)
		c.gpus += int64(spec.Class.N())
	}
	if c.gpus == 0 {
		return nil, fmt.Errorf("building cluster: %d nodes have no GPUs", len(specs))
	}
	c.freeMilli = c.gpus * WholeMilli
	return c, nil
}

// GPUs is the number of GPUs of all nodes.
func (c *Cluster) GPUs() int64 { return c.gpus }

// FreeMilli is what is left of all GPUs, in per mille of one: the scarcer one of
// memory and compute.
func (c *Cluster) FreeMilli() int64 { return c.freeMilli }

// Idle are the GPUs of which nothing is taken.
func (n *Node) Idle() topology.Mask { return n.idle }

// FreeMilli is what is left of GPU g: the scarcer one of memory and compute, in per
// mille.
func (n *Node) FreeMilli(g int) int64 {
	return min(n.free[g].MemoryMiB, n.free[g].CoresPercent*WholeMilli/WholeCores)
}

// FreeCPU returns the CPU that is left, and whether it is limited.
func (n *Node) FreeCPU() (milli int64, limited bool) { return n.cpu, n.CPUMilli > 0 }

// Inventory returns the node as the planner takes it. Callers must not change it.
func (n *Node) Inventory() placement.Inventory {
	return placement.Inventory{
		Class: n.Class, Present: topology.FullMask(n.Class.N()), Idle: n.idle, Free: n.free, Total: n.total,
	}
}

// Admits reports whether host resources and GPU model suit the demand. It says
// nothing about GPUs that are free.
func (n *Node) Admits(d Demand) bool {
	return (n.CPUMilli == 0 || d.CPUMilli <= n.cpu) && (n.HostMiB == 0 || d.HostMiB <= n.host) &&
		(d.GPUs == 0 || d.admits(n.Model))
}

// Suits reports whether an empty node could take the demand.
func (n *Node) Suits(d Demand) bool {
	return (n.CPUMilli == 0 || d.CPUMilli <= n.CPUMilli) && (n.HostMiB == 0 || d.HostMiB <= n.HostMiB) &&
		d.GPUs <= n.Class.N() && (d.GPUs == 0 || d.admits(n.Model))
}

// Fitting returns the GPUs of which each has room for one share of the demand.
func (n *Node) Fitting(d Demand) topology.Mask {
	if d.Whole() {
		return n.idle
	}
	var out topology.Mask
	for g := range n.free {
		if n.free[g].MemoryMiB >= d.MemoryMilli && n.free[g].CoresPercent >= d.CoresPercent {
			out = out.With(g)
		}
	}
	return out
}

// Take gives GPUs to a pod, or says why they cannot be given.
func (c *Cluster) Take(d Demand, p Place) error {
	if p.Node < 0 || p.Node >= len(c.Nodes) {
		return fmt.Errorf("taking GPUs: there is no node %d", p.Node)
	}
	n := c.Nodes[p.Node]
	switch {
	case !n.Admits(d):
		return fmt.Errorf("taking GPUs %s of node %q: CPU, memory or model do not suit", p.GPUs, n.Name)
	case p.GPUs.Count() != d.GPUs:
		return fmt.Errorf("taking GPUs %s of node %q: the demand is for %d", p.GPUs, n.Name, d.GPUs)
	case !p.GPUs.SubsetOf(n.Fitting(d)):
		return fmt.Errorf("taking GPUs %s of node %q: only %s have room", p.GPUs, n.Name, n.Fitting(d))
	}
	c.apply(d, p, -1)
	return nil
}

// Release undoes a Take with the same arguments.
func (c *Cluster) Release(d Demand, p Place) { c.apply(d, p, 1) }

// apply adds sign times the demand to what is left.
func (c *Cluster) apply(d Demand, p Place, sign int64) {
	n, use := c.Nodes[p.Node], d.use()
	n.Version++
	n.cpu += sign * d.CPUMilli
	n.host += sign * d.HostMiB
	for g := range p.GPUs.All() {
		c.freeMilli -= n.FreeMilli(g)
		n.free[g].MemoryMiB += sign * use.MemoryMiB
		n.free[g].CoresPercent += sign * use.CoresPercent
		c.freeMilli += n.FreeMilli(g)
		if n.free[g] == n.total[g] {
			n.idle = n.idle.With(g)
		} else {
			n.idle = n.idle.Without(g)
		}
	}
}

// Held is a pod and its place.
type Held struct {
	Demand Demand
	Place  Place
}

// remainder is what is left of a node.
type remainder struct {
	gpus      []placement.Capacity
	cpu, host int64
}

// Check recomputes what is left from all pods that hold something, and reports the
// first difference or any part of a node that is given away twice.
func (c *Cluster) Check(held []Held) error {
	want := make([]remainder, len(c.Nodes))
	for i, n := range c.Nodes {
		want[i] = remainder{slices.Clone(n.total), n.CPUMilli, n.HostMiB}
	}
	for _, h := range held {
		w, use := &want[h.Place.Node], h.Demand.use()
		w.cpu -= h.Demand.CPUMilli
		w.host -= h.Demand.HostMiB
		for g := range h.Place.GPUs.All() {
			w.gpus[g].MemoryMiB -= use.MemoryMiB
			w.gpus[g].CoresPercent -= use.CoresPercent
			if w.gpus[g].MemoryMiB < 0 || w.gpus[g].CoresPercent < 0 {
				return fmt.Errorf("checking capacity: GPU %d of node %q is given away more than once", g, c.Nodes[h.Place.Node].Name)
			}
		}
	}
	var free int64
	for i, n := range c.Nodes {
		if err := n.check(&want[i]); err != nil {
			return fmt.Errorf("checking capacity: %w", err)
		}
		for g := range n.free {
			free += n.FreeMilli(g)
		}
	}
	if free != c.freeMilli {
		return fmt.Errorf("checking capacity: %d per mille of all GPUs are left, want %d", c.freeMilli, free)
	}
	return nil
}

// check compares the node with what should be left.
func (n *Node) check(want *remainder) error {
	if n.cpu != want.cpu || n.host != want.host || n.CPUMilli > 0 && n.cpu < 0 || n.HostMiB > 0 && n.host < 0 {
		return fmt.Errorf("node %q has %d mCPU and %d MiB left, want %d and %d", n.Name, n.cpu, n.host, want.cpu, want.host)
	}
	for g := range n.free {
		if n.free[g] != want.gpus[g] || n.idle.Has(g) != (want.gpus[g] == n.total[g]) {
			return fmt.Errorf("GPU %d of node %q has %+v left (idle: %t), want %+v", g, n.Name, n.free[g], n.idle.Has(g), want.gpus[g])
		}
	}
	return nil
}
