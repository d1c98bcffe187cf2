// SPDX-License-Identifier: Apache-2.0

// Package probe looks at the health of real GPUs by NVML: it implements
// health.Prober.
//
// A look opens the library, asks each GPU in a goroutine of its own, and closes the
// library. A GPU whose call does not return is reported as hanging and not asked
// again before the call has returned; the others are asked as ever. What is newer
// than branch 418 of the driver is looked up before it is called, as in package
// nvml; what a GPU does not support is no fault.
//
// Events come from a session that registers every GPU and waits. While it lasts,
// the library stays open, and with it the kernel driver in use; it is opened anew
// every few minutes, so that GPUs which come are seen, and soon after an error. A
// GPU that cannot be registered is left out of that session alone.
//
// Concurrency: a Prober is safe for concurrent use. Allowed imports: the standard
// library, go-nvml, driver/device, driver/health, driver/nvml/internal, klog.
package probe
