// SPDX-License-Identifier: Apache-2.0

// Package topologydra is the scheduler plugin TopologyDynamicResources. It takes
// the place of the in-tree plugin DynamicResources, which it embeds, and decides
// which GPUs of a node the in-tree allocator looks at first.
//
// One pod's way through it:
//
//	PreFilter  the in-tree PreFilter runs on an overlay of the DRA manager, which
//	           notes the allocated state and hands out copies of the slices. Then
//	           the pod's claims become a demand.
//	Filter     per node, in parallel: a plan is made, or remembered; the planned
//	           devices are put first (a preference) or all others are hidden (a
//	           guarantee); the in-tree Filter runs; the order is put back.
//	PostFilter adds to the pod's event what the best sets of the cluster are when
//	           a guarantee could not be kept.
//	Reserve    the in-tree Reserve runs and what it reserved is compared with the
//	           plan. A difference is a metric and an event.
//
// Everything else is inherited from the in-tree plugin, which stays the authority
// on what may be allocated. A plan is verified with the real allocator before it
// counts, and remembered together with the verdict.
//
// Invariants:
//
//   - An order never changes whether a pod fits on a node, nor which alternative
//     of a prioritised list it gets.
//   - With policy Required, a node passes Filter only if the allocator was seen
//     to choose a set that satisfies the policy.
//   - Every rejection is UnschedulableAndUnresolvable, as the in-tree plugin's:
//     evicting pods does not free devices.
//   - Errors, such as timeouts, are passed on and never retried.
//
// Concurrency: Filter may run for different nodes in parallel; everything that is
// shared between them is immutable or locked.
//
// Allowed imports: api, topology/..., plugins/internal/..., k8s.io/...
package topologydra
