// SPDX-License-Identifier: Apache-2.0

// Package hamicore keeps limits with HAMi-core, a library (libvgpu.so) that is
// preloaded into every process of a container and answers CUDA calls itself
// once a limit is reached. It is a cooperative quota, not a boundary: see
// docs/enforcement.md for what gets around it.
//
// Everything that the library reads is set explicitly, also where its default
// would do, so that nothing in a pod's own environment can take its place.
//
// The library lies on the host below Options.Root, in a directory whose name is
// made of its content: <root>/lib/<hash>/. Such a directory is completed before
// it gets its name and never changed afterwards, so a container that runs keeps
// the file it has mapped, and an update is a new directory.
//
// Concurrency: safe for concurrent use, also by two processes on one root.
// Allowed imports: the standard library, api, driver/enforce,
// internal/atomicfile.
package hamicore
