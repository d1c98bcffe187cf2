// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files so that a reader, a crash or a full disk
// sees either the old content or the new one, never a part.
//
// Invariants: after a nil error the content and its name are on stable storage
// (only Replace leaves that to the kernel).
// After an error the old content is still in place and no temporary file is
// left, unless the process died in between; such leftovers start with
// TempPrefix and RemoveTemps deletes them.
//
// Concurrency: all functions may be called at once, also from several
// processes; of two concurrent writers of one path the last rename wins.
//
// Allowed imports: the standard library.
package atomicfile
