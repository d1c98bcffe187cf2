// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of kubectl-topodra: commands, flags, usage texts, exit status.
//
// Invariants: results go to the standard output and everything else to the standard error; when a command fails nothing
// has been written to the standard output and the exit status is 1. Nothing here decides anything about GPUs: that is
// what the packages plan and nodes next to it do.
//
// Concurrency: [Main] uses no shared state and may be called from several goroutines, as the tests do.
//
// Allowed imports: cobra, k8s.io/cli-runtime, k8s.io/client-go, the packages next to it.
package cli
