// SPDX-License-Identifier: Apache-2.0

// Package fleet makes clusters out of recorded machines and of the openb list of
// nodes.
//
// Concurrency: a Loader may be used from any number of goroutines. Allowed imports:
// the standard library, topology and its packages but topotest, sim/model,
// sim/workload.
package fleet
