// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TempPrefix starts the name of every temporary file of this package. The dot
// hides it from programs that watch a directory by pattern.
const TempPrefix = ".topodra-tmp-"

// Write replaces the file at path by data. The directory must exist. perm is
// set exactly, whatever the umask.
func Write(path string, data []byte, perm fs.FileMode) error {
	return write(path, perm, true, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Replace is Write without waiting for the disk: other processes see the old
// content or the new one, but a power failure can leave either, or a part. It is
// for what a reader can check and do without.
func Replace(path string, data []byte, perm fs.FileMode) error {
	return write(path, perm, false, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Copy replaces the file at path by what r delivers.
func Copy(path string, r io.Reader, perm fs.FileMode) error {
	return write(path, perm, true, func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// write does the work of Write, Replace and Copy.
func write(path string, perm fs.FileMode, durable bool, fill func(io.Writer) error) (finalErr error) {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, TempPrefix+"*")
	if err != nil {
		return fmt.Errorf("creating a temporary file for %q: %w", path, err)
	}
	defer func() {
		if finalErr != nil {
			finalErr = errors.Join(finalErr, ignoreMissing(os.Remove(temp.Name())))
		}
	}()
	err = fill(temp)
	if err == nil {
		err = temp.Chmod(perm)
	}
	if err == nil && durable {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("writing the new content of %q: %w", path, err)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("putting the new content of %q in place: %w", path, err)
	}
	if !durable {
		return nil
	}
	return SyncDir(dir)
}

// SyncDir makes renames, creations and removals in dir durable.
func SyncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening directory %q to sync it: %w", dir, err)
	}
	if err := errors.Join(handle.Sync(), handle.Close()); err != nil {
		return fmt.Errorf("syncing directory %q: %w", dir, err)
	}
	return nil
}

// Remove deletes the file at path and makes that durable. A file that is not
// there is no error.
func Remove(path string) error {
	switch err := os.Remove(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("removing %q: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// RemoveTemps deletes what a writer that died left in dir. The caller makes
// sure that no writer is at work there.
func RemoveTemps(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", dir, err)
	}
	var errs []error
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), TempPrefix) {
			errs = append(errs, ignoreMissing(os.Remove(filepath.Join(dir, entry.Name()))))
		}
	}
	return errors.Join(errs...)
}

// ignoreMissing turns "does not exist" into success.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// KeepNewest removes the entries of dir that start with prefix, but for the last keep
// of them in the order of their names. It is for files that were set aside under the
// time of day.
func KeepNewest(dir, prefix string, keep int) error {
	entries, err := os.ReadDir(dir) // in order of name
	if err != nil {
		return fmt.Errorf("listing files that were set aside: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			names = append(names, entry.Name())
		}
	}
	var errs []error
	for len(names) > keep {
		errs = append(errs, os.Remove(filepath.Join(dir, names[0])))
		names = names[1:]
	}
	return errors.Join(errs...)
}
