// SPDX-License-Identifier: Apache-2.0

// Package certs keeps the webhook's serving certificate and the trust of the API server in it, without anybody's help: a
// Secret holds an own authority and a certificate from it, both are renewed in time, and the webhook configurations are told.
//
// # Invariants
//
//   - There is no moment without trust: a new authority is put beside the old one in what the API server trusts, some time
//     before anything is signed with it; the old one stays there until it has ended. So it does not matter which of several
//     replicas still serves with what.
//   - A certificate never outlives its authority.
//   - What cannot be read, does not belong together, or is for other names is replaced, and the reason is logged.
//   - Replicas need no leader: the Secret's version decides who writes, and everybody reads what was written.
//   - [next], which decides, is pure but for the keys that it makes.
//
// The certificate is served from memory as soon as it is written: a Secret that is mounted into the pod arrives a minute or
// more later, and the names of such files would tie the program to a volume.
//
// # Concurrency
//
// A Keeper may be used by several goroutines; Reconcile runs in one of them.
//
// # Allowed imports
//
// The standard library, k8s.io/api, k8s.io/apimachinery, k8s.io/client-go, klog.
package certs
