// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/topodra/topodra/internal/atomicfile"
)

const (
	// FileName is the name of the document in the state directory.
	FileName = "health.json"

	// asidePrefix starts the names of files that were set aside.
	asidePrefix = "health.corrupt-"

	// maxAside is how many of those are kept; the oldest go first.
	maxAside = 5
)

// Store is the document in a state directory.
type Store struct {
	dir, nodeName string
	last          []byte
}

var _ Saver = &Store{}

// NewStore returns the store in dir, which must exist, for the node.
func NewStore(dir, nodeName string) *Store { return &Store{dir: dir, nodeName: nodeName} }

// Path of the file.
func (s *Store) Path() string { return filepath.Join(s.dir, FileName) }

// Load reads the document. A missing file is an empty document. A file that is no
// document of this node is set aside, and the document is empty, too: problem then
// says why, and where the file is. What was seen in another boot is dropped, but
// not conditions: it takes clean looks to end those.
func (s *Store) Load(bootID string, now time.Time) (document *Document, problem, err error) {
	content, err := os.ReadFile(s.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return NewDocument(s.nodeName, bootID), nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the health of GPUs: %w", err)
	}
	document, problem = Decode(content)
	if problem == nil && document.NodeName != s.nodeName {
		problem = fmt.Errorf("reading the health of GPUs: it belongs to node %q, this is node %q", document.NodeName, s.nodeName)
	}
	if problem != nil {
		aside := filepath.Join(s.dir, asidePrefix+now.UTC().Format("20060102T150405.000000000"))
		if err := os.Rename(s.Path(), aside); err != nil {
			return nil, nil, fmt.Errorf("setting aside the health of GPUs: %w", err)
		}
		return NewDocument(s.nodeName, bootID), fmt.Errorf("%w; the file is set aside as %q", problem, aside), atomicfile.KeepNewest(s.dir, asidePrefix, maxAside)
	}
	if document.BootID != bootID {
		fresh := NewDocument(s.nodeName, bootID)
		fresh.Conditions = document.Conditions
		document = fresh
	}
	return document, nil, nil
}

// Save replaces the file. Calls are made one at a time.
func (s *Store) Save(d *Document) error {
	content, err := Encode(d)
	if err != nil {
		return err
	}
	if bytes.Equal(content, s.last) {
		return nil
	}
	if err := atomicfile.Write(s.Path(), content, 0o600); err != nil {
		return fmt.Errorf("saving the health of GPUs: %w", err)
	}
	s.last = content
	return nil
}
