// SPDX-License-Identifier: Apache-2.0

// Package nodes shows how the GPUs of a live cluster are linked and who holds them.
//
// Everything is read from the API server: the driver's ResourceSlices, ResourceClaims, and pods for their phases. Nothing is
// written. Without the right to read pods the phases are missing and a warning says so; without the right to read
// slices or claims there is no answer, because half of it would look like free GPUs.
//
// Concurrency: the functions may be called from several goroutines. Allowed imports: internal/livestate, topology, api, client-go,
// the packages gather and printable.
package nodes
