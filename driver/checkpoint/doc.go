// SPDX-License-Identifier: Apache-2.0

// Package checkpoint is the driver's memory: which claims it has prepared on
// this node, with which devices and limits. The file is an API between
// versions of the driver, since an update or a downgrade finds what another
// version wrote, and both run at once during a rolling update.
//
// The file is one JSON object: apiVersion, checksum and data. The checksum is
// over the bytes of data as they are in the file, never over something that
// was decoded and encoded again, so that a field which one version does not
// know cannot make the file look corrupt to it.
//
// What may change within one apiVersion: new optional fields, anywhere. Readers
// ignore what they do not know, and what they do not know of the document and
// of a claim they write back unchanged. What may not: the meaning, name or type
// of a field, and that an absent field means what its zero value says. A break
// needs a new apiVersion, and a version of the driver that reads both and
// writes the old one must be released before it. testdata holds one golden file
// per released version; they are never edited.
//
// Invariants: Save is atomic and durable. SaveIntent is atomic for processes and
// leaves the durable file alone. Load never guesses: a file that is
// truncated, changed, of another apiVersion or against the rules of Validate is
// a *CorruptError, and SetAside moves it out of the way without deleting it.
//
// Concurrency: a Store has no state of its own besides paths. Update holds a
// lock between processes from before the read until after the write; Load
// without it sees a whole document, but perhaps not the newest.
//
// Allowed imports: the standard library, internal/atomicfile,
// internal/filelock, k8s.io/apimachinery.
package checkpoint
