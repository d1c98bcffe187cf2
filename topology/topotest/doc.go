// SPDX-License-Identifier: Apache-2.0

// Package topotest helps tests: machines recorded from real hardware, builders of
// machines, and a slow reference for everything the packages quality and placement
// compute.
//
// The reference shares no code and no method with what it checks: it packs rings
// by depth-first search over the multigraph of links, finds the best ring by trying
// every order, and packs sets by recursion. It is written to be obviously right.
//
// Concurrency: functions keep no state. Allowed imports: the standard library, the
// package topology and its subpackages. Only tests and the demo import this package.
package topotest
