// SPDX-License-Identifier: Apache-2.0

// Package webhook holds the integration tests of the admission webhook: topodra-webhook as processes with the rights of its own service
// account, behind a real API server, with the real controller manager, scheduler and drivers on simulated nodes of two kinds.
//
// All code is in tests. TestWnn are named after the faults that docs/migration.md lists.
package webhook
