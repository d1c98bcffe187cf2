// SPDX-License-Identifier: Apache-2.0

// Package vgpudouble builds a test double of libvgpu.so, HAMi-core's library, and a container image with a program that
// loads it. The double limits nothing: it shows, from inside a container, that it was preloaded, which limits it reads and
// that it can use the region file.
//
// busybox is statically linked and cannot be preloaded into. So the image also has gpuview, a small dynamically linked
// program, with the dynamic linker and the C library of the machine that runs the tests.
//
// Invariants: both programs are compiled from this package's sources, which are embedded, with the C compiler of the
// machine; nothing is downloaded. The double does nothing in a process that has no CUDA_DEVICE_MEMORY_SHARED_CACHE.
//
// Concurrency: the functions have no state. Allowed imports: the standard library, test/node.
package vgpudouble
