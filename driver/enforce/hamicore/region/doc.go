// SPDX-License-Identifier: Apache-2.0

// Package region reads what HAMi-core's processes in one container tell each
// other about their use of GPUs: a file of fixed layout that all of them map.
//
// The file is writable by the container, so nothing in it is to be believed, and
// nothing about it is to be taken for granted: it may be a symbolic link, a
// named pipe or a device, be cut off, grow, or change while it is read. What it
// says is only good for telling people, never for keeping a limit.
//
// # What a hostile file can do
//
// It can make Read return an *Error with a Reason, or numbers that are wrong but
// plausible. It cannot
//   - lead elsewhere: links are not followed;
//   - have a side effect: the file is looked at before it is opened for reading,
//     by a descriptor that opens nothing, so that no device is ever opened;
//   - hold the reader up: nothing waits, also not for a lease on the file;
//   - end the process: the file is read and not mapped, since a mapping of a file
//     that is cut off meanwhile is a signal;
//   - use memory or time without bounds: size, counts and repetitions are limited.
//
// Concurrency: Read and Parse are safe for concurrent use. Allowed imports: the
// standard library.
package region
