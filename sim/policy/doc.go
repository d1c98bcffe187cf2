// SPDX-License-Identifier: Apache-2.0

// Package policy decides where pods go: TopoDRA's own rule, run through the same
// functions of topology/quality and topology/placement that the scheduler plugins
// call, and the published rules of other schedulers, each written anew from its
// description, in a file of its own that names the source.
//
// All policies see the same state and may use every node that has room. Where a
// published rule chooses GPUs but no node, the node is chosen by MostAllocated, the
// rule under which it looks best. Where it says nothing about a kind of demand,
// its file says what is done instead. Ties go to the first node and the lowest
// positions, where a real scheduler would draw lots between equal nodes.
//
// Concurrency: a policy belongs to one goroutine and one cluster. Allowed imports:
// the standard library, api (for the defaults of the plugins' arguments),
// topology and its packages but topotest, sim/model.
package policy
