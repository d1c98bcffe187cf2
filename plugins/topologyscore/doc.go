// SPDX-License-Identifier: Apache-2.0

// Package topologyscore is the scheduler plugin TopologyScore. It ranks the nodes
// that passed Filter by what TopologyDynamicResources planned on them: the tier
// of the set of GPUs, how full the node is, and what the set costs later claims.
// The formula is that of placement.ScoreNodesWeighted.
//
// The plugin keeps no state; everything it needs is in the pod's CycleState.
// Concurrency: Score runs in parallel.
//
// Allowed imports: api, topology/..., plugins/internal/plan, k8s.io/...
package topologyscore
