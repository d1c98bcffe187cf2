// SPDX-License-Identifier: Apache-2.0

// Package cdi writes one CDI spec per claim, from which the container runtime
// takes device nodes, libraries, environment and mounts.
//
// The qualified name of a device is made of the claim's UID, the request, the
// device and the share (Name), so that two shares of one GPU are two devices and
// no name ever means something else later.
//
// What a container needs to use a GPU comes from a Base: nvidia-container-toolkit
// for real GPUs (driver/nvml/nvcdi), Simulated for recorded ones. What limits it
// is added by the caller as Extra.
//
// Invariants: Write returns nil only after the spec has been read back from the
// disk by the CDI library and equals what was asked for. A spec with a guard
// stops every container that nobody has taken the guard away from, see Guard.
//
// Concurrency: a Dir may be used by several goroutines and processes for
// different claims; for one claim the caller serialises. Allowed imports: the
// standard library, api, driver/enforce, the CDI library, k8s.io/apimachinery.
package cdi
