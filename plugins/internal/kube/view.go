// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// View is what the in-tree allocator of one scheduling cycle was made with.
// It is read-only but for the arrangement of its nodes' pools.
type View struct {
	// Allocated is the allocated state, including allocations in flight.
	Allocated structured.AllocatedState

	index *sliceIndex
}

// Node returns the devices of one node, nil if no slice belongs to it.
func (v *View) Node(name string) *Node { return v.index.nodes[name] }

// HasShared says whether there are slices that belong to no single node. The
// result of an allocation on a node may then depend on more than that node.
func (v *View) HasShared() bool { return v.index.shared }

// Slices returns what the allocator was made with.
func (v *View) Slices() []*resourceapi.ResourceSlice { return v.index.handedOut }

// Node is the part of a view that belongs to one node. The same pointer stays
// in use, over cycles, as long as the node's slices stay the same objects, so
// it can be the key of what is derived from them.
type Node struct {
	// Name of the node.
	Name string

	// Pools by driver and name, which is the allocator's order.
	Pools []*Pool

	// slices are the originals, by name, to detect changes.
	slices []*resourceapi.ResourceSlice
	// spread marks, in order of Pools, those with slices elsewhere.
	spread []bool
}

// Spread says whether some pool of the node has slices elsewhere, on which the
// result of an allocation may depend too.
func (n *Node) Spread() bool { return slices.Contains(n.spread, true) }

// poolKey identifies a pool in the cluster.
type poolKey struct{ driver, pool string }

// sliceCopy is a shallow copy that the allocator holds. Only Spec.Devices of
// the copy ever changes.
type sliceCopy struct {
	original *resourceapi.ResourceSlice
	copied   *resourceapi.ResourceSlice
}

// sliceIndex groups the slices of the cluster. It is immutable; a change makes
// a new one that keeps the parts that did not change.
type sliceIndex struct {
	// copies by original, node-local slices only.
	copies map[*resourceapi.ResourceSlice]*sliceCopy
	// originals that are not node-local.
	others map[*resourceapi.ResourceSlice]bool
	// handedOut is what the allocator gets.
	handedOut []*resourceapi.ResourceSlice
	nodes     map[string]*Node
	shared    bool
}

// update returns an index of the slices. The order of the list does not matter:
// the slice tracker returns them in random order.
func (x *sliceIndex) update(list []*resourceapi.ResourceSlice) *sliceIndex {
	if x.matches(list) {
		return x
	}
	next := &sliceIndex{
		copies:    make(map[*resourceapi.ResourceSlice]*sliceCopy, len(list)),
		others:    map[*resourceapi.ResourceSlice]bool{},
		handedOut: make([]*resourceapi.ResourceSlice, 0, len(list)),
	}
	byNode := map[string][]*resourceapi.ResourceSlice{}
	owners := map[poolKey]map[string]bool{}
	for _, slice := range list {
		nodeName := ptr.Deref(slice.Spec.NodeName, "")
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		if owners[key] == nil {
			owners[key] = map[string]bool{}
		}
		owners[key][nodeName] = true
		if nodeName == "" {
			next.others[slice] = true
			next.shared = true
			next.handedOut = append(next.handedOut, slice)
			continue
		}
		copied := x.copyOf(slice)
		next.copies[slice] = copied
		next.handedOut = append(next.handedOut, copied.copied)
		byNode[nodeName] = append(byNode[nodeName], slice)
	}
	next.nodes = make(map[string]*Node, len(byNode))
	for name, group := range byNode {
		next.nodes[name] = x.nodeOf(name, group, next.copies, owners)
	}
	return next
}

// matches says whether the index was made of the same objects.
func (x *sliceIndex) matches(list []*resourceapi.ResourceSlice) bool {
	if x == nil || len(list) != len(x.handedOut) {
		return false
	}
	for _, slice := range list {
		if _, ok := x.copies[slice]; !ok && !x.others[slice] {
			return false
		}
	}
	return true
}

// copyOf reuses the copy of an unchanged slice.
func (x *sliceIndex) copyOf(slice *resourceapi.ResourceSlice) *sliceCopy {
	if x != nil {
		if known, ok := x.copies[slice]; ok {
			return known
		}
	}
	copied := *slice
	return &sliceCopy{original: slice, copied: &copied}
}

// nodeOf reuses the node if nothing that it is made of changed.
func (x *sliceIndex) nodeOf(name string, group []*resourceapi.ResourceSlice, copies map[*resourceapi.ResourceSlice]*sliceCopy, owners map[poolKey]map[string]bool) *Node {
	slices.SortFunc(group, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	node := &Node{Name: name, slices: group}
	byPool := map[poolKey][]*sliceCopy{}
	for _, slice := range group {
		key := poolKey{slice.Spec.Driver, slice.Spec.Pool.Name}
		byPool[key] = append(byPool[key], copies[slice])
	}
	keys := slices.SortedFunc(maps.Keys(byPool), func(a, b poolKey) int {
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool))
	})
	for _, key := range keys {
		node.spread = append(node.spread, len(owners[key]) > 1)
	}
	if x != nil {
		if known := x.nodes[name]; known != nil && slices.Equal(known.slices, group) && slices.Equal(known.spread, node.spread) {
			return known
		}
	}
	for i, key := range keys {
		node.Pools = append(node.Pools, newPool(name, key, byPool[key], node.spread[i]))
	}
	return node
}
