// SPDX-License-Identifier: Apache-2.0

// Package fit asks the planner what a live node could give: to jobs of whole GPUs now and if it were empty, and to the demand
// of one pod.
//
// Invariants: pure; equal input gives equal answers; nothing that is passed in is changed. GPUs that a taint keeps claims away
// from serve nobody who does not tolerate it, free or not.
//
// Concurrency: a Planner may be shared between goroutines. Allowed imports: api, internal/livestate, topology/..., k8s.io/api,
// the CEL of k8s.io/dynamic-resource-allocation.
package fit
