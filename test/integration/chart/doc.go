// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart on a real API server: what it renders is accepted, every component works with nothing but
// its own service account, values are checked, upgrades lose nothing, and what is generated from the chart is up to date.
package chart
