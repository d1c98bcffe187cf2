// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/internal/owners"
)

// pruner is an enforcer that has versions of something on the host.
type pruner interface {
	// Prune removes the versions of which inUse, asked for the directory of each,
	// says that nobody needs them.
	Prune(inUse func(dir string) bool) error
}

// pruneAfter is how long nobody may have used a version before it goes. Between
// the moment in which a runtime reads a CDI spec and the one in which it starts the
// container, only the runtime knows of the use. That is seconds.
const pruneAfter = 10 * time.Minute

// versions removes what an enforcer has installed and nobody uses any more: neither
// a driver, nor a CDI spec, nor a container that the runtime knows. It belongs to
// one goroutine.
type versions struct {
	enforcer enforce.Enforcer
	cdiDir   string
	owners   *owners.Store
	now      func() time.Time

	// unusedSince is when a version was first found unused.
	unusedSince map[string]time.Time
}

// prune looks once. Where it is not certain what is in use, nothing is removed.
func (v *versions) prune(ctx context.Context) {
	enforcer, ok := v.enforcer.(pruner)
	if !ok {
		return
	}
	inUse, err := v.inUse()
	if err != nil {
		klog.FromContext(ctx).Error(err, "It is not certain which versions are in use of what limits containers, so all are kept", "enforcer", v.enforcer.Name())
		return
	}
	now, unused := v.now(), map[string]time.Time{}
	err = enforcer.Prune(func(dir string) bool {
		if inUse(dir) {
			return true
		}
		since, before := v.unusedSince[dir]
		if !before {
			since = now
		}
		unused[dir] = since
		return now.Sub(since) < pruneAfter
	})
	v.unusedSince = unused
	if err != nil {
		klog.FromContext(ctx).Error(err, "Removing old versions of what limits containers failed; trying again", "enforcer", v.enforcer.Name())
	}
}

// inUse finds out which directories specs and containers refer to.
func (v *versions) inUse() (func(dir string) bool, error) {
	paths, err := v.specPaths()
	if err != nil {
		return nil, err
	}
	containers, err := v.owners.List()
	if err != nil {
		return nil, err
	}
	for id, owner := range containers {
		if owner.Limited() && len(owner.Paths) == 0 {
			return nil, fmt.Errorf("the record of container %q does not say what it has mounted", id)
		}
	}
	return func(dir string) bool {
		for _, path := range paths {
			if strings.HasPrefix(filepath.Clean(path), filepath.Clean(dir)+"/") {
				return true
			}
		}
		for _, owner := range containers {
			if owner.Uses(dir) {
				return true
			}
		}
		return false
	}, nil
}

// specPaths are the paths of the host in all CDI specs of claims.
func (v *versions) specPaths() ([]string, error) {
	specs, err := cdi.NewDir(v.cdiDir)
	if err != nil {
		return nil, err
	}
	claims, err := specs.List()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, claim := range claims {
		spec, err := specs.Read(claim)
		if errors.Is(err, fs.ErrNotExist) {
			continue // It has just gone.
		}
		if err != nil {
			return nil, err
		}
		paths = append(paths, cdi.HostPaths(spec)...)
	}
	return paths, nil
}
