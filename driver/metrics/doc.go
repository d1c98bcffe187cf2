// SPDX-License-Identifier: Apache-2.0

// Package metrics tells Prometheus what the node's GPUs are promised to, and what
// is used of them.
//
// # Where numbers come from
//
//   - Promises come from claims: the checkpoint is read at each scrape, so they are
//     there as soon as a claim is prepared and go with it.
//   - Usage comes from the host: driver/enforce/watch samples the GPU driver and
//     finds containers by their cgroups. A scrape takes the last sample and never
//     asks the GPU driver itself, so one that hangs holds nothing up; the sample's
//     age is a metric, and one that is too old is left out.
//   - What HAMi-core reports from inside a container is read from its region, which
//     the container can write: it has metrics of its own and is never mixed with the
//     others, apart from the aliases below.
//
// # Names and labels
//
// Names begin with "topodra_", have base units, and ratios are from 0 to 1. A
// series of a container has the labels namespace, pod, container, claim and
// device_uuid. There is one for each device of a prepared claim and container, and
// none that outlives them, so their number is bounded by what is prepared on the
// node. No label holds a number that changes, a process ID or free text.
//
// With Options.HAMiAliases the same is told once more by the names, labels and
// units of HAMi, for dashboards that were made for it.
//
// Families lists every metric; docs/metrics.md is compared with it.
//
// Concurrency: a Collector is safe for concurrent use. Allowed imports: the
// standard library, api, driver/checkpoint, driver/device, driver/enforce and its
// packages hamicore, hamicore/region and watch, driver/internal/owners,
// prometheus/client_golang, k8s.io/api, apimachinery, dynamic-resource-allocation.
package metrics
