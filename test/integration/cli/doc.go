// SPDX-License-Identifier: Apache-2.0

// Package cli tests the commands of kubectl topodra that need a cluster, against a real API server with drivers on
// recorded machines and the stock scheduler. The program is built and run as people run it.
package cli
