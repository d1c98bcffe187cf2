// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/health"
)

// answer of a wait.
type answer struct {
	data nvml.EventData
	ret  nvml.Return
}

// withEvents lets the fake deliver answers, and time-outs while there is none.
func (f *fake) withEvents() chan<- answer {
	answers := make(chan answer, 10)
	f.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
				select {
				case a := <-answers:
					return a.data, a.ret
				case <-time.After(time.Duration(milliseconds) * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
	return answers
}

// watch delivers events until the test ends or stop is called.
func watch(t *testing.T, p *Prober) (events <-chan health.Event, stop func()) {
	t.Helper()
	channel := make(chan health.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Watch(ctx, func(event health.Event) { channel <- event })
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return channel, stop
}

// next event.
func next(t *testing.T, events <-chan health.Event) health.Event {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(time.Minute):
		t.Fatal("no event after a minute")
		return health.Event{}
	}
}

// TestEvents: errors name their GPU and MIG device, other events only their GPU; a GPU
// that cannot be registered keeps no other from reporting; only what a GPU supports is
// registered.
func TestEvents(t *testing.T) {
	t.Parallel()
	f := newFake(3)
	f.gpus[0].RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_GPU_IS_LOST }
	answers := f.withEvents()
	p := f.prober()
	p.waitTime = 5 * time.Millisecond
	events, stop := watch(t, p)
	xid := func(gpu int, number uint64, instance uint32) answer {
		return answer{nvml.EventData{Device: f.gpus[gpu], EventType: nvml.EventTypeXidCriticalError, EventData: number, GpuInstanceId: instance, ComputeInstanceId: min(instance, noInstance)}, nvml.SUCCESS}
	}
	answers <- xid(1, 79, noInstance)
	answers <- xid(2, 94, 5)
	answers <- answer{nvml.EventData{Device: f.gpus[1], EventType: nvml.EventTypeDoubleBitEccError, EventData: 3, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}, nvml.SUCCESS}
	for i, want := range []health.Event{{GPU: uuid(1), XID: 79}, {GPU: uuid(2), XID: 94, GPUInstance: new(5), ComputeInstance: new(5)}, {GPU: uuid(1)}} {
		if diff := cmp.Diff(want, next(t, events)); diff != "" {
			t.Errorf("event %d: %s", i, diff)
		}
	}
	if got := f.gpus[1].RegisterEventsCalls()[0].V; got != nvml.EventTypeXidCriticalError {
		t.Errorf("registered events %d", got)
	}
	stop()
	for deadline := time.Now().Add(time.Minute); f.opened.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the library is open %d times", f.opened.Load())
		}
	}
}

// TestLostWhileWaiting: an error of the wait is about no GPU in particular: it asks for
// a look, and the library is opened anew; so it is when the time of a session is over.
func TestLostWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newFake(1)
	answers := f.withEvents()
	p := f.prober()
	p.waitTime, p.pause, p.sessionTime = time.Millisecond, time.Millisecond, time.Hour
	events, stop := watch(t, p)
	answers <- answer{ret: nvml.ERROR_GPU_IS_LOST}
	if event := next(t, events); event != (health.Event{}) {
		t.Errorf("got %+v", event)
	}
	answers <- answer{nvml.EventData{Device: f.gpus[0], EventType: nvml.EventTypeXidCriticalError, EventData: 48, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}, nvml.SUCCESS}
	if event := next(t, events); event.XID != 48 || event.GPU != uuid(0) || len(f.InitCalls()) != 2 {
		t.Errorf("got %+v, opened %d times", event, len(f.InitCalls()))
	}
	stop()
	p.sessionTime = time.Millisecond
	before := len(f.InitCalls())
	_, _ = watch(t, p)
	for deadline := time.Now().Add(time.Minute); len(f.InitCalls()) < before+3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("sessions do not end")
		}
	}
}

// TestHangingWait: a wait that hangs does not keep Watch from returning, and no second
// session is begun beside it.
func TestHangingWait(t *testing.T) {
	t.Parallel()
	f := newFake(1)
	release, waiting := make(chan struct{}), make(chan struct{}, 10)
	defer close(release)
	f.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				waiting <- struct{}{}
				<-release
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			},
		}, nvml.SUCCESS
	}
	p := f.prober()
	p.pause = time.Millisecond
	_, stop := watch(t, p)
	<-waiting
	stop()
	_, stop = watch(t, p)
	time.Sleep(20 * time.Millisecond)
	stop()
	if n := len(f.EventSetCreateCalls()); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if got, err := p.Probe(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("looks do not work beside it: %v, %v", got, err)
	}
}
