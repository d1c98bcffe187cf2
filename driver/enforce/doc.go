// SPDX-License-Identifier: Apache-2.0

// Package enforce turns the devices that one container sees into limits that
// hold for that container. A backend is an Enforcer: hamicore preloads a library
// into the container's processes, nvmllimit has the GPU driver limit the
// container's cgroup.
//
// The unit is the container, not the claim: numbers in limits count the GPUs
// that the container sees, over all its claims and requests, in order of PCI
// address (NewContainer is the one place that does so). Whole GPUs, admin access
// and claims without enforcement have no limit; a container without any limit is
// left alone by every backend.
//
// Invariants: Edits is a pure function, and equal containers get equal edits.
// An Enforcer that cannot keep a limit returns an error; it never drops one.
//
// Concurrency: Enforcers are safe for concurrent use. Allowed imports: the
// standard library, api, driver/checkpoint, k8s.io/apimachinery.
package enforce
