// SPDX-License-Identifier: Apache-2.0

// Package nvmllimit keeps memory limits with the GPU driver itself: newer ones
// limit how much CUDA memory the processes of a cgroup get on a GPU, which no
// program inside the container can get around. It limits memory only; a share
// with a compute limit is refused rather than left unlimited.
//
// It has to act between the making of the container's cgroup and its first
// process, so it needs NRI, and cgroup v2, which is all that the GPU driver
// knows.
//
// Concurrency: safe for concurrent use if the Limiter is. Allowed imports: the
// standard library, driver/enforce.
package nvmllimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/topodra/topodra/driver/enforce"
)

// Name of this backend in checkpoints and statuses.
const Name = "nvml-memory-limit"

// Limiter is what the backend needs of NVML.
type Limiter interface {
	// Supported says whether the loaded driver has the call; the error tells
	// what is missing.
	Supported() error

	// SetMemoryLimit limits the processes in the cgroup, an absolute path, to
	// bytes on the GPU.
	SetMemoryLimit(uuid, cgroup string, bytes uint64) error

	// MemoryLimit reads the limit back.
	MemoryLimit(uuid, cgroup string) (bytes uint64, err error)
}

// Enforcer implements enforce.Enforcer.
type Enforcer struct {
	limiter Limiter

	// cgroupRoot is where cgroups are mounted, usually /sys/fs/cgroup.
	cgroupRoot string
}

var _ enforce.Enforcer = &Enforcer{}

// New returns the backend over limiter.
func New(limiter Limiter, cgroupRoot string) *Enforcer {
	return &Enforcer{limiter: limiter, cgroupRoot: cgroupRoot}
}

// Name implements enforce.Enforcer.
func (e *Enforcer) Name() string { return Name }

// NeedsNRI implements enforce.Enforcer.
func (e *Enforcer) NeedsNRI() bool { return true }

// OwnsEnv implements enforce.Enforcer: nothing in the environment matters.
func (e *Enforcer) OwnsEnv(string) bool { return false }

// Check implements enforce.Enforcer.
func (e *Enforcer) Check(context.Context) error {
	if _, err := os.Stat(filepath.Join(e.cgroupRoot, "cgroup.controllers")); err != nil {
		return fmt.Errorf("the GPU driver limits only cgroups of version 2: %w", err)
	}
	if err := e.limiter.Supported(); err != nil {
		return fmt.Errorf("the GPU driver cannot limit the memory of a cgroup: %w", err)
	}
	return nil
}

// Edits implements enforce.Enforcer: the container itself stays as it is.
func (e *Enforcer) Edits(container *enforce.Container) (enforce.Edits, error) {
	for _, gpu := range container.GPUs {
		if gpu.Limit != nil && gpu.Limit.CoresPercent > 0 && gpu.Limit.CoresPercent < 100 {
			return enforce.Edits{}, fmt.Errorf("the share of GPU %q has %d%% of its cores, but %s limits memory only; "+
				"leave out cores or use another enforcement", gpu.UUID, gpu.Limit.CoresPercent, Name)
		}
	}
	return enforce.Edits{}, nil
}

// Provision implements enforce.Enforcer: nothing is needed on the host.
func (e *Enforcer) Provision(context.Context, *enforce.Container) error { return nil }

// Start implements enforce.Enforcer: it sets each limit and reads it back. The
// limits go with the cgroup.
func (e *Enforcer) Start(_ context.Context, container *enforce.Container, cgroup string) error {
	if !container.Limited() {
		return nil
	}
	if cgroup == "" {
		return errors.New("limiting GPU memory: the container's cgroup is unknown")
	}
	path := filepath.Join(e.cgroupRoot, cgroup)
	if info, err := os.Stat(path); err != nil {
		return fmt.Errorf("limiting GPU memory: looking for the container's cgroup: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("limiting GPU memory: cgroup %q is no directory", path)
	}
	for _, gpu := range container.GPUs {
		if gpu.Limit == nil {
			continue
		}
		want := uint64(gpu.Limit.MemoryMiB) << 20
		if err := e.limiter.SetMemoryLimit(gpu.UUID, path, want); err != nil {
			return fmt.Errorf("limiting memory of GPU %q in cgroup %q: %w", gpu.UUID, path, err)
		}
		got, err := e.limiter.MemoryLimit(gpu.UUID, path)
		if err != nil {
			return fmt.Errorf("reading back the memory limit of GPU %q in cgroup %q: %w", gpu.UUID, path, err)
		}
		if got != want {
			return fmt.Errorf("limiting memory of GPU %q in cgroup %q: set %d bytes, the driver says %d", gpu.UUID, path, want, got)
		}
	}
	return nil
}
