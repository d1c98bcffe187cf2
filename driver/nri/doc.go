// SPDX-License-Identifier: Apache-2.0

// Package nri sets the limits of each container while the container runtime
// makes it. Only then it is known which devices, of all its claims, a container
// has, and so which number each has inside.
//
// It fails closed, in three ways. An error of the plugin fails the container.
// A plugin that is slow or breaks off fails it, too, where the runtime knows
// failure policies. And a plugin that is not there leaves the guard of the CDI
// spec in place, a mount that cannot be made.
//
// The plugin keeps no state, so there is none to lose and none to rebuild after a
// restart. Which devices a container has is in the CDI names that the runtime
// passes on, and what they mean is in the checkpoint. At each connection the
// runtime tells which containers there are (Synchronize), by which what was
// missed meanwhile is found. During a rolling update two drivers are connected;
// both come to the same edits, and each takes back the other's before it adds
// its own, so that NRI sees no conflict.
//
// Concurrency: Plugin and Runner are safe for concurrent use. Allowed imports:
// the standard library, driver/cdi, driver/checkpoint, driver/enforce,
// driver/prepare, the NRI module, klog.
package nri
