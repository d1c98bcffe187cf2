// SPDX-License-Identifier: Apache-2.0

// Package driver runs the DRA driver of a node: it asks a device.Source what is
// there, publishes it as ResourceSlices by the kubelet plugin helper of
// Kubernetes, and answers the kubelet.
//
// # Publishing
//
// The source is asked at the start, after every Config.RescanPeriod and whenever
// Config.Rescan delivers. Slices are handed to the helper only when they differ
// from the last ones. When the source fails, what was published stays, the
// failure becomes an event of the Node and a log line, and the source is asked
// again sooner, at first after a second. A driver that has never found anything
// out publishes nothing, not even an empty pool, because an empty pool means that
// the node has no GPUs.
//
// A field that the API server drops, a slice that it rejects and every new
// warning of a scan become events of the Node, too.
//
// # Preparing
//
// Claims are the business of package prepare, and per container of package nri.
// Here they get their devices (inventory: the same source, asked anew, described
// in the same way), and the background work is started and stopped: the enforcer
// is set up and tried again while it fails, NRI is connected, statuses are
// written, and claims are reconciled before the kubelet is told that the driver
// is there, and periodically. Without Config.Claims the driver only publishes,
// and Prepare and Unprepare fail for every claim. No health is reported.
//
// # Concurrency
//
// Run blocks. The helper calls the plugin from its own goroutines; all state that
// they share with the scan loop is behind a mutex.
//
// Allowed imports: driver/cdi, device, enforce, nri, prepare and publish, api,
// Kubernetes libraries. Not
// the sources themselves: cmd/driver chooses one.
package driver
