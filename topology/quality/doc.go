// SPDX-License-Identifier: Apache-2.0

// Package quality values sets of GPUs by what a collective library can build in
// them.
//
// The quality of a set is the number of edge-disjoint NVLink rings through all its
// members times the rate of one link, or, when NVLinks alone do not join the
// members in a ring, the slowest hop of the best ring over NVLinks and PCIe. The
// formula, why it is used and what it is worth is in docs/objective.md.
//
// A [Class] holds the tables of one topology class. Machines with equal links
// share one through a [Cache]. Up to topology.MaxExactGPUs GPUs every value is
// exact; above, sets of up to topology.MaxExactGPUs GPUs are exact and larger ones
// are lower bounds unless all their members are linked alike.
//
// Concurrency: a Class and a Cache may be used from any number of goroutines.
// Allowed imports: the standard library and the package topology.
package quality
