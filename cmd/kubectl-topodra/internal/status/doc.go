// SPDX-License-Identifier: Apache-2.0

// Package status sums up the GPUs of a cluster: how many are idle, shared and held, who holds them, and what jobs of two,
// four and eight GPUs could get on each node now against the empty node. It can keep that current.
//
// Invariants: [New] is pure and has one order; what is shown comes from ResourceSlices and ResourceClaims alone. Idle GPUs are
// those that a claim without tolerations could have entirely.
//
// Concurrency: a Report is immutable. [Watch] redraws from one goroutine. Allowed imports: api, internal/livestate, topology,
// client-go, the packages fit, gather, nodes and printable.
package status
