// SPDX-License-Identifier: Apache-2.0

// Package convert turns what a pod asks for in the classic vocabulary into one claim for the whole pod.
//
// [New] makes a [Plan]: the claim's spec, and which requests of it each container uses. [Plan.Apply] writes that into a pod.
//
// # Invariants
//
//   - The GPUs of one container are distinct: one request with a count, or a constraint across its requests.
//   - Containers that run at the same time never use the same request. An init container uses requests of containers that
//     start after it has ended, as far as both take the same amount of each GPU, so that a pod needs no more GPUs than it
//     can use at once.
//   - A percentage is an alternative per size of GPU memory, each with its exact amount. See docs/adr/0008.
//   - Equal demands give equal specs, byte by byte, whatever the containers are called. So templates can be named by content.
//   - User text gets into CEL only as quoted string literals.
//   - Pure: the same input gives the same plan. The pod is changed by Apply only.
//
// # Concurrency
//
// Functions have no state. A Plan is used by one goroutine.
//
// # Allowed imports
//
// The standard library, k8s.io/api, k8s.io/apimachinery, package api and webhook/classic.
package convert
