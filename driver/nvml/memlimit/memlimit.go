// SPDX-License-Identifier: Apache-2.0

// Package memlimit sets the CUDA memory limit of a cgroup by NVML, for
// driver/enforce/nvmllimit.
//
// The calls are newer than the oldest supported driver, and go-nvml ends the
// process when it calls a function that the loaded library lacks. So every call
// looks for its symbol first.
//
// Each call opens the library and closes it: NVML counts, so others are not
// disturbed, and a driver that was loaded anew is found.
//
// Concurrency: as NVML itself, safe for concurrent use.
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

// Limiter sets limits through NVML.
type Limiter struct{ lib nvml.Interface }

// New returns a Limiter on lib.
func New(lib nvml.Interface) *Limiter { return &Limiter{lib: lib} }

// Supported looks for the symbols.
func (l *Limiter) Supported() error {
	return l.open(func() error { return nil })
}

// SetMemoryLimit sets the soft and the hard limit of the cgroup on the GPU.
func (l *Limiter) SetMemoryLimit(uuid, cgroup string, bytes uint64) error {
	return l.open(func() error {
		device, err := l.device(uuid)
		if err != nil {
			return err
		}
		return asError(device.SetMemoryLimits_v1(cgroup, bytes, bytes))
	})
}

// MemoryLimit reads the hard limit of the cgroup on the GPU.
func (l *Limiter) MemoryLimit(uuid, cgroup string) (bytes uint64, err error) {
	err = l.open(func() error {
		device, err := l.device(uuid)
		if err != nil {
			return err
		}
		limits, ret := device.GetMemoryLimits_v1(cgroup)
		bytes = limits.HardLimit
		return asError(ret)
	})
	return bytes, err
}

// open opens the library, looks for the symbols, calls act and closes it.
func (l *Limiter) open(act func() error) (finalErr error) {
	if err := asError(l.lib.Init()); err != nil {
		return fmt.Errorf("opening the library: %w", err)
	}
	defer func() { finalErr = errors.Join(finalErr, asError(l.lib.Shutdown())) }()
	for _, symbol := range []string{symbolSet, symbolGet} {
		if err := l.lib.Extensions().LookupSymbol(symbol); err != nil {
			return fmt.Errorf("the installed NVML is too old: looking for %q: %w", symbol, err)
		}
	}
	return act()
}

// device finds the GPU.
func (l *Limiter) device(uuid string) (nvml.Device, error) {
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
