// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/nvml/internal/guard"
)

// Times of looks.
const (
	// nodeTimeout is for opening the library, which takes seconds per GPU when
	// nothing keeps the kernel driver loaded.
	nodeTimeout = time.Minute

	// gpuTimeout is for all questions about one GPU, each of which takes
	// milliseconds.
	gpuTimeout = 10 * time.Second
)

// Prober looks at GPUs by NVML.
type Prober struct {
	lib nvml.Interface

	nodeTimeout, gpuTimeout, waitTime, sessionTime, pause time.Duration

	nodes  *guard.Guard[string, int]
	gpus   *guard.Guard[int, *health.Observation]
	fabric func(nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return)

	mu    sync.Mutex
	uuids map[int]device.UUID // by NVML's index, of the last look that knew
}

var _ health.Prober = &Prober{}

// New returns a Prober on NVML, which need not be initialised.
func New(lib nvml.Interface) *Prober {
	return &Prober{
		lib: lib, nodeTimeout: nodeTimeout, gpuTimeout: gpuTimeout, waitTime: waitTime, sessionTime: sessionTime, pause: pause,
		nodes: guard.New[string, int](), gpus: guard.New[int, *health.Observation](),
		fabric: func(d nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) { return d.GetGpuFabricInfoV().V3() },
		uuids:  map[int]device.UUID{},
	}
}

// Probe implements health.Prober.
func (p *Prober) Probe(ctx context.Context) ([]health.Observation, error) {
	count, err := p.nodes.Do(ctx, "open", p.nodeTimeout, p.open)
	if err != nil {
		return nil, fmt.Errorf("asking NVML for GPUs: %w", err)
	}
	var out []health.Observation
	for i := range count {
		if o := p.probe(ctx, i); o != nil {
			out = append(out, *o)
		}
	}
	if _, err := p.nodes.Do(ctx, "close", p.nodeTimeout, p.close); err != nil {
		klog.FromContext(ctx).Error(err, "Closing NVML failed")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("asking NVML for GPUs: %w", err)
	}
	return out, nil
}

// open opens the library and counts GPUs.
func (p *Prober) open(begin func(string)) (int, error) {
	begin("Init")
	if ret := p.lib.Init(); ret != nvml.SUCCESS {
		return 0, fmt.Errorf("opening the library: %w", ret)
	}
	begin("DeviceGetCount")
	count, ret := p.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		_ = p.lib.Shutdown() // The first error says more.
		return 0, fmt.Errorf("counting GPUs: %w", ret)
	}
	return count, nil
}

// close closes the library.
func (p *Prober) close(begin func(string)) (int, error) {
	begin("Shutdown")
	if ret := p.lib.Shutdown(); ret != nvml.SUCCESS {
		return 0, fmt.Errorf("closing the library: %w", ret)
	}
	return 0, nil
}

// probe looks at one GPU; nil when it cannot be told which one it is.
func (p *Prober) probe(ctx context.Context, index int) *health.Observation {
	o, err := p.gpus.Do(ctx, index, p.gpuTimeout, func(begin func(string)) (*health.Observation, error) {
		begin("Init")
		if ret := p.lib.Init(); ret != nvml.SUCCESS { // Counted: it stays open for as long as this hangs.
			return nil, fmt.Errorf("opening the library: %w", ret)
		}
		defer func() { _ = p.lib.Shutdown() }() // Whoever opened it first sees errors.
		r := &reader{lib: p.lib, begin: begin, fabric: p.fabric}
		return r.read(index)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	uuid, known := p.uuids[index]
	var hang *guard.HangError
	switch {
	case err == nil:
		p.uuids[index] = o.UUID
		return o
	case !known:
		klog.FromContext(ctx).Error(err, "A GPU cannot be looked at, and was not known before", "index", index)
		return nil
	case errors.As(err, &hang):
		return &health.Observation{UUID: uuid, Hangs: hang.Call}
	case isLost(err):
		return &health.Observation{UUID: uuid, Lost: err.Error()}
	default:
		klog.FromContext(ctx).Error(err, "A GPU cannot be looked at", "uuid", uuid)
		return &health.Observation{UUID: uuid, Partial: true}
	}
}

// reader asks about one GPU.
type reader struct {
	lib    nvml.Interface
	begin  func(string)
	fabric func(nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return)
	o      health.Observation
}

// read asks everything. It returns an error when it does not know which GPU it is.
func (r *reader) read(index int) (*health.Observation, error) {
	r.begin(fmt.Sprintf("DeviceGetHandleByIndex(%d)", index))
	handle, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("finding the GPU: %w", ret)
	}
	r.begin("GetUUID")
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("reading the UUID: %w", ret)
	}
	r.o.UUID = device.UUID(uuid)
	// UUIDs are remembered by the library; how much memory is free, it has to ask for.
	_, _ = ask(r, "", "GetMemoryInfo", handle.GetMemoryInfo)
	if count, ok := ask(r, "", "GetTotalEccErrors", func() (uint64, nvml.Return) {
		return handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	}); ok {
		r.o.UncorrectedErrors = &count
	}
	r.readRemap(handle)
	r.readLinks(handle)
	r.readFabric(handle)
	r.readRecovery(handle)
	return &r.o, nil
}

