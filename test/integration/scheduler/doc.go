// SPDX-License-Identifier: Apache-2.0

// Package scheduler tests topodra-scheduler end to end: the real binary against a real API server and etcd, on nodes whose
// GPUs the real driver publishes from recorded machines. Each test says in its comments why the GPUs that it demands are the
// right ones; most can be read off the link matrix of the machine (`kubectl topodra topology` prints it).
//
// The scheduler runs the shipped configuration, and beside it a profile "default-scheduler" with the in-tree plugin in the
// same process, so that every test also runs in a process with two profiles.
//
// Allowed imports: test/integration/testbed and what that may import, topology/topotest as a brute-force reference.
package scheduler
