// SPDX-License-Identifier: Apache-2.0

// Package memlimit sets the CUDA memory limit of a cgroup by NVML, for
// driver/enforce/nvmllimit.
//
// The calls are newer than the oldest supported driver, and go-nvml ends the
// process when it calls a function that the loaded library lacks. So every call
// looks for its symbol first.
//
// Concurrency: as NVML itself, safe for concurrent use while the library stays
// initialised, which is the caller's business.
//
// Allowed imports: the standard library, go-nvml.
package memlimit

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Symbols of the library that the calls need.
const (
	symbolSet = "nvmlDeviceSetMemoryLimits_v1"
	symbolGet = "nvmlDeviceGetMemoryLimits_v1"
)

// Limiter sets limits through an initialised NVML.
type Limiter struct{ lib nvml.Interface }

// New returns a Limiter on lib.
func New(lib nvml.Interface) *Limiter { return &Limiter{lib: lib} }

// Supported looks for the symbols.
func (l *Limiter) Supported() error {
	for _, symbol := range []string{symbolSet, symbolGet} {
		if err := l.lib.Extensions().LookupSymbol(symbol); err != nil {
			return fmt.Errorf("the installed NVML is too old: looking for %q: %w", symbol, err)
		}
	}
	return nil
}

// SetMemoryLimit sets the soft and the hard limit of the cgroup on the GPU.
func (l *Limiter) SetMemoryLimit(uuid, cgroup string, bytes uint64) error {
	device, err := l.device(uuid)
	if err != nil {
		return err
	}
	return asError(device.SetMemoryLimits_v1(cgroup, bytes, bytes))
}

// MemoryLimit reads the hard limit of the cgroup on the GPU.
func (l *Limiter) MemoryLimit(uuid, cgroup string) (uint64, error) {
	device, err := l.device(uuid)
	if err != nil {
		return 0, err
	}
	limits, ret := device.GetMemoryLimits_v1(cgroup)
	return limits.HardLimit, asError(ret)
}

// device finds the GPU after looking for the symbols.
func (l *Limiter) device(uuid string) (nvml.Device, error) {
	if err := l.Supported(); err != nil {
		return nil, err
	}
	device, ret := l.lib.DeviceGetHandleByUUID(uuid)
	if err := asError(ret); err != nil {
		return nil, fmt.Errorf("finding GPU %q: %w", uuid, err)
	}
	return device, nil
}

// asError turns NVML's return value into an error.
func asError(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("NVML: not supported by this GPU or driver: %w", errors.ErrUnsupported)
	default:
		return fmt.Errorf("NVML: %w", ret)
	}
}
