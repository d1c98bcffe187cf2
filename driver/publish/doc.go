// SPDX-License-Identifier: Apache-2.0

// Package publish turns a device.Snapshot into the ResourceSlices of a node. It
// is pure: equal input gives equal output, byte for byte, so that slices change
// only when the node does.
//
// # Devices
//
// A GPU becomes one device named "gpu-" and the first 12 hexadecimal digits of
// its UUID; a GPU in MIG mode is published as its MIG devices only, "mig-" and 12
// digits. When two names of a node would be equal, each of them gets all 32
// digits instead. A UUID of another form is hashed. Devices are in order of PCI
// address, and at most 64 are in one slice, the limit for devices that have
// taints. The pool is named after the node. Taints are those of Options.Taints.
//
// # Attributes
//
// The standard pciBusID, pcieRoot and numaNode, the identity (type, uuid, index,
// minor, moduleID, productName, brand, architecture, cudaComputeCapability,
// driverVersion, cudaDriverVersion), fabricClique, simulated, and the topology
// attributes of package slicecodec. A MIG device has no NVLinks and therefore no
// topology beyond its parent's index, NUMA node and PCIe root; it has parentUUID,
// profile and its parts of the GPU (gpuSlices, computeSlices, memorySlices). What is unknown or
// longer than the API allows is left out of that device.
//
// # Capacities of a GPU
//
//	memory  bytes: total − what the kernel driver reserves − Options.MemoryReserve,
//	        floored to 1Mi. Default all, minimum and step 1Mi.
//	cores   percent of the multiprocessors: value 100, default 0, minimum 0, step 1.
//	        0 is best effort.
//	slots   only with Options.MaxSharers: that many, each claim takes 1.
//
// All GPUs allow multiple allocations, and every capacity has a request policy,
// because one without makes the device exclusive. A claim that asks for nothing
// therefore gets the whole GPU through its memory. A GPU whose memory is not
// known cannot be shared by memory: it is published as an exclusive device
// without capacities. MIG devices are exclusive and have a plain memory capacity.
//
// Allowed imports: the standard library, api, api/slicecodec, driver/device,
// topology, k8s.io/api, k8s.io/apimachinery and
// k8s.io/dynamic-resource-allocation/resourceslice.
package publish
