// SPDX-License-Identifier: Apache-2.0

// Package study is the fixed set of simulations behind docs/results.md: which
// clusters, jobs, policies and seeds ([Scenarios]), how their results are summed up
// over seeds ([Summarise]), and which targets they have to meet ([Judge]).
//
// Every seed gives all policies the same jobs. Results do not depend on how many runs
// go side by side.
//
// Concurrency: [Run] starts goroutines and ends them before it returns. Allowed
// imports: the standard library, topology and its packages but topotest, and the
// packages of sim but sim/report.
package study