// ask asks for a fact that a GPU need not have. symbol is the C function to be
// looked up before, or "".
func ask[T any](r *reader, symbol, what string, f func() (T, nvml.Return)) (value T, ok bool) {
	if r.o.Lost != "" || symbol != "" && r.lib.Extensions().LookupSymbol(symbol) != nil {
		return value, false
	}
	r.begin(what)
	answer, ret := f()
	switch {
	case ret == nvml.SUCCESS:
		return answer, true
	case ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
	case isLost(ret):
		r.o.Lost = fmt.Sprintf("%s: %v", what, ret)
	default:
		r.o.Partial = true
	}
	return value, false
}

// isLost reports that the GPU does not answer any more.
func isLost(err error) bool {
	return errors.Is(err, nvml.ERROR_GPU_IS_LOST) || errors.Is(err, nvml.ERROR_GPU_NOT_FOUND)
}

// readRemap reads whether bad memory waits to be replaced: rows since Ampere, pages
// before.
func (r *reader) readRemap(handle nvml.Device) {
	remap, ok := ask(r, "nvmlDeviceGetRemappedRows", "GetRemappedRows", func() (health.Remap, nvml.Return) {
		_, _, pending, failed, ret := handle.GetRemappedRows()
		return health.Remap{Pending: pending, Failed: failed}, ret
	})
	if ok {
		r.o.Remap = &remap
		return
	}
	if pending, ok := ask(r, "", "GetRetiredPagesPendingStatus", handle.GetRetiredPagesPendingStatus); ok {
		r.o.Remap = &health.Remap{Pending: pending == nvml.FEATURE_ENABLED}
	}
}

// readLinks counts NVLinks that are up. A GPU without any has none to lose.
func (r *reader) readLinks(handle nvml.Device) {
	up, found := 0, false
	for link := range nvml.NVLINK_MAX_LINKS {
		if r.o.Lost != "" {
			return
		}
		r.begin(fmt.Sprintf("GetNvLinkState(%d)", link))
		state, ret := handle.GetNvLinkState(link)
		switch {
		case ret == nvml.SUCCESS:
			found = true
			if state == nvml.FEATURE_ENABLED {
				up++
			}
		case ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_FUNCTION_NOT_FOUND:
		case isLost(ret):
			r.o.Lost = fmt.Sprintf("GetNvLinkState: %v", ret)
			return
		default:
			r.o.Partial = true
			return
		}
	}
	if found {
		r.o.ActiveLinks = &up
	}
}

// readFabric reads the membership in a fabric, with its health where the driver
// tells.
func (r *reader) readFabric(handle nvml.Device) {
	info, ok := ask(r, "nvmlDeviceGetGpuFabricInfoV", "GetGpuFabricInfoV", func() (nvml.GpuFabricInfo_v3, nvml.Return) { return r.fabric(handle) })
	if !ok {
		old, ok := ask(r, "nvmlDeviceGetGpuFabricInfo", "GetGpuFabricInfo", handle.GetGpuFabricInfo)
		if !ok {
			return
		}
		info.State, info.Status = old.State, old.Status
	}
	r.o.Fabric = fabricState(&info)
}

// fabricState translates.
func fabricState(info *nvml.GpuFabricInfo_v3) health.FabricState {
	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return health.FabricNotCompleted
	case nvml.GPU_FABRIC_STATE_COMPLETED:
	default:
		return ""
	}
	switch {
	case nvml.Return(info.Status) != nvml.SUCCESS:
		return health.FabricFailed
	case info.HealthSummary == nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:
		return health.FabricUnhealthy
	case info.HealthSummary == nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY:
		return health.FabricLimited
	default:
		return health.FabricGood
	}
}

// recoveries translates what the kernel driver wants to be done.
var recoveries = map[uint32]health.Recovery{
	uint32(nvml.GPU_RECOVERY_ACTION_NONE):            "",
	uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET):       health.RecoveryReset,
	uint32(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT):     health.RecoveryReboot,
	uint32(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT):   health.RecoveryReboot,
	uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P):       health.RecoveryDrainP2P,
	uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET): health.RecoveryDrainAndReset,
}

// readRecovery reads what the kernel driver wants to be done.
func (r *reader) readRecovery(handle nvml.Device) {
	action, ok := ask(r, "nvmlDeviceGetFieldValues", "GetFieldValues", func() (uint32, nvml.Return) {
		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		if ret := handle.GetFieldValues(values); ret != nvml.SUCCESS {
			return 0, ret
		}
		if ret := nvml.Return(values[0].NvmlReturn); ret != nvml.SUCCESS {
			return 0, nvml.ERROR_NOT_SUPPORTED // Other codes stand for unknown fields on old drivers.
		}
		return binary.NativeEndian.Uint32(values[0].Value[:]), nvml.SUCCESS
	})
	if !ok {
		return
	}
	recovery, known := recoveries[action]
	if !known {
		recovery = health.RecoveryOther
	}
	r.o.Recovery = recovery
}

// knownUUIDs for the log.
func (p *Prober) knownUUIDs() []device.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Values(p.uuids))
}
