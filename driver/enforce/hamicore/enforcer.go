// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/topodra/topodra/driver/enforce"
)

// Name of this backend in checkpoints and statuses.
const Name = "hami-core"

// Options of an Enforcer.
type Options struct {
	// Source is the library as it came with the driver.
	Source string

	// Root is the directory on the host for installed versions. It must be
	// visible under the same path to the container runtime.
	Root string

	// Probe tells whether the installed library can be preloaded; nil trusts it.
	Probe func(ctx context.Context, library string) error
}

// Enforcer implements enforce.Enforcer.
type Enforcer struct {
	options Options

	mu   sync.Mutex
	dir  string
	held *os.File // keeps other processes from pruning dir
	err  error
}

var _ enforce.Enforcer = &Enforcer{}

// New returns an Enforcer that cannot enforce until Setup has succeeded.
func New(options Options) (*Enforcer, error) {
	if !filepath.IsAbs(options.Root) || filepath.Clean(options.Root) == "/" {
		return nil, fmt.Errorf("configuring HAMi-core: root %q is not an absolute path below /", options.Root)
	}
	return &Enforcer{options: options, err: errors.New("it has not been set up yet")}, nil
}

// Setup installs and probes the library. It may be called again, after a
// failure or to notice damage; a version that worked stays in use meanwhile.
func (e *Enforcer) Setup(ctx context.Context) error {
	dir, held, err := installHeld(e.options.Source, e.options.Root, thisArch)
	if err == nil && e.options.Probe != nil {
		if err = e.options.Probe(ctx, filepath.Join(dir, libraryName)); err != nil {
			err = errors.Join(fmt.Errorf("probing HAMi-core library: %w", err), held.Close())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		if e.held != nil {
			err = e.held.Close()
		}
		e.dir, e.held = dir, held
	}
	e.err = err
	return err
}

// Close lets other processes prune the version in use, as the end of the process
// does. The Enforcer cannot enforce any more, until Setup.
func (e *Enforcer) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.held
	e.dir, e.held, e.err = "", nil, errors.New("it was closed")
	if held == nil {
		return nil
	}
	return held.Close()
}

// Name implements enforce.Enforcer.
func (e *Enforcer) Name() string { return Name }

// NeedsNRI implements enforce.Enforcer: mounts and environment are enough.
func (e *Enforcer) NeedsNRI() bool { return false }

// OwnsEnv implements enforce.Enforcer.
func (e *Enforcer) OwnsEnv(name string) bool { return ownsEnv(name) }

// Check implements enforce.Enforcer: the last Setup succeeded and its files are
// still there.
func (e *Enforcer) Check(context.Context) error {
	dir, err := e.state()
	if err != nil {
		return fmt.Errorf("HAMi-core cannot limit containers on this node: %w", err)
	}
	for _, name := range []string{libraryName, preloadName, overrideName} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("HAMi-core cannot limit containers on this node: looking at its files: %w", err)
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("HAMi-core cannot limit containers on this node: %q is no regular file", filepath.Join(dir, name))
		}
	}
	return nil
}

// state returns the directory in use.
func (e *Enforcer) state() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dir, e.err
}

// Dir is the host directory of the version in use; "" before the first Setup.
func (e *Enforcer) Dir() string {
	dir, _ := e.state() // only the directory matters here
	return dir
}

// Edits implements enforce.Enforcer.
func (e *Enforcer) Edits(container *enforce.Container) (enforce.Edits, error) {
	if !container.Limited() {
		return enforce.Edits{}, nil
	}
	dir, err := e.state()
	if err != nil {
		return enforce.Edits{}, fmt.Errorf("HAMi-core cannot limit containers on this node: %w", err)
	}
	return edits(container, dir)
}

// Provision implements enforce.Enforcer: it makes the region directory and, in
// it, the file. Any user of the container may write there, which is how the
// library works; the sticky bit keeps them from removing each other's file. A
// file that is there already may be in use and stays as it is.
func (e *Enforcer) Provision(_ context.Context, container *enforce.Container) error {
	if !container.Limited() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(container.RegionDir), 0o755); err != nil {
		return fmt.Errorf("making region directory: %w", err)
	}
	if err := os.Mkdir(container.RegionDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making region directory: %w", err)
	}
	info, err := os.Lstat(container.RegionDir)
	if err != nil {
		return fmt.Errorf("looking at region directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("looking at region directory: %q is no directory", container.RegionDir)
	}
	if err := os.Chmod(container.RegionDir, 0o777|fs.ModeSticky); err != nil {
		return fmt.Errorf("opening region directory: %w", err)
	}
	if err := reserve(filepath.Join(container.RegionDir, RegionFile)); err != nil {
		return fmt.Errorf("reserving space for the region: %w", err)
	}
	return nil
}

// regionSize is the length that the library gives the file: its structure of
// 2,008,952 bytes in layout 1.2, and the one byte behind it that it writes.
const regionSize = 2008953

// reserve makes the file with all its blocks. The library itself makes a file
// with holes and maps it, so that on a full file system it is a signal that ends
// the tenant's process; like this it is an error before there is one. Zeros are
// what the library finds in a file that it has made, and takes for a region that
// is yet to be filled in.
func reserve(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = allocate(file)
	if err == nil {
		err = file.Chmod(0o666)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// allocate fills the empty file with zeros that have a place on the disk.
func allocate(file *os.File) error {
	err := syscall.Fallocate(int(file.Fd()), 0, 0, regionSize)
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		return err
	}
	_, err = file.Write(make([]byte, regionSize))
	return err
}

// Start implements enforce.Enforcer: the library starts with the container.
func (e *Enforcer) Start(context.Context, *enforce.Container, string) error { return nil }

// Prune removes installed versions that no process has in use and that inUse,
// which gets the directory of a version, does not claim either.
func (e *Enforcer) Prune(inUse func(dir string) bool) error {
	current := e.Dir()
	return prune(e.options.Root, func(dir string) bool { return dir == current || inUse(dir) })
}

// isNotEmpty says whether a rename failed because its target has content.
func isNotEmpty(err error) bool { return errors.Is(err, syscall.ENOTEMPTY) }
