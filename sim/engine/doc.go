// SPDX-License-Identifier: Apache-2.0

// Package engine lets jobs pass through a cluster in virtual time, under one policy,
// and measures what they got.
//
// [Run] is a queue: jobs arrive, wait, run and end. Like kube-scheduler it tries
// waiting jobs in order of arrival whenever something was freed, and a job that does
// not fit does not hold up those behind it (or does, with [FIFO]). The pods of a
// job are placed one after another, each with the earlier ones in place; when one
// finds no room, none of them stays. [Fill] lets pods arrive that never end and drops
// those that find no room, which is how packing is compared.
//
// Invariants: at one moment, ends come before arrivals, both in the order of the
// jobs; the same configuration gives the same result, but for the time that decisions
// took. A job that fits an empty cluster ends, where "fits" means that the policy finds
// places for its pods one after another. Every move of capacity goes through
// model.Cluster; with Config.Audit all of it is recomputed after every event.
//
// Concurrency: a run works in one goroutine; runs with different clusters and
// policies may go side by side. Allowed imports: the standard library, topology and
// its packages but topotest, sim/model, sim/policy.
package engine
