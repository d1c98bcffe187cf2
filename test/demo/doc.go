// SPDX-License-Identifier: Apache-2.0

// Package demo runs one stream of GPU jobs twice on one real control plane: first with the scheduler as Kubernetes ships
// it, then with TopoDRA's, and compares what the jobs got with the best that any scheduler could have given them at
// that moment.
//
// # What happens
//
// A control plane is started once (test/cluster), with simulated nodes whose link matrices were recorded from real
// machines; each node runs the real TopoDRA driver. The stream ([Stream]) submits jobs one at a time and lets earlier
// ones finish in between, so that the free GPUs become fragmented. Before each job the free state is read from the API
// server and the optimum is found by brute force over every node and every set of GPUs ([Optimum]): neither the planner nor the
// scheduler takes part in that. Between the two runs every pod and claim is removed.
//
// # Invariants
//
//   - The two schedulers never run at the same time: two allocators on one set of GPUs would double-book them.
//   - Both runs get the same jobs with the same claims in the same order.
//   - A job's result is read from its ResourceClaim, never from a scheduler's own words.
//   - [Run] returns an error when a job under TopoDRA got less than the best tier; the report is complete all the same.
//   - Everything that was started is stopped when Run returns, also after an error or a cancelled context.
//
// # Concurrency
//
// Run works in the goroutine that calls it, apart from what test/cluster starts. The pure functions may be called from anywhere.
//
// # Allowed imports
//
// test/cluster, topology and its packages except the planner's search, api, internal/livestate, client-go. Neither
// driver nor plugins: they run as processes of their own.
package demo
