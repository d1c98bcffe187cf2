// SPDX-License-Identifier: Apache-2.0

// Package prepare turns an allocated claim into something that containers can
// use, and takes it back.
//
// Computing and acting are apart. compute.go, overlap.go, pods.go and spec.go
// are pure: claim, configuration, devices and pods in; a record for the
// checkpoint and a CDI spec out; or a Refusal, which tells the user what to
// change. manager.go and reconcile.go act, through the interface Host, in this
// order:
//
//	Prepare:   record "Started" → region directories → CDI spec → record "Completed"
//	Unprepare: CDI spec away → region directories away → record away
//
// A failure in between takes back what was done, in reverse. A crash in between
// leaves a record (or, without one, nothing), and the next Prepare, Unprepare or
// Reconcile finds it.
//
// Invariants:
//   - Nothing is kept in memory between calls. Every call takes the lock of the
//     checkpoint, reads it, and writes it before it answers, so two drivers on
//     one node see each other's work.
//   - Every call is idempotent. Prepare of a prepared claim makes anew what is
//     missing; it never trusts the record alone.
//   - A new boot is noticed before the first effect of any call, and before a
//     container gets a region: regions of this boot are never taken for old ones.
//   - A device is who its UUID says. Names only find it.
//   - The sum of what prepared claims consume of a device never exceeds what is
//     published.
//   - A container with a limit either has it or does not start.
//   - What belongs to a live pod is never removed, nor is what a container has that
//     is still there although its pod is gone, as far as NRI tells.
//
// Concurrency: Manager is safe for concurrent use, also by several processes on
// one state directory. Allowed imports: the standard library, api, driver/cdi,
// driver/checkpoint, driver/enforce, driver/internal/owners, internal/atomicfile, k8s.io/api,
// apimachinery, client-go, dynamic-resource-allocation.
package prepare
