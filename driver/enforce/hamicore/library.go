// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/topodra/topodra/internal/atomicfile"
)

// versionLength is how many digits of the content's hash name a version.
const versionLength = 16

// libDir is the directory of versions below the root.
const libDir = "lib"

// installTempPrefix starts the names of directories that are not complete yet.
const installTempPrefix = ".install-"

// machines maps runtime.GOARCH to the machine in an ELF header.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// thisArch is the architecture of this process.
const thisArch = runtime.GOARCH

// checkLibrary says whether content is a shared library for this machine.
func checkLibrary(content []byte, arch string) error {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("it is no ELF file: %w", err)
	}
	defer func() { _ = file.Close() }() // nothing is open behind a reader on bytes
	want, known := machines[arch]
	switch {
	case !known:
		return fmt.Errorf("HAMi-core is not known to work on architecture %q", arch)
	case file.Machine != want:
		return fmt.Errorf("it is built for %v, this machine is %v", file.Machine, want)
	case file.Type != elf.ET_DYN:
		return fmt.Errorf("it is of type %v, a shared library is %v", file.Type, elf.ET_DYN)
	}
	return nil
}

// readLibrary reads the library and makes sure that it is one for this machine.
func readLibrary(source, arch string) ([]byte, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return nil, fmt.Errorf("reading HAMi-core library: %w", err)
	}
	if err := checkLibrary(content, arch); err != nil {
		return nil, fmt.Errorf("checking HAMi-core library %q: %w", source, err)
	}
	return content, nil
}

// install puts the library with the content below root and returns its directory.
// It does nothing when that version is there and intact.
func install(content []byte, root string) (dir string, err error) {
	sum := sha256.Sum256(content)
	dir = filepath.Join(root, libDir, hex.EncodeToString(sum[:])[:versionLength])
	files := map[string][]byte{
		libraryName:  content,
		preloadName:  []byte(ContainerLibrary + "\n"),
		overrideName: nil,
	}
	removeStaleInstalls(filepath.Dir(dir), time.Now())
	if verify(dir, files) == nil {
		return dir, nil
	}
	if err := place(dir, files); err != nil {
		return "", fmt.Errorf("installing HAMi-core library into %q: %w", dir, err)
	}
	return dir, nil
}

// staleAfter is when an installation cannot be under way any more.
const staleAfter = 10 * time.Minute

// removeStaleInstalls removes what installations that were killed have left. It
// is a matter of a few megabytes, so a failure is no reason not to go on.
func removeStaleInstalls(parent string, now time.Time) {
	paths, err := filepath.Glob(filepath.Join(parent, installTempPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.RemoveAll(path)
		}
	}
}

// verify compares a version on the host with what it must be.
func verify(dir string, files map[string][]byte) error {
	for _, name := range []string{libraryName, preloadName, overrideName} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, files[name]) {
			return fmt.Errorf("%q differs from what was installed", filepath.Join(dir, name))
		}
	}
	return nil
}

// place makes dir with the files, in one step.
func place(dir string, files map[string][]byte) (finalErr error) {
	temp, err := os.MkdirTemp(filepath.Dir(dir), installTempPrefix)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, os.RemoveAll(temp)) }()
	if err := fill(temp, files); err != nil {
		return err
	}
	// A directory cannot replace one that is not empty.
	switch err := os.Rename(temp, dir); {
	case err == nil:
		return atomicfile.SyncDir(filepath.Dir(dir))
	case errors.Is(err, fs.ErrExist) || isNotEmpty(err):
		// Another process was faster, or the version is damaged. Files are
		// replaced one by one by renames: a process that has the old one mapped
		// keeps it.
		if verify(dir, files) == nil {
			return nil
		}
		return fill(dir, files)
	default:
		return err
	}
}

// fill writes the files into dir and opens it for reading by everybody.
func fill(dir string, files map[string][]byte) error {
	for _, name := range []string{libraryName, preloadName, overrideName} {
		perm := fs.FileMode(0o444)
		if name == libraryName {
			perm = 0o555
		}
		if err := atomicfile.Write(filepath.Join(dir, name), files[name], perm); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o755)
}

// prune removes versions that neither inUse claims nor a process holds. A container
// that runs keeps what it has mounted; one that is about to start needs the path,
// so inUse must know about those. While others install, nothing is done.
func prune(root string, inUse func(dir string) bool) (finalErr error) {
	parent := filepath.Join(root, libDir)
	handle, err := lockDir(parent, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing old HAMi-core versions: %w", err)
	}
	defer func() { finalErr = errors.Join(finalErr, handle.Close()) }()
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("listing HAMi-core versions: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		// What is being installed has no name of a version yet, or no more.
		if dir := filepath.Join(parent, entry.Name()); !strings.HasPrefix(entry.Name(), installTempPrefix) && !inUse(dir) {
			if err := remove(dir); err != nil {
				errs = append(errs, fmt.Errorf("removing old HAMi-core version %q: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

// remove takes a version away unless a process holds it. It loses its name first,
// so that no half of it is ever found under it.
func remove(dir string) (finalErr error) {
	handle, err := lockDir(dir, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, handle.Close()) }()
	doomed := filepath.Join(filepath.Dir(dir), installTempPrefix+"removed-"+filepath.Base(dir))
	if err := os.RemoveAll(doomed); err != nil { // what is left of an earlier try
		return err
	}
	if err := os.Rename(dir, doomed); err != nil {
		return err
	}
	return os.RemoveAll(doomed)
}

// installHeld installs the library and keeps other processes from pruning it until
// the file that it returns is closed, with the process at the latest.
func installHeld(source, root, arch string) (dir string, held *os.File, finalErr error) {
	content, err := readLibrary(source, arch)
	if err != nil {
		return "", nil, err
	}
	parent := filepath.Join(root, libDir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, fmt.Errorf("making the directory of HAMi-core versions: %w", err)
	}
	handle, err := lockDir(parent, syscall.LOCK_SH)
	if err != nil {
		return "", nil, fmt.Errorf("installing HAMi-core library: %w", err)
	}
	defer func() { finalErr = errors.Join(finalErr, handle.Close()) }()
	if dir, err = install(content, root); err != nil {
		return "", nil, err
	}
	if held, err = lockDir(dir, syscall.LOCK_SH); err != nil {
		return "", nil, fmt.Errorf("keeping HAMi-core version %q: %w", dir, err)
	}
	return dir, held, nil
}

// lockDir takes a lock of flock(2) on a directory, until the file is closed.
func lockDir(dir string, how int) (*os.File, error) {
	handle, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(handle.Fd()), how); err != nil {
		return nil, errors.Join(err, handle.Close())
	}
	return handle, nil
}
