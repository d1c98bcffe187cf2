// SPDX-License-Identifier: Apache-2.0

// Package nvml is the device.Source for real GPUs: it reads them by NVIDIA's
// management library, and where they sit by sysfs. It is the only package that
// knows go-nvml.
//
// # Drivers
//
// The oldest supported kernel driver is branch 450, the first with MIG. go-nvml
// binds functions when they are called, and a function that the loaded library
// does not have ends the process. Every function that is newer than branch 418, or
// of which that is not certain, is therefore looked up before its first call and
// taken for not supported when it is missing. The library is opened for each
// discovery and closed after it, which notices GPUs that come and go and lets the
// kernel driver be updated in between.
//
// # What goes wrong
//
//   - A GPU that is lost, or whose UUID or PCI address cannot be read, is left out
//     with a warning. The positions of the others follow from those that are there.
//   - Any other fact that cannot be read is left out for that GPU. What the GPU does
//     not support is no warning, a failure is one.
//   - An unknown architecture or brand becomes "Unknown (<number>)".
//   - A call about one GPU that does not return costs that GPU alone: it is left out
//     with a warning that names the call, and is not asked again before the call
//     has returned.
//   - Any other call that does not return holds back only its own goroutine:
//     Discover gives up after a time and names the call. Until that call returns,
//     later discoveries fail right away, so that hanging calls do not pile up.
//
// # Links
//
// A pair of GPUs is joined by the active links that lead from one to the other by
// PCI address, or, if both have active links into a switch, by the smaller number
// of these. Where both directions differ, the smaller number counts, with a
// warning. Links count only while NVML says that the two can use them for peer to
// peer access: that is what fails when a fabric manager is down. GPUs in MIG mode
// have no usable links. A fabric that spans nodes is reported only when the GPU's
// registration is completed.
//
// A Source is not safe for concurrent use. Allowed imports: the standard library,
// go-nvml, topology, driver/device, driver/sysfs.
package nvml
