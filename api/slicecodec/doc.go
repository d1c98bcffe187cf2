// SPDX-License-Identifier: Apache-2.0

// Package slicecodec translates between a topology.Machine and the attributes
// of the devices in a ResourceSlice pool, in both directions. It is the only
// contract between the driver, which encodes, and everybody who reads slices.
//
// # Format
//
// The attributes of the GPU at position i of a node with n GPUs, at most 64:
//
//	index                         int     i, its rank by PCI address
//	nvlinks                       string  n characters, one per GPU in order of index: how many
//	                                      active NVLinks join the two, in base 36 (0-9, a-z);
//	                                      "x" at its own position i
//	pcie                          string  n characters: p PIX, b PXB, h PHB, n NODE, s SYS, x itself
//	nvlinkMBps                    int     rate of one NVLink and direction, 10^6 bytes per second
//	nvlinkDomain                  string  "nvlink-<lowest index>" of the GPUs that NVLinks connect
//	nvlinkSwitched                bool    whether its links go into an NVSwitch
//	pcieGen                       int     PCIe generation
//	nearestNIC                    string  closest network card
//	resource.kubernetes.io/numaNode int   NUMA node of its slot
//
// On an NVSwitch machine a digit of nvlinks is the number of links that both
// GPUs have into the switch. A GPU without NVLinks has neither nvlinkDomain nor
// nvlinkSwitched. What is not known is left out. "x" is also the base-36 digit
// for 33; only its position tells the two apart. No value is longer than 64
// bytes; a longer name of a network card is left out.
//
// # Reading
//
// Devices may come in any order and some may be missing: a GPU that is tainted
// away, partitioned or lost leaves a hole, and the others keep their positions.
// What the devices present say about a missing GPU is kept.
//
// Devices of other drivers are read through an api.DriverMapping. A device
// without index takes its position from the "x" in its own rows; when there are
// no rows either, the devices fill the free positions in order of PCI address,
// then name. A pair about which no pcie row says anything is valued by the worst
// that its other attributes allow, because guarantees rest on it:
//
//	same PCIe root     PHB  (below one host bridge; a switch in between cannot be seen)
//	same NUMA node     NODE
//	anything else      SYS
//
// A pair about which no nvlinks row says anything, but whose GPUs have the same
// NVLink domain, counts as joined by one NVLink.
//
// Two devices that contradict each other about a pair get the worse of the two
// and a warning. Malformed attributes are errors that name device, attribute,
// row and column. The result depends on the set of devices alone, never on
// their order.
//
// All functions are pure and safe for concurrent use. Allowed imports: the
// standard library, api, topology and k8s.io/api.
package slicecodec
