// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
)

// fake is a node with GPUs that are well, as go-nvml's mocks. Tests change it before
// it is used, or through mu.
type fake struct {
	*mock.Interface
	mu       sync.Mutex
	gpus     []*mock.Device
	missing  map[string]bool
	recovery []nvml.DeviceGpuRecoveryAction
	fabric   []nvml.GpuFabricInfo_v3
	opened   atomic.Int32 // times opened and not closed
}

// uuid of the GPU at an index.
func uuid(i int) device.UUID { return device.UUID(fmt.Sprint("GPU-", i)) }

func newFake(n int) *fake {
	f := &fake{missing: map[string]bool{}, recovery: make([]nvml.DeviceGpuRecoveryAction, n), fabric: make([]nvml.GpuFabricInfo_v3, n)}
	for i := range n {
		f.gpus = append(f.gpus, &mock.Device{
			GetUUIDFunc:           func() (string, nvml.Return) { return string(uuid(i)), nvml.SUCCESS },
			GetMemoryInfoFunc:     func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.SUCCESS },
			GetTotalEccErrorsFunc: eccErrors(3),
			GetRemappedRowsFunc:   func() (int, int, bool, bool, nvml.Return) { return 1, 2, false, false, nvml.SUCCESS },
			GetNvLinkStateFunc:    links(4, 6),
			GetFieldValuesFunc:    f.fieldValues(i),
			GetGpuFabricInfoFunc:  func() (nvml.GpuFabricInfo, nvml.Return) { return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED },
			RegisterEventsFunc:    func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS },
			GetSupportedEventTypesFunc: func() (uint64, nvml.Return) {
				return nvml.EventTypeXidCriticalError | nvml.EventTypePState, nvml.SUCCESS
			},
		})
	}
	f.Interface = &mock.Interface{
		InitFunc:           func() nvml.Return { f.opened.Add(1); return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { f.opened.Add(-1); return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { f.mu.Lock(); defer f.mu.Unlock(); return len(f.gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(index int) (nvml.Device, nvml.Return) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.gpus[index], nvml.SUCCESS
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(symbol string) error {
				if f.missing[symbol] {
					return errors.New("no such symbol")
				}
				return nil
			}}
		},
	}
	return f
}

// eccErrors counts uncorrectable volatile errors, and nothing else.
func eccErrors(n uint64) func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
	return func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
		if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || counter != nvml.VOLATILE_ECC {
			return 999, nvml.SUCCESS
		}
		return n, nvml.SUCCESS
	}
}

