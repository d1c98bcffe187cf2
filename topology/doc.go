// SPDX-License-Identifier: Apache-2.0

// Package topology models the GPUs of one machine and the links between them.
//
// A [Machine] is plain data: who is joined to whom by how many NVLinks, how far
// apart two GPUs are on PCIe, which NUMA node and which network card is close.
// Everything that ranks sets of GPUs is built on it in the packages quality and
// placement; readers of recorded machines are in the package capture.
//
// Invariants: GPUs are addressed by position, that is by their rank in PCI
// address order, never by an NVML index or a minor number. Matrices are
// symmetric and square; [Machine.Validate] says which row and column are not.
// Two machines with the same [ClassID] have the same answers to every question
// about sets of GPUs, whatever they are called.
//
// Concurrency: values are not synchronised. A Machine that nobody writes to may
// be read from any number of goroutines.
//
// Allowed imports: the standard library only.
package topology
