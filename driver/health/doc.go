// SPDX-License-Identifier: Apache-2.0

// Package health knows which GPUs of the node are ill, and which should get no new
// work for another reason.
//
// # Ledger
//
// A [Ledger] holds conditions by target (a GPU, a MIG device or all devices) and
// kind. Every condition belongs to a source, which looks again and again: a look
// that finds something begins a condition or keeps it, and a number of looks of
// the same source in a row that do not find it end it. A look that could not see
// everything only adds. So something that comes and goes does not flap, and nothing
// stays because somebody forgot to take it away. Each condition becomes one taint,
// whose effect depends on its severity and the [Policy].
//
// The ledger is written to disk with every change, and read at the next start. Two
// processes of the driver, as there are during an update, see the same GPUs; the
// last one to write wins, and what the other knew is found again.
//
// # Monitor
//
// A [Monitor] looks at GPUs through a [Prober] (NVML, or a simulation) and turns
// [Observation] into conditions by [Assess], which is pure. GPUs that disappear are
// kept ([Monitor.Complete]): they stay published, with a taint, so that positions
// of others do not change and whoever uses them is told. One GPU's trouble is never
// taken for another's.
//
// # Concurrency
//
// Ledger and Monitor are safe for concurrent use. Listeners are called without a
// lock.
//
// Allowed imports: the standard library, api, driver/device, topology,
// internal/atomicfile, k8s.io/api, k8s.io/apimachinery, klog.
package health
