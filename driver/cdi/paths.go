// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// PathMap says where paths of the host are in the driver's own file system.
// Empty means that they are the same, as for a driver that runs on the host.
type PathMap []PathMapping

// PathMapping is one directory of the host that the driver sees elsewhere. Both
// paths are absolute.
type PathMapping struct{ Host, Local string }

// Validate checks that all paths are absolute.
func (m PathMap) Validate() error {
	for _, mapping := range m {
		if !filepath.IsAbs(mapping.Host) || !filepath.IsAbs(mapping.Local) {
			return fmt.Errorf("checking path map: %q as %q: both must be absolute", mapping.Host, mapping.Local)
		}
	}
	return nil
}

// Local returns where the driver finds a path of the host. Of several mappings
// the one with the longest host path counts.
func (m PathMap) Local(hostPath string) string {
	best, found := PathMapping{}, false
	for _, mapping := range m {
		host := filepath.Clean(mapping.Host)
		if below(hostPath, host) && (!found || len(host) > len(best.Host)) {
			best, found = PathMapping{Host: host, Local: mapping.Local}, true
		}
	}
	if !found {
		return hostPath
	}
	return filepath.Join(best.Local, strings.TrimPrefix(filepath.Clean(hostPath), best.Host))
}

// below says whether path is dir or in it.
func below(path, dir string) bool {
	path = filepath.Clean(path)
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

// maxLinks bounds the symbolic links that are followed for one path.
const maxLinks = 16

// exists looks for a path of the host. Links to absolute paths mean paths of
// the host, so they are followed here and not by the kernel.
func (m PathMap) exists(hostPath string) error {
	path := hostPath
	for range maxLinks {
		local := m.Local(path)
		info, err := os.Lstat(local)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return nil
		}
		target, err := os.Readlink(local)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return fmt.Errorf("%q leads through more than %d links", hostPath, maxLinks)
}

// Check looks for every host path of the spec and reports all that are missing.
func (m PathMap) Check(spec *specs.Spec) error {
	var errs []error
	for _, path := range HostPaths(spec) {
		if err := m.exists(path); err != nil {
			errs = append(errs, fmt.Errorf("host path %q: %w", path, err))
		}
	}
	for _, path := range guardSources(spec) {
		if _, err := os.Lstat(m.Local(path)); err == nil {
			errs = append(errs, fmt.Errorf("host path %q exists; remove it, its absence is what guards the limits", path))
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("host path %q: %w", path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("checking what the CDI spec refers to: %w", err)
	}
	return nil
}
