// SPDX-License-Identifier: Apache-2.0

// Command images builds our programs for several architectures and packs them into container images, one OCI archive per program, with
// nothing but the Go toolchain, C compilers for the one program that needs them, and the C library of the machine that builds. No
// registry is asked for anything.
//
// An image holds the program, a user without rights, and for the driver the GNU C library with its loader: NVIDIA's library, which the
// driver loads at run time, needs it. There is no shell.
//
// The same source, toolchain and C library give the same bytes, wherever the source lies and whoever builds.
package main
