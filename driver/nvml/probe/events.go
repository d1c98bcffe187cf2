// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
)

// Times of sessions.
const (
	// waitTime is how long NVML waits for an event before it says that there is
	// none, and so how soon a session notices that it should end.
	waitTime = 5 * time.Second

	// sessionTime is how long a session lasts: GPUs that have come since its
	// beginning are not seen before its end.
	sessionTime = 5 * time.Minute

	// pause between a session that failed and the next.
	pause = 5 * time.Second

	// silence is how long a session may go without a sign of life.
	silence = time.Minute
)

// eventTypes are the events that are worth a look; errors have a number.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction

// noInstance is how NVML says that an event is about no MIG device.
const noInstance = math.MaxUint32

// Watch implements health.Prober.
func (p *Prober) Watch(ctx context.Context, f func(health.Event)) {
	logger := klog.FromContext(ctx)
	last := ""
	for ctx.Err() == nil {
		err := p.session(ctx, f)
		if ctx.Err() != nil {
			return
		}
		message := ""
		if err != nil {
			message = err.Error()
		}
		if message != last {
			last = message
			if err != nil {
				logger.Error(err, "Waiting for errors of GPUs failed; it is tried again", "wait", p.pause, "gpus", p.knownUUIDs())
			} else {
				logger.Info("Waiting for errors of GPUs works again")
			}
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(p.pause):
			}
		}
	}
}

// session opens the library and delivers events until its time is over, ctx ends or
// something fails. It does not wait for calls that hang, and starts no second session
// beside one that does.
func (p *Prober) session(ctx context.Context, f func(health.Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events, alive := make(chan health.Event), make(chan struct{}, 1)
	go func() {
		timer := time.NewTimer(silence)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-events:
				f(event)
			case <-alive:
			case <-timer.C:
				cancel(fmt.Errorf("no sign of life for %s", silence))
				return
			}
			timer.Reset(silence)
		}
	}()
	_, err := p.nodes.Do(ctx, "events", math.MaxInt64, func(begin func(string)) (int, error) {
		return 0, p.listen(ctx, begin, alive, events)
	})
	return err
}

// listen is the part of a session that may hang.
func (p *Prober) listen(ctx context.Context, begin func(string), alive chan<- struct{}, events chan<- health.Event) (finalErr error) {
	begin("Init")
	if ret := p.lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("opening the library: %w", ret)
	}
	defer func() {
		begin("Shutdown")
		if ret := p.lib.Shutdown(); ret != nvml.SUCCESS {
			finalErr = errors.Join(finalErr, fmt.Errorf("closing the library: %w", ret))
		}
	}()
	begin("EventSetCreate")
	set, ret := p.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("making a set of events: %w", ret)
	}
	defer func() {
		begin("EventSetFree")
		_ = set.Free() // It goes with the library anyway.
	}()
	registered, err := p.register(ctx, begin, set)
	if err != nil {
		return err
	}
	for end := time.Now().Add(p.sessionTime); ctx.Err() == nil && time.Now().Before(end); {
		begin("EventSetWait")
		data, ret := set.Wait(uint32(p.waitTime.Milliseconds()))
		var event health.Event
		switch ret {
		case nvml.SUCCESS:
			event = translate(&data, registered)
		case nvml.ERROR_TIMEOUT:
			select {
			case alive <- struct{}{}:
			default:
			}
			continue
		default:
			// Which GPU it is about is not said, so all are looked at.
		}
		select {
		case events <- event:
		case <-ctx.Done():
		}
		if ret != nvml.SUCCESS {
			return fmt.Errorf("waiting for events: %w", ret)
		}
	}
	return nil
}

// register asks for the events of all GPUs; which one a handle stands for is noted
// now, since a GPU that is lost does not tell.
func (p *Prober) register(ctx context.Context, begin func(string), set nvml.EventSet) (map[nvml.Device]device.UUID, error) {
	begin("DeviceGetCount")
	count, ret := p.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("counting GPUs: %w", ret)
	}
	out := map[nvml.Device]device.UUID{}
	for i := range count {
		if err := p.registerGPU(i, begin, set, out); err != nil {
			klog.FromContext(ctx).V(2).Info("A GPU reports no errors by itself", "index", i, "reason", err.Error())
		}
	}
	return out, nil
}

// registerGPU asks for the events of one GPU.
func (p *Prober) registerGPU(index int, begin func(string), set nvml.EventSet, registered map[nvml.Device]device.UUID) error {
	begin(fmt.Sprintf("DeviceGetHandleByIndex(%d)", index))
	handle, ret := p.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("finding the GPU: %w", ret)
	}
	begin(fmt.Sprintf("GetUUID of GPU with index %d", index))
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the UUID: %w", ret)
	}
	registered[handle] = device.UUID(uuid)
	begin("GetSupportedEventTypes of " + uuid)
	supported, ret := handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("asking for its events: %w", ret)
	}
	begin("RegisterEvents of " + uuid)
	if ret := handle.RegisterEvents(supported&eventTypes, set); ret != nvml.SUCCESS {
		return fmt.Errorf("registering its events: %w", ret)
	}
	return nil
}

// translate turns NVML's event into ours.
func translate(data *nvml.EventData, registered map[nvml.Device]device.UUID) health.Event {
	event := health.Event{GPU: registered[data.Device]}
	if data.EventType == nvml.EventTypeXidCriticalError {
		event.XID = data.EventData
	}
	if data.GpuInstanceId != noInstance && data.ComputeInstanceId != noInstance {
		event.GPUInstance, event.ComputeInstance = new(int(data.GpuInstanceId)), new(int(data.ComputeInstanceId))
	}
	return event
}
