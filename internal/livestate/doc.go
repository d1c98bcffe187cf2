// SPDX-License-Identifier: Apache-2.0

// Package livestate turns what the API server holds about TopoDRA's GPUs into one picture per node: the machine with its
// links, and for each GPU what it has, what is left, and who holds the rest.
//
// Invariants: it only reads; it decides nothing; it returns nodes, GPUs and holders in a fixed order whatever order the lists
// had. Only the newest generation of a pool counts. MIG devices are no GPUs of their own: who holds
// one is a holder at its parent's position.
//
// Concurrency: pure functions; the arguments are not written to.
//
// Allowed imports: api, api/slicecodec, topology, k8s.io/api, k8s.io/apimachinery.
package livestate
