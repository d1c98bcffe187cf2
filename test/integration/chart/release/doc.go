// SPDX-License-Identifier: Apache-2.0

// Package release is what the tests of the chart stand on: it renders the chart with helm, runs helm against a test cluster,
// takes rendered objects apart, and starts a rendered component as a process that has nothing but a token of its own service
// account, bound to a pod or a node as one in a pod would be.
//
// # Invariants
//
//   - Nothing is taken from the chart by other means than helm: what is tested is what users get.
//   - helm keeps its own files below a directory of the test, and reaches no repository.
//   - A process that was started here is stopped at the end of its test, by its own process id.
//
// # Concurrency
//
// Functions may be called by several goroutines.
//
// # Allowed imports
//
// The standard library, k8s.io/api, apimachinery, client-go, sigs.k8s.io/yaml and test/cluster.
package release
