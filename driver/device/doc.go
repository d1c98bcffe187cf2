// SPDX-License-Identifier: Apache-2.0

// Package device describes what a node driver finds on its node, apart from how
// it finds it: a [Source] is asked for a [Snapshot] of plain data.
//
// There are two sources, real hardware (package nvml) and a recorded machine
// (package recorded). Code above a Source cannot tell them apart but by
// Snapshot.Simulated, which it publishes and does not act upon.
//
// Invariants of a valid Snapshot (see Snapshot.Validate): GPUs are in order of
// PCI address, their positions are those of Snapshot.Machine, and UUIDs are
// unique. Every fact that could not be read is absent (nil, zero or "") for that
// GPU alone; nothing that is wrong with one GPU hides another.
//
// Values are not changed after they are handed out, so they may be read from
// several goroutines. Allowed imports: the standard library and topology.
package device
