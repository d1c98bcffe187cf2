// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/internal/atomicfile"
)

// Host is every effect that preparing has on the node. Each method is
// idempotent; after an error its effect is there in full, not at all, or in a
// way that calling it again repairs.
type Host interface {
	// Lock excludes other calls and processes.
	Lock(ctx context.Context) (unlock func() error, err error)

	// Load, SaveIntent, Save and SetAside are those of checkpoint.Store.
	Load() (*checkpoint.Document, error)
	SaveIntent(document *checkpoint.Document) error
	Save(document *checkpoint.Document) error
	SetAside(now time.Time) (string, error)

	// BootID tells boots apart.
	BootID() (string, error)

	// CheckPaths looks for what the spec refers to.
	CheckPaths(spec *specs.Spec) error

	// WriteSpec, RemoveSpec and ListSpecs are those of cdi.Dir.
	WriteSpec(claim types.UID, spec *specs.Spec) error
	RemoveSpec(claim types.UID) error
	ListSpecs() ([]types.UID, error)

	// Provision makes what the container needs on the host.
	Provision(ctx context.Context, container *enforce.Container) error

	// RemoveClaimRegions removes the regions of the claim's containers;
	// ListClaimRegions lists the claims that have some.
	RemoveClaimRegions(claim types.UID) error
	ListClaimRegions() ([]types.UID, error)

	// SetRegionsAside takes the regions of all containers out of the way, however
	// much is in them. RemoveSetAside removes what has been set aside; nobody else
	// uses that, so the caller needs no lock.
	SetRegionsAside() error
	RemoveSetAside() error

	// RemoveTemps removes what a driver that was killed has left while it wrote.
	// The caller holds the lock, so nobody writes now.
	RemoveTemps() error
}

// node implements Host on a real file system.
type node struct {
	*checkpoint.Store
	dir        *cdi.Dir
	paths      cdi.PathMap
	enforcer   enforce.Enforcer
	where      layout
	stateDir   string
	bootIDPath string
}

func (n *node) BootID() (string, error)           { return checkpoint.ReadBootID(n.bootIDPath) }
func (n *node) CheckPaths(spec *specs.Spec) error { return n.paths.Check(spec) }

func (n *node) WriteSpec(claim types.UID, spec *specs.Spec) error { return n.dir.Write(claim, spec) }
func (n *node) RemoveSpec(claim types.UID) error                  { return n.dir.Remove(claim) }
func (n *node) ListSpecs() ([]types.UID, error)                   { return n.dir.List() }

func (n *node) Provision(ctx context.Context, container *enforce.Container) error {
	return n.enforcer.Provision(ctx, container)
}

func (n *node) RemoveClaimRegions(claim types.UID) error {
	if name := string(claim); name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return fmt.Errorf("removing region directories: %q is no claim UID", claim)
	}
	return removeTree(n.where.claimRegions(claim))
}

func (n *node) ListClaimRegions() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Dir(n.where.claimRegions("x")))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing region directories: %w", err)
	}
	out := make([]types.UID, 0, len(entries))
	for _, entry := range entries {
		out = append(out, types.UID(entry.Name()))
	}
	return out, nil
}

// earlierPrefix begins the names of directories beside the regions in which those of
// earlier boots are. They are on the same file system even if the regions have one
// of their own.
const earlierPrefix = "earlier-boot-"

func (n *node) SetRegionsAside() error {
	entries, err := os.ReadDir(n.where.regions)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting the regions of an earlier boot aside: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(entry fs.DirEntry) bool { return strings.HasPrefix(entry.Name(), earlierPrefix) })
	if len(entries) == 0 {
		return nil
	}
	aside, err := os.MkdirTemp(n.where.regions, earlierPrefix)
	if err != nil {
		return fmt.Errorf("setting the regions of an earlier boot aside: %w", err)
	}
	for _, entry := range entries {
		if err := os.Rename(filepath.Join(n.where.regions, entry.Name()), filepath.Join(aside, entry.Name())); err != nil {
			return fmt.Errorf("setting the regions of an earlier boot aside: %w", err)
		}
	}
	return nil
}

func (n *node) RemoveSetAside() error {
	entries, err := os.ReadDir(n.where.regions)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for regions of earlier boots: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), earlierPrefix) {
			errs = append(errs, removeTree(filepath.Join(n.where.regions, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

func (n *node) RemoveTemps() error {
	return errors.Join(atomicfile.RemoveTemps(n.stateDir), n.dir.RemoveStale())
}

// removeTree removes a directory with content that tenants made. os.RemoveAll
// does not follow links.
func removeTree(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing region directories: %w", err)
	}
	return nil
}
