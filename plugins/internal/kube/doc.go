// SPDX-License-Identifier: Apache-2.0

// Package kube is the only place that touches the scheduler's DRA types of one
// Kubernetes minor version: the shared DRA manager, lists of ResourceSlices,
// the allocated state and the structured allocator. Everything above it works
// on the types that this package defines.
//
// It does four things:
//
//   - Overlay stands between the in-tree DynamicResources plugin and the
//     scheduler's DRA manager. While the plugin's PreFilter runs it hands out
//     shallow copies of node-local ResourceSlices and notes the allocated state
//     that the plugin got; at every other time it is transparent.
//   - View, Node, Pool and Device describe, per scheduling cycle, what the
//     in-tree allocator will see, in the order in which it will look at it.
//   - Pool.Arrange changes that order, or hides devices, for the one node that
//     is about to be filtered; Pool.Restore undoes it.
//   - Oracle asks the real allocator, on the same copies, what it would do.
//
// CAVEAT: this relies on an undocumented property of the allocator, which the
// contract tests of this package pin for every Kubernetes patch release: it
// keeps the pointers of the slices it was made with and reads their devices
// again in each call of Allocate, touching for one node only the slices of
// that node and the slices that belong to no single node.
//
// Rules that keep the results legal, each with a test:
//
//   - A device never moves to another pool, and within a pool only between
//     slices that agree in everything that results depend on.
//   - A slice is never dropped, nor its generation or slice count changed.
//   - Devices are hidden only in pools without counters, compatibility groups
//     and binding conditions.
//   - Pools with slices of several nodes, incomplete, outdated or invalid pools,
//     and slices that belong to no single node are never changed.
//
// Concurrency: one scheduling goroutine calls Overlay.Record and
// Overlay.Signalled. After that a Node is used by one goroutine at a time (the
// one that filters it); different nodes may be used in parallel.
//
// Allowed imports: k8s.io/..., api/slicecodec, topology.
package kube
