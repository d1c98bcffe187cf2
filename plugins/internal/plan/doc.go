// SPDX-License-Identifier: Apache-2.0

// Package plan holds what the scheduler plugins share: the record of one pod's
// plans, which TopologyDynamicResources writes into the CycleState in Filter and
// TopologyScore reads in Score, and the metrics of both.
//
// Concurrency: a Record may be written for different nodes in parallel.
//
// Allowed imports: api, topology/..., k8s.io/component-base/metrics and the
// scheduler framework's CycleState.
package plan
