// SPDX-License-Identifier: Apache-2.0

// Package recorded is a device.Source that reads a recorded machine from a file,
// for clusters without GPUs. Everything that a recording does not hold is made
// up, always the same for the same machine, GPU and node:
//
//   - UUIDs are a hash of the machine's name, the GPU's index and the node's name;
//   - PCI addresses ascend by index, and GPUs that the recording places below one
//     host bridge (PIX, PXB, PHB) share a PCIe root;
//   - product, brand, architecture, compute capability and memory come from a
//     table of products, looked up by the words in the recording. A product that
//     is not in the table becomes a "Simulated GPU" with 16 GiB.
//
// The file is read again at every discovery, so that changing it plays a link
// that degrades or a GPU that disappears.
//
// # Simulated faults
//
// A file of the same path with [SimulationSuffix] behind it, if there is one, adds
// what a recording does not have: faults (errors of the kernel driver, links that
// are down, GPUs that are lost or hang, and so on) and MIG devices. It is read
// again and again, too: by the [Source] for what there is, by the [Prober] for how
// that is. Nothing of it is real, and devices are published as simulated as ever.
//
// A Source is not safe for concurrent use, a Prober is. Allowed imports: the
// standard library, topology, topology/capture, driver/device, driver/health, klog.
package recorded
