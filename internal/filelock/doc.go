// SPDX-License-Identifier: Apache-2.0

// Package filelock is a lock between processes of one machine: flock(2) on a
// file that stays in place.
//
// Invariants: the kernel drops the lock when its holder dies, so a killed
// process never blocks the next one. The lock file is never removed: a removed
// and recreated file would be a second lock.
//
// Concurrency: Lock excludes other processes and other callers in the same
// process alike, since every call opens the file anew.
//
// Allowed imports: the standard library.
package filelock
