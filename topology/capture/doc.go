// SPDX-License-Identifier: Apache-2.0

// Package capture reads recordings of machines: the JSON files that this project
// keeps, and the text that `nvidia-smi topo -m` prints. Both become the same
// topology.Machine.
//
// What is read: unknown JSON fields are ignored, but shapes are strict; an error
// names the row and the column. A pair whose two directions differ gets the worse
// of the two and a warning. Input that is not a recording gives an error, never a
// panic; input above [MaxBytes], [MaxNICs] or topology.MaxGPUs is refused. GPUs of a
// text are put in the order of their numbers.
//
// What is inferred, because recordings leave it out:
//   - The PCIe class of a pair that is printed as NVn: NODE when both GPUs are on
//     the same NUMA node or, if that is not known, have the same CPU affinity;
//     SYS otherwise.
//   - The rate of one NVLink and the PCIe generation, from the GPU model that the
//     field "hardware" of the recording names (topology.FindProduct). Names of files
//     and machines are for people and say nothing.
//   - Whether the links go into a switch: some GPU shows more links in sum than it
//     has ports, so that they cannot be cables between GPUs. Ports come from the
//     model, else 18 are assumed, the most that any model has.
//   - The nearest network card: the lowest PCIe class that is not SYS; the first
//     card of the recording when several are equally close.
//
// Concurrency: functions keep no state. Allowed imports: the standard library and
// the package topology.
package capture
