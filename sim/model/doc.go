// SPDX-License-Identifier: Apache-2.0

// Package model holds what a simulation is about: jobs, what one pod of a job
// demands, the nodes of a cluster, and which parts of their GPUs are taken.
//
// Shares are counted like the scheduler plugins count them: a GPU has memory and
// compute, a request consumes both, and a GPU of which nothing is taken is idle.
// Memory is in per mille of the GPU's memory instead of MiB, so that one job can
// run on any model; [Node.Inventory] and [Demand.Placement] translate to the types
// of the package placement.
//
// Invariants: no part of a GPU is given to two pods, and what was taken comes back
// entirely. [Cluster.Check] recomputes all sums from the placements.
//
// Concurrency: a Cluster belongs to one goroutine. Allowed imports: the standard
// library, topology and its packages but topotest.
package model
