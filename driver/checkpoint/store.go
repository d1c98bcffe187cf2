// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/topodra/topodra/internal/atomicfile"
	"github.com/topodra/topodra/internal/filelock"
)

// Names of the files in the state directory.
const (
	FileName       = "checkpoint.json"
	IntentFileName = "checkpoint.intent.json"
	LockFileName   = "checkpoint.lock"

	// asidePrefix starts the names of files that were set aside.
	asidePrefix = "checkpoint.corrupt-"

	// maxAside is how many of those are kept; the oldest go first, so that a
	// broken disk does not fill up with evidence.
	maxAside = 5
)

// Store is the checkpoint file in a state directory.
type Store struct {
	dir      string
	nodeName string
}

// NewStore returns the store in dir, which must exist, for the node.
func NewStore(dir, nodeName string) *Store { return &Store{dir: dir, nodeName: nodeName} }

// Path of the checkpoint file.
func (s *Store) Path() string { return filepath.Join(s.dir, FileName) }

// Lock excludes other calls and processes until the returned function is
// called. It waits until ctx ends.
func (s *Store) Lock(ctx context.Context) (unlock func() error, err error) {
	return filelock.Lock(ctx, filepath.Join(s.dir, LockFileName))
}

// Load reads the document: what SaveIntent wrote about the present file, or that
// file. A file that is missing is an empty document without boot ID. A file that is
// no checkpoint of this node is a *CorruptError; other errors come from the file
// system and may pass.
func (s *Store) Load() (*Document, error) {
	content, err := os.ReadFile(s.Path())
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, fmt.Errorf("reading checkpoint: %w", err)
	}
	if intent := s.loadIntent(content); intent != nil {
		return intent, nil
	}
	if missing {
		return New(s.nodeName, ""), nil
	}
	document, err := Decode(content)
	if err == nil && document.NodeName != s.nodeName {
		err = fmt.Errorf("it belongs to node %q, this is node %q", document.NodeName, s.nodeName)
	}
	if err != nil {
		return nil, &CorruptError{Path: s.Path(), Reason: err}
	}
	return document, nil
}

// loadIntent returns what was about to be done when the checkpoint had the
// content; nil when there is no such thing. A power failure can leave a part of
// the file, or an old one, which then says nothing.
func (s *Store) loadIntent(content []byte) *Document {
	intent, err := os.ReadFile(s.intentPath())
	if err != nil || !isIntent(intent, content) {
		return nil
	}
	document, err := Decode(intent)
	if err != nil || document.NodeName != s.nodeName {
		return nil
	}
	return document
}

// intentPath is where SaveIntent writes.
func (s *Store) intentPath() string { return filepath.Join(s.dir, IntentFileName) }

// SaveIntent says what is about to be done. It is there for every process of this
// boot at once, and until the next Save. A power failure may take it, but then
// nothing of what was about to be done means anything any more: no container of
// that time is there. So it does without waiting for the disk, and goes into a file
// of its own, since the durable one must not be replaced by one that is not. The
// caller holds the lock.
func (s *Store) SaveIntent(d *Document) error {
	content, err := os.ReadFile(s.Path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading checkpoint: %w", err)
	}
	intent, err := encodeIntent(d, content)
	if err != nil {
		return err
	}
	if err := atomicfile.Replace(s.intentPath(), intent, 0o600); err != nil {
		return fmt.Errorf("saving intent: %w", err)
	}
	return nil
}

// Save replaces the file, durably. The caller holds the lock. An unchanged
// document is not written again.
func (s *Store) Save(d *Document) error {
	content, err := Encode(d)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(s.Path()); err != nil || !bytes.Equal(old, content) {
		if err := atomicfile.Write(s.Path(), content, 0o600); err != nil {
			return fmt.Errorf("saving checkpoint: %w", err)
		}
	}
	// The checkpoint may come to be what it was when the intent was written, so
	// that alone does not make the intent void.
	if err := os.Remove(s.intentPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing intent: %w", err)
	}
	return nil
}

// SetAside renames the file, so that it can be looked at and is not read again,
// and returns its new path. The caller holds the lock.
func (s *Store) SetAside(now time.Time) (string, error) {
	aside := filepath.Join(s.dir, asidePrefix+now.UTC().Format("20060102T150405.000000000"))
	if err := os.Rename(s.Path(), aside); err != nil {
		return "", fmt.Errorf("setting checkpoint aside: %w", err)
	}
	return aside, errors.Join(atomicfile.KeepNewest(s.dir, asidePrefix, maxAside), atomicfile.SyncDir(s.dir))
}

// BootIDPath is where Linux tells one boot from the next.
const BootIDPath = "/proc/sys/kernel/random/boot_id"

// ReadBootID reads the boot ID at path, usually BootIDPath.
func ReadBootID(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading boot ID: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", fmt.Errorf("reading boot ID: %q is empty", path)
	}
	return id, nil
}
