// SPDX-License-Identifier: Apache-2.0

// Package driver tests the node driver against a real API server and etcd: that
// every published field is stored as it was meant, that slices are written only
// when the node changes, and that somebody is told when the API server takes less.
//
// Simulated machines run the driver's binary; GPUs that no recording has run
// package driver in the test's process, on a source of their own.
package driver
