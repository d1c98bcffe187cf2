// SPDX-License-Identifier: Apache-2.0

// Package explain says why a pod has the GPUs that it has, or why it has none and what would have to be freed for it.
//
// Everything follows from a Snapshot of what the API server has; [Read] takes one, [Of] is pure. The API server does not keep
// history: what was free when a pod was placed is reconstructed from the allocation times of the claims that are still there,
// which gives a bound and not the truth, and the words say so. For a pending pod the same questions are asked that the scheduler
// asks, but the scheduler stays the authority: its own words come first.
//
// Concurrency: functions without state. Allowed imports: api, internal/livestate, topology/..., client-go, component-helpers,
// the packages ask, fit, gather, nodes, printable and status.
package explain
