// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads from Linux's sysfs where PCI devices are: their NUMA node,
// the PCIe root above them, how far apart two of them are, and which network card
// is closest.
//
// All reading goes through an fs.FS, so that tests bring trees of their own. A
// fact that is not there is an error; the caller leaves it out.
//
// A Reader keeps no state and is safe for concurrent use. Allowed imports: the
// standard library, topology, driver/device and
// k8s.io/dynamic-resource-allocation/deviceattribute.
package sysfs
