// SPDX-License-Identifier: Apache-2.0

// Package oci writes container images as OCI archives: tar files with an image layout (version 1.0.0 of the image specification), which
// container runtimes import and registries take without any other tool.
//
// # Invariants
//
//   - The same files give the same bytes: layers list their files by name with fixed owners and times, and are compressed without
//     a name or time; JSON is written from structs; blobs are in the order of their digests.
//   - An archive has one image index with an image for every platform, and every blob that they refer to once.
//
// # Concurrency
//
// Functions may be called by several goroutines.
//
// # Allowed imports
//
// The standard library.
package oci
