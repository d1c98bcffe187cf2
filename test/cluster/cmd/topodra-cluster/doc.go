// SPDX-License-Identifier: Apache-2.0

// Command topodra-cluster runs a control plane with simulated GPU nodes on loopback until Ctrl-C. Each node has the real
// driver, which publishes a recorded machine; TopoDRA's scheduler and the stock one run side by side. There are no kubelets:
// pods are declared Running once they are bound.
//
// It imports only test/cluster and the standard library.
package main
