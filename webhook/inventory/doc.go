// SPDX-License-Identifier: Apache-2.0

// Package inventory knows which GPUs our driver has published and which DeviceClasses can stand for them.
//
// # Invariants
//
//   - A class is ours if its name is configured, or if one of our devices, published or made up, passes its selectors and those of
//     the request. So a class with a name of its own, or one without any selector, is found, and a request in it that can only be met
//     by another driver is not taken.
//   - Answers are those of the informers' caches: they lag behind the API server by a moment.
//
// # Concurrency
//
// An Inventory may be used by several goroutines.
//
// # Allowed imports
//
// The standard library, k8s.io/api, k8s.io/apimachinery, k8s.io/client-go, k8s.io/dynamic-resource-allocation/cel, klog, package api
// and webhook/convert.
package inventory
