// SPDX-License-Identifier: Apache-2.0

// Package placement chooses GPUs: given what is free on one machine and what a pod
// asks for, it ranks the sets of GPUs that can serve it.
//
// A [Planner] is pure: its answer depends on its options and arguments alone, not
// on earlier calls, the time or the goroutine. Up to topology.MaxExactGPUs GPUs
// the best set is the exact optimum of the order in docs/objective.md; on larger
// machines, and when a demand with many requests exhausts the search budget, the
// result says so in Result.Exact.
//
// [ScoreNodes] compares the best sets of several machines by the same order.
//
// Concurrency: a Planner may be used from any number of goroutines. Results are
// private copies of the caller. Allowed imports: the standard library and the
// packages topology and quality.
package placement
