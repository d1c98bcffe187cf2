// SPDX-License-Identifier: Apache-2.0

// Package owners remembers which container has which GPUs, so that what is
// measured from outside can be told to somebody. One file per container, named
// by the runtime's ID, in a directory that no container sees.
//
// Files are written before a container starts and removed with it. They are a name
// for a measurement, and they keep the place of a claim that is gone while its
// container is still there. Limits come from claims, never from here: no container
// loses its limits by a file that is lost or damaged. List leaves it out and says so.
//
// Concurrency: safe for concurrent use, also by several processes. Allowed
// imports: the standard library, internal/atomicfile, k8s.io/apimachinery.
package owners

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/internal/atomicfile"
)

// Owner is a container with GPUs.
type Owner struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	Container string    `json:"container"`

	// GPUs in order of PCI address, as the container counts them.
	GPUs []GPU `json:"gpus"`

	// Paths of the host that are mounted in the container; Put keeps
	// those of the driver only, which lie below the parent of the store's
	// directory. A container that is made anew from its old description needs
	// them again.
	Paths []string `json:"paths,omitempty"`
}

// Uses says whether the container has a path in or below dir mounted.
func (o *Owner) Uses(dir string) bool {
	return slices.ContainsFunc(o.Paths, func(path string) bool { return below(path, dir) })
}

// Limited says whether any GPU has a limit.
func (o *Owner) Limited() bool {
	return slices.ContainsFunc(o.GPUs, func(g GPU) bool { return g.MemoryLimitMiB > 0 || g.CoresLimitPercent > 0 })
}

// below says whether path is dir or in it.
func below(path, dir string) bool {
	path, dir = filepath.Clean(path), filepath.Clean(dir)
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// GPU is what a container has of one GPU.
type GPU struct {
	UUID string `json:"uuid"`

	// Claims that it has it from, by name, in order.
	Claims []string `json:"claims"`

	// MemoryLimitMiB in units of 1,048,576 bytes and CoresLimitPercent; 0 is
	// without limit.
	MemoryLimitMiB    int64 `json:"memoryLimitMiB,omitempty"`
	CoresLimitPercent int64 `json:"coresLimitPercent,omitempty"`
}

// ext is the ending of our files.
const ext = ".json"

// maxSize bounds what is read; a container with 64 GPUs of 64 claims needs less.
const maxSize = 1 << 20

// Store is a directory of owners.
type Store struct{ dir string }

// NewStore returns the store in dir, which is made when it is needed.
func NewStore(dir string) *Store { return &Store{dir: dir} }

// path of a container's file.
func (s *Store) path(id string) (string, error) {
	if id == "" || strings.HasPrefix(id, ".") || strings.Contains(id, "/") {
		return "", fmt.Errorf("%q is no container ID", id)
	}
	return filepath.Join(s.dir, id+ext), nil
}

// Put remembers the owner of the container's GPUs.
func (s *Store) Put(id string, owner *Owner) error {
	path, err := s.path(id)
	if err != nil {
		return fmt.Errorf("remembering a container: %w", err)
	}
	kept := *owner
	kept.Paths = slices.DeleteFunc(slices.Clone(owner.Paths), func(path string) bool { return !below(path, filepath.Dir(s.dir)) })
	content, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("remembering container %q: %w", id, err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("remembering container %q: %w", id, err)
	}
	if err := atomicfile.Write(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("remembering container %q: %w", id, err)
	}
	return nil
}

// Remove forgets the container.
func (s *Store) Remove(id string) error {
	path, err := s.path(id)
	if err != nil {
		return fmt.Errorf("forgetting a container: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting container %q: %w", id, err)
	}
	return nil
}

// List returns all owners by container ID, and what could not be read.
func (s *Store) List() (map[string]*Owner, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]*Owner{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	out := map[string]*Owner{}
	var errs []error
	for _, entry := range entries {
		id, ours := strings.CutSuffix(entry.Name(), ext)
		if !ours || strings.HasPrefix(id, ".") {
			continue
		}
		owner, err := read(filepath.Join(s.dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // It has just gone.
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading the owner of container %q: %w", id, err))
			continue
		}
		out[id] = owner
	}
	return out, errors.Join(errs...)
}

// read reads one file.
func read(path string) (*Owner, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("it has %d bytes", info.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	owner := &Owner{}
	return owner, json.Unmarshal(content, owner)
}

// Retain forgets all containers that are not known, and removes what a process
// that was killed was writing. Nobody may be calling Put.
func (s *Store) Retain(known func(id string) bool) error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	errs := []error{atomicfile.RemoveTemps(s.dir)}
	for _, entry := range entries {
		if id, ours := strings.CutSuffix(entry.Name(), ext); ours && !strings.HasPrefix(id, ".") && !known(id) {
			errs = append(errs, s.Remove(id))
		}
	}
	return errors.Join(errs...)
}