// links of which some are up.
func links(up, all int) func(int) (nvml.EnableState, nvml.Return) {
	return func(link int) (nvml.EnableState, nvml.Return) {
		switch {
		case link >= all:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case link < up:
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		default:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
	}
}

// fieldValues knows the recovery action.
func (f *fake) fieldValues(i int) func([]nvml.FieldValue) nvml.Return {
	return func(values []nvml.FieldValue) nvml.Return {
		if values[0].FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		binary.NativeEndian.PutUint32(values[0].Value[:], uint32(f.recovery[i]))
		return nvml.SUCCESS
	}
}

// prober on the fake.
func (f *fake) prober() *Prober {
	p := New(f)
	p.fabric = func(d nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) {
		for i, gpu := range f.gpus {
			if nvml.Device(gpu) == d {
				return f.fabric[i], nvml.SUCCESS
			}
		}
		return nvml.GpuFabricInfo_v3{}, nvml.ERROR_UNKNOWN
	}
	return p
}

// well is what is seen of a GPU that is well.
func well(i int) health.Observation {
	return health.Observation{UUID: uuid(i), UncorrectedErrors: new(uint64(3)), Remap: &health.Remap{}, ActiveLinks: new(4)}
}

// probe must succeed and close what it opens.
func probe(t *testing.T, f *fake, p *Prober) []health.Observation {
	t.Helper()
	got, err := p.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := f.opened.Load(); n != 0 {
		t.Errorf("the library is open %d times", n)
	}
	return got
}

// TestProbe: everything that NVML tells of a GPU is seen there, and nowhere else.
func TestProbe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*fake, *mock.Device)
		want   func(*health.Observation)
	}{
		"well":   {func(*fake, *mock.Device) {}, func(*health.Observation) {}},
		"errors": {func(_ *fake, d *mock.Device) { d.GetTotalEccErrorsFunc = eccErrors(8) }, func(o *health.Observation) { *o.UncorrectedErrors = 8 }},
		"no ECC": {func(_ *fake, d *mock.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}
		}, func(o *health.Observation) { o.UncorrectedErrors = nil }},
		"rows": {func(_ *fake, d *mock.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, true, true, nvml.SUCCESS }
		}, func(o *health.Observation) { o.Remap = &health.Remap{Pending: true, Failed: true} }},
		"pages": {func(_ *fake, d *mock.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, true, true, nvml.ERROR_NOT_SUPPORTED }
			d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
		}, func(o *health.Observation) { o.Remap.Pending = true }},
		"no links": {func(_ *fake, d *mock.Device) {
			d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}, func(o *health.Observation) { o.ActiveLinks = nil }},
		"links down": {func(_ *fake, d *mock.Device) { d.GetNvLinkStateFunc = links(0, 6) }, func(o *health.Observation) { *o.ActiveLinks = 0 }},
		"reset":      {func(f *fake, _ *mock.Device) { f.recovery[1] = nvml.GPU_RECOVERY_ACTION_GPU_RESET }, func(o *health.Observation) { o.Recovery = health.RecoveryReset }},
		"new action": {func(f *fake, _ *mock.Device) { f.recovery[1] = 77 }, func(o *health.Observation) { o.Recovery = health.RecoveryOther }},
		"fabric starts": {func(f *fake, _ *mock.Device) { f.fabric[1].State = nvml.GPU_FABRIC_STATE_IN_PROGRESS },
			func(o *health.Observation) { o.Fabric = health.FabricNotCompleted }},
		"fabric good": {func(f *fake, _ *mock.Device) { f.fabric[1].State = nvml.GPU_FABRIC_STATE_COMPLETED },
			func(o *health.Observation) { o.Fabric = health.FabricGood }},
		"fabric failed": {func(f *fake, _ *mock.Device) {
			f.fabric[1].State, f.fabric[1].Status = nvml.GPU_FABRIC_STATE_COMPLETED, uint32(nvml.ERROR_UNKNOWN)
		}, func(o *health.Observation) { o.Fabric = health.FabricFailed }},
		"fabric ill": {func(f *fake, _ *mock.Device) {
			f.fabric[1].State, f.fabric[1].HealthSummary = nvml.GPU_FABRIC_STATE_COMPLETED, nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY
		}, func(o *health.Observation) { o.Fabric = health.FabricUnhealthy }},
		"fabric slow": {func(f *fake, _ *mock.Device) {
			f.fabric[1].State, f.fabric[1].HealthSummary = nvml.GPU_FABRIC_STATE_COMPLETED, nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY
		}, func(o *health.Observation) { o.Fabric = health.FabricLimited }},
		"unreadable": {func(_ *fake, d *mock.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, func(o *health.Observation) { o.Partial, o.UncorrectedErrors = true, nil }},
		"lost": {func(_ *fake, d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
		}, func(o *health.Observation) {
			*o = health.Observation{UUID: o.UUID, Lost: "GetMemoryInfo: " + nvml.ERROR_GPU_IS_LOST.Error()}
		}},
	} {
		f := newFake(3)
		tc.change(f, f.gpus[1])
		want := []health.Observation{well(0), well(1), well(2)}
		tc.want(&want[1])
		if diff := cmp.Diff(want, probe(t, f, f.prober())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestOldDriver: functions that the library does not have are not called, which would
// end the process.
func TestOldDriver(t *testing.T) {
	t.Parallel()
	f := newFake(1)
	for _, symbol := range []string{"nvmlDeviceGetRemappedRows", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetFieldValues"} {
		f.missing[symbol] = true
	}
	gpu := f.gpus[0]
	gpu.GetRemappedRowsFunc, gpu.GetGpuFabricInfoFunc, gpu.GetFieldValuesFunc = nil, nil, nil // Calling them panics.
	gpu.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.SUCCESS }
	p := f.prober()
	p.fabric = nil
	if diff := cmp.Diff([]health.Observation{well(0)}, probe(t, f, p)); diff != "" {
		t.Error(diff)
	}
}

// TestBadGPUs: a GPU that hangs, has fallen off the bus or cannot be found says so, by
// the name that it had before; the others are seen as ever.
func TestBadGPUs(t *testing.T) {
	t.Parallel()
	f := newFake(4)
	p := f.prober()
	p.gpuTimeout = 50 * time.Millisecond
	release := make(chan struct{})
	breakAll := func() {
		f.gpus[0].GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			<-release
			return 3, nvml.SUCCESS
		}
		f.DeviceGetHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
			switch index {
			case 1:
				return nil, nvml.ERROR_GPU_IS_LOST
			case 2:
				return nil, nvml.ERROR_UNKNOWN
			default:
				return f.gpus[index], nvml.SUCCESS
			}
		}
	}
	healthy := f.DeviceGetHandleByIndexFunc
	probe(t, f, p)
	breakAll()
	want := []health.Observation{
		{UUID: uuid(0), Hangs: "GetTotalEccErrors"}, {UUID: uuid(1), Lost: "finding the GPU: " + nvml.ERROR_GPU_IS_LOST.Error()}, {UUID: uuid(2), Partial: true}, well(3),
	}
	for range 2 {
		got, err := p.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if n := len(f.gpus[0].GetTotalEccErrorsCalls()); n != 2 {
		t.Errorf("what hangs was called %d times, with the one before", n)
	}
	close(release)
	f.DeviceGetHandleByIndexFunc = healthy
	all := []health.Observation{well(0), well(1), well(2), well(3)}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if got, err := p.Probe(t.Context()); err == nil && cmp.Equal(all, got) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the GPUs do not come back")
		}
	}
	// What was never known cannot be named.
	fresh := f.prober()
	f.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	if got := probe(t, f, fresh); got != nil {
		t.Errorf("got %+v", got)
	}
}

// TestNVMLAway: without NVML nothing is known, and a hanging one is not waited for.
func TestNVMLAway(t *testing.T) {
	t.Parallel()
	f := newFake(1)
	p := f.prober()
	f.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if _, err := p.Probe(t.Context()); !errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED) {
		t.Errorf("got error %v", err)
	}
	release := make(chan struct{})
	f.InitFunc = func() nvml.Return { <-release; return nvml.SUCCESS }
	p.nodeTimeout = 10 * time.Millisecond
	for _, want := range []string{"no answer after 10ms from call Init", "an earlier call still has not returned: Init"} {
		if _, err := p.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	close(release)
	f = newFake(1)
	f.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := f.prober().Probe(t.Context()); !errors.Is(err, nvml.ERROR_UNKNOWN) || f.opened.Load() != 0 {
		t.Errorf("got error %v, open %d times", err, f.opened.Load())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newFake(1).prober().Probe(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
}
