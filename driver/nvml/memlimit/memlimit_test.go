// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/topodra/topodra/driver/enforce/nvmllimit"
)

var _ nvmllimit.Limiter = &Limiter{}

// library is a mock with one GPU; missing is a symbol that it lacks.
func library(missing string, ret nvml.Return) (*mock.Interface, map[string]uint64) {
	limits := map[string]uint64{}
	device := &mock.Device{
		SetMemoryLimits_v1Func: func(cgroup string, soft, hard uint64) nvml.Return {
			if ret == nvml.SUCCESS {
				limits[cgroup+" soft"], limits[cgroup+" hard"] = soft, hard
			}
			return ret
		},
		GetMemoryLimits_v1Func: func(cgroup string) (nvml.MemoryLimits_v1, nvml.Return) {
			return nvml.MemoryLimits_v1{SoftLimit: limits[cgroup+" soft"], HardLimit: limits[cgroup+" hard"]}, ret
		},
	}
	return &mock.Interface{
		InitFunc:     func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if name == missing {
					return errors.New("undefined symbol")
				}
				return nil
			}}
		},
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			if uuid != "GPU-1" {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return device, nvml.SUCCESS
		},
	}, limits
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	lib, limits := library("", nvml.SUCCESS)
	limiter := New(lib)
	if err := limiter.SetMemoryLimit("GPU-1", "/sys/fs/cgroup/a", 5<<20); err != nil {
		t.Fatal(err)
	}
	if limits["/sys/fs/cgroup/a soft"] != 5<<20 || limits["/sys/fs/cgroup/a hard"] != 5<<20 {
		t.Errorf("got %v", limits)
	}
	if got, err := limiter.MemoryLimit("GPU-1", "/sys/fs/cgroup/a"); got != 5<<20 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if opened, closed := len(lib.InitCalls()), len(lib.ShutdownCalls()); opened != 2 || closed != 2 {
		t.Errorf("opened %d times, closed %d times", opened, closed)
	}
	if err := limiter.SetMemoryLimit("GPU-2", "/", 1); err == nil || !strings.Contains(err.Error(), `finding GPU "GPU-2"`) {
		t.Errorf("unknown GPU: got error %v", err)
	}
}

// TestMissingSymbol: the call, which would end the process, is not made.
func TestMissingSymbol(t *testing.T) {
	t.Parallel()
	for _, symbol := range []string{symbolSet, symbolGet} {
		lib, _ := library(symbol, nvml.SUCCESS)
		limiter := New(lib)
		for name, err := range map[string]error{
			"Supported": limiter.Supported(), "Set": limiter.SetMemoryLimit("GPU-1", "/", 1), "Get": func() error { _, err := limiter.MemoryLimit("GPU-1", "/"); return err }(),
		} {
			if err == nil || !strings.Contains(err.Error(), symbol) {
				t.Errorf("%s without %s: got error %v", name, symbol, err)
			}
		}
		if calls := len(lib.DeviceGetHandleByUUIDCalls()); calls > 0 {
			t.Errorf("%d calls in spite of a missing symbol", calls)
		}
	}
}

func TestNotSupported(t *testing.T) {
	t.Parallel()
	lib, _ := library("", nvml.ERROR_NOT_SUPPORTED)
	if err := New(lib).SetMemoryLimit("GPU-1", "/", 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got error %v", err)
	}
	lib.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if err := New(lib).Supported(); !errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED) || !strings.Contains(err.Error(), "opening the library") {
		t.Errorf("got error %v", err)
	}
	lib, _ = library("", nvml.ERROR_UNKNOWN)
	if _, err := New(lib).MemoryLimit("GPU-1", "/"); !errors.Is(err, nvml.ERROR_UNKNOWN) {
		t.Errorf("got error %v", err)
	}
}
