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
// This version publishes only. Prepare and Unprepare fail for every claim, and
// no health is reported.
//
// # Concurrency
//
// Run blocks. The helper calls the plugin from its own goroutines; all state that
// they share with the scan loop is behind a mutex.
//
// Allowed imports: driver/device, driver/publish, api, Kubernetes libraries. Not
// the sources themselves: cmd/driver chooses one.
package driver
