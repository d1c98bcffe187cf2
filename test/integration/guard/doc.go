// SPDX-License-Identifier: Apache-2.0

// Package guard tests the admission policies of the chart against a real API server with RBAC on, Kubernetes' own scheduler and
// controllers, a third party that allocates without looking, and further copies of our scheduler: each policy refuses what it
// should, lets through what it should, and no GPU ever has two owners.
package guard
