// SPDX-License-Identifier: Apache-2.0

// Package perf measures the scheduler with Kubernetes' own benchmark,
// scheduler_perf: API server, etcd (a process), controllers and scheduler, on as many
// simulated GPU nodes as wanted, with the in-tree plugin or with ours.
//
// This package holds the cases and writes scheduler_perf's configuration for one
// run. The benchmark itself is in files with the build tag perf, since it links
// all of Kubernetes; cmd/bench-scheduler runs it, in-tree and ours by turns, each run
// in a process of its own, and package verdict compares.
//
// Figures of different machines, or of different days, are not comparable: only the
// ratios within one run of bench-scheduler are meant to be read.
package perf
