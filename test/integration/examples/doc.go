// SPDX-License-Identifier: Apache-2.0

// Package examples applies every example in manifests/examples to a cluster with simulated nodes and the shipped scheduler
// configuration, and checks that the pods get what the example's README says: the tables below its heading "Placement" are
// what the test reads.
//
// Allowed imports: test/integration/testbed and what that may import.
package examples
