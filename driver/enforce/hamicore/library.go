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

// install puts the library at source below root and returns its directory. It
// does nothing when that version is there and intact.
func install(source, root, arch string) (dir string, err error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("reading HAMi-core library: %w", err)
	}
	if err := checkLibrary(content, arch); err != nil {
		return "", fmt.Errorf("checking HAMi-core library %q: %w", source, err)
	}
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
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("making the directory of HAMi-core versions: %w", err)
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

// prune removes versions that inUse does not claim, and what an installation
// that died has left. A container that runs keeps its mount; one that starts
// again from a CDI spec needs the path, so inUse must know about specs.
func prune(root string, inUse func(dir string) bool) error {
	parent := filepath.Join(root, libDir)
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing HAMi-core versions: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		if strings.HasPrefix(entry.Name(), installTempPrefix) || !inUse(dir) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}
