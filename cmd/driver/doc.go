// SPDX-License-Identifier: Apache-2.0

// Command topodra-driver is the DRA driver of a node. It publishes the node's
// GPUs and the links between them as ResourceSlices.
//
// Every flag can be set by the environment variable TOPODRA_<FLAG>, in capitals
// and with "_" for "-"; --node-name also by NODE_NAME. The command line wins.
//
// SIGHUP starts a discovery. SIGINT and SIGTERM end the driver; its ResourceSlices
// stay, so that an update of the driver disturbs nobody.
//
// The program only reads flags and chooses the source of devices; everything else
// is in package driver.
package main
