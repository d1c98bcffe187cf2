// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// specExt is the ending of our files. JSON, since the CDI library reads it
// strictly and people's editors show it alike.
const specExt = ".json"

// stagingPrefix starts the names of directories in which specs are written.
// Runtimes do not look into directories.
const stagingPrefix = ".topodra-staging-"

// Dir is the directory from which the container runtime reads CDI specs.
type Dir struct{ path string }

// NewDir returns the directory at an absolute path; it is made when the first
// spec is written.
func NewDir(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("configuring CDI: directory %q is not absolute", path)
	}
	return &Dir{path: filepath.Clean(path)}, nil
}

// Path of the claim's spec.
func (d *Dir) Path(claim types.UID) string {
	return filepath.Join(d.path, cdi.GenerateTransientSpecName(Vendor, Class, string(claim))+specExt)
}

// Write puts the spec in place, atomically, and reads it back. Its content is on
// the disk before it has its name; when the name is, is left to the kernel: after
// a power failure the spec may be missing, as it is in a directory in memory, and
// then it is written again before any container of that boot needs it. Nothing is
// written when the same spec is there already.
func (d *Dir) Write(claim types.UID, spec *specs.Spec) error {
	if claim == "" || strings.ContainsAny(string(claim), "/"+separator) {
		return fmt.Errorf("writing CDI spec: %q is no claim UID", claim)
	}
	if have, err := d.Read(claim); err == nil && equal(have, spec) {
		return nil
	}
	if err := d.write(claim, spec); err != nil {
		return fmt.Errorf("writing CDI spec of claim %q: %w", claim, err)
	}
	have, err := d.Read(claim)
	if err != nil {
		return fmt.Errorf("reading back CDI spec of claim %q: %w", claim, err)
	}
	if !equal(have, spec) {
		return fmt.Errorf("reading back CDI spec of claim %q: %q differs from what was written", claim, d.Path(claim))
	}
	return nil
}

// write has the CDI library validate and write the spec in a directory of its
// own, and renames it into place once it is on the disk. The library would rename
// it, too, but then a power failure could leave half a spec under the full name,
// and it reads all specs of a directory before it writes one. Runtimes that watch
// the directory hear of one change.
func (d *Dir) write(claim types.UID, spec *specs.Spec) (finalErr error) {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return err
	}
	staging, err := os.MkdirTemp(d.path, stagingPrefix)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, os.RemoveAll(staging)) }()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(staging), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	path := d.Path(claim)
	staged := filepath.Join(staging, filepath.Base(path))
	if err := cache.WriteSpec(spec, filepath.Base(path)); err != nil {
		return err
	}
	// The library's file is private; a runtime that is not root reads, too.
	if err := os.Chmod(staged, 0o644); err != nil {
		return err
	}
	file, err := os.Open(staged)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(staged, path)
}

// Read loads and validates the claim's spec by the CDI library. A spec that is
// not there is fs.ErrNotExist.
func (d *Dir) Read(claim types.UID) (*specs.Spec, error) {
	spec, err := cdi.ReadSpec(d.Path(claim), 0)
	if err != nil {
		return nil, fmt.Errorf("reading CDI spec of claim %q: %w", claim, err)
	}
	if spec.GetVendor() != Vendor || spec.GetClass() != Class {
		return nil, fmt.Errorf("reading CDI spec of claim %q: its kind is %q", claim, spec.Kind)
	}
	return spec.Spec, nil
}

// Remove deletes the claim's spec if there is one. After a power failure it may be
// back; reconciliation then removes it as one that nobody knows.
func (d *Dir) Remove(claim types.UID) error {
	if claim == "" || strings.ContainsAny(string(claim), "/"+separator) {
		return fmt.Errorf("removing CDI spec: %q is no claim UID", claim)
	}
	if err := os.Remove(d.Path(claim)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing CDI spec of claim %q: %w", claim, err)
	}
	return nil
}

// List returns the claims that have a spec, readable or not, in order. Files of
// others are left out.
func (d *Dir) List() ([]types.UID, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing CDI specs: %w", err)
	}
	prefix := cdi.GenerateTransientSpecName(Vendor, Class, "")
	var out []types.UID
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), prefix)
		uid, complete := strings.CutSuffix(rest, specExt)
		if ours && complete && uid != "" && !strings.Contains(uid, separator) {
			out = append(out, types.UID(uid))
		}
	}
	slices.Sort(out)
	return out, nil
}

// RemoveStale removes what a driver that was killed while it wrote a spec has
// left. Nobody may be writing.
func (d *Dir) RemoveStale() error {
	paths, err := filepath.Glob(filepath.Join(d.path, stagingPrefix+"*"))
	if err != nil {
		return fmt.Errorf("looking for unfinished CDI specs: %w", err)
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// equal compares specs by what they say on disk.
func equal(a, b *specs.Spec) bool {
	first, errA := json.Marshal(a)
	second, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(first, second)
}
