// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
)

// Prober looks at the GPUs of the node. Both methods return soon after their
// context ends, also when the kernel driver hangs.
type Prober interface {
	// Probe looks at all GPUs. A GPU that is not in the answer is not there. It
	// returns an error when nothing can be said of any GPU.
	Probe(ctx context.Context) ([]Observation, error)

	// Watch calls f for every event until ctx ends. It goes on after errors, which
	// are for the log.
	Watch(ctx context.Context, f func(Event))
}

// Event is an error that the kernel driver reports when it happens.
type Event struct {
	// GPU that the error is about; "" when that is not known, which only asks for
	// a look.
	GPU device.UUID

	// GPUInstance and ComputeInstance of a MIG device; nil for the whole GPU.
	GPUInstance, ComputeInstance *int

	// XID is the number of the error; 0 for events that only ask for a look.
	XID uint64
}

// Options of a Monitor.
type Options struct {
	// Prober looks at GPUs; nil looks at none, so that their health is Unknown.
	// Then no condition of a Prober holds, since none could ever end: the first
	// Look drops those that are remembered, and GPUs that disappear are not kept.
	Prober Prober

	Ledger *Ledger

	// Period between two looks; 0 is DefaultPeriod.
	Period time.Duration

	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

const (
	// DefaultPeriod is short enough for three clean looks within a minute.
	DefaultPeriod = 15 * time.Second

	// failuresToTaint is how many looks in a row must fail before the node's GPUs
	// are called unknown: a kernel driver that is being replaced is away for a
	// moment.
	failuresToTaint = 2

	// staleAfter is how many periods without a look make a GPU's health unknown.
	staleAfter = 4

	// leastPause keeps a storm of events from becoming a storm of looks.
	leastPause = time.Second
)

// Sources of the monitor's conditions.
const (
	sourceGPU  = "probe"
	sourceNode = "probe-node"
)

// Monitor keeps the ledger up to date with the hardware.
type Monitor struct {
	options Options
	ledger  *Ledger
	look    chan struct{}
	changed chan struct{} // links or GPUs have changed

	mu       sync.Mutex
	devices  []DeviceHealth
	mig      map[device.UUID][]migDevice
	links    map[device.UUID]int
	lastSeen map[device.UUID]time.Time
	failures int
}

// migDevice is a MIG device of a GPU.
type migDevice struct {
	uuid                         device.UUID
	gpuInstance, computeInstance int
}

// DeviceHealth is the health of a published device.
type DeviceHealth struct {
	// Name in the ResourceSlice, and UUID; Parent is the GPU of a MIG device.
	Name         string
	UUID, Parent device.UUID

	State State

	// Message says why it is not healthy; "" when it is.
	Message string

	// At is when the device was last looked at; zero for never.
	At time.Time
}

// New returns a Monitor.
func New(options Options) (*Monitor, error) {
	if options.Ledger == nil {
		return nil, errors.New("configuring the watch on GPUs: the ledger is missing")
	}
	options.Period = cmp.Or(options.Period, DefaultPeriod)
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Monitor{
		options: options, ledger: options.Ledger, look: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		mig: map[device.UUID][]migDevice{}, links: map[device.UUID]int{}, lastSeen: map[device.UUID]time.Time{},
	}, nil
}

// Ledger of the monitor.
func (m *Monitor) Ledger() *Ledger { return m.ledger }

// Changed delivers when GPUs or their links have changed, so that what is
// published has to be found out anew.
func (m *Monitor) Changed() <-chan struct{} { return m.changed }

// Run looks until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	if m.options.Prober == nil {
		<-ctx.Done()
		return
	}
	var group sync.WaitGroup
	group.Go(func() { m.options.Prober.Watch(ctx, func(event Event) { m.Handle(ctx, event) }) })
	defer group.Wait()
	timer := time.NewTimer(m.options.Period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.look:
			// Events come in groups.
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(leastPause, m.options.Period)):
			}
		}
		m.Look(ctx)
		timer.Reset(m.options.Period)
	}
}

// Handle takes note of an event.
func (m *Monitor) Handle(ctx context.Context, event Event) {
	if event.XID != 0 && event.GPU != "" {
		if m.ledger.policy.Ignores(event.XID) {
			klog.FromContext(ctx).V(2).Info("Ignoring an error that says nothing about the GPU", "uuid", event.GPU, "xid", event.XID)
			return
		}
		target := m.target(event)
		klog.FromContext(ctx).Info("The kernel driver reports an error of a GPU", "uuid", target, "xid", event.XID)
		m.ledger.Raise(sourceGPU, target, XIDFinding(event.XID))
	}
	notify(m.look)
}

// target of an event: the MIG device when it is about one that is known.
func (m *Monitor) target(event Event) device.UUID {
	if event.GPUInstance == nil {
		return event.GPU
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mig := range m.mig[event.GPU] {
		if mig.gpuInstance == *event.GPUInstance && event.ComputeInstance != nil && mig.computeInstance == *event.ComputeInstance {
			return mig.uuid
		}
	}
	return event.GPU
}

// Look looks once.
func (m *Monitor) Look(ctx context.Context) {
	if m.options.Prober == nil {
		// Of what an earlier configuration has found, nothing stays.
		m.ledger.drop(sourceGPU, sourceNode)
		return
	}
	observations, err := m.options.Prober.Probe(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		m.failed(ctx, err)
		return
	}
	m.failures = 0
	m.ledger.Look(sourceNode, AllDevices)
	seen := map[device.UUID]bool{}
	for i := range observations {
		seen[observations[i].UUID] = true
		m.observe(&observations[i])
	}
	for _, uuid := range m.ledger.known() {
		if !seen[uuid] {
			m.ledger.Raise(sourceGPU, uuid, LostFinding("missing", "it is not among the GPUs of the node any more"))
			m.noteLinks(uuid, -1)
		}
	}
	if err := m.ledger.SaveError(); err != nil {
		klog.FromContext(ctx).Error(err, "Remembering the health of GPUs failed; it is tried again")
	}
}

// failed notes a look that failed as a whole.
func (m *Monitor) failed(ctx context.Context, err error) {
	m.failures++
	if m.failures <= failuresToTaint {
		klog.FromContext(ctx).Error(err, "Looking at the GPUs failed", "timesInARow", m.failures)
	}
	if m.failures >= failuresToTaint {
		m.ledger.Raise(sourceNode, AllDevices, nvmlFinding(err))
	}
}

// observe takes note of what was seen of one GPU.
func (m *Monitor) observe(o *Observation) {
	findings := m.ledger.assess(o)
	if !o.Complete() {
		m.ledger.Raise(sourceGPU, o.UUID, findings...)
	} else {
		m.ledger.Look(sourceGPU, o.UUID, findings...)
		for _, mig := range m.migOf(o.UUID) {
			m.ledger.Look(sourceGPU, mig.uuid)
		}
	}
	if o.Lost == "" && o.Hangs == "" {
		m.mu.Lock()
		m.lastSeen[o.UUID] = m.options.Now()
		m.mu.Unlock()
		if o.ActiveLinks != nil {
			m.noteLinks(o.UUID, *o.ActiveLinks)
		} else {
			m.noteLinks(o.UUID, 0)
		}
	} else {
		m.noteLinks(o.UUID, -1)
	}
}

// noteLinks asks for a discovery when the links that are up are others than at the
// last look; -1 stands for a GPU that does not answer.
func (m *Monitor) noteLinks(uuid device.UUID, up int) {
	m.mu.Lock()
	before, known := m.links[uuid]
	m.links[uuid] = up
	m.mu.Unlock()
	if known && before != up {
		notify(m.changed)
	}
}

// migOf lists the MIG devices of a GPU.
func (m *Monitor) migOf(gpu device.UUID) []migDevice {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mig[gpu])
}

// Complete adds GPUs to a snapshot that were there before and are missing, with a
// taint, and takes note of those that are there. Without a Prober nobody could end
// the taint, so nothing is added. names tells how devices are published.
func (m *Monitor) Complete(snapshot *device.Snapshot, names func(*device.Snapshot) map[device.UUID]string) *device.Snapshot {
	full, missing := m.ledger.complete(snapshot, m.options.Prober != nil)
	for _, uuid := range missing {
		if m.ledger.holds(uuid, KindLost, KindHangs) {
			continue // Why it is missing is known better.
		}
		m.ledger.Raise(sourceGPU, uuid, LostFinding("missing", "it is not among the GPUs of the node any more"))
	}
	named := names(full)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices, m.mig = nil, map[device.UUID][]migDevice{}
	for i := range full.GPUs {
		gpu := &full.GPUs[i]
		if !gpu.MIGEnabled {
			m.devices = append(m.devices, DeviceHealth{Name: named[gpu.UUID], UUID: gpu.UUID})
			continue
		}
		for k := range gpu.MIGDevices {
			mig := &gpu.MIGDevices[k]
			m.devices = append(m.devices, DeviceHealth{Name: named[mig.UUID], UUID: mig.UUID, Parent: gpu.UUID})
			m.mig[gpu.UUID] = append(m.mig[gpu.UUID], migDevice{mig.UUID, mig.GPUInstance, mig.ComputeInstance})
		}
	}
	return full
}

// Report tells the health of every published device, in order of publication. What
// has not been looked at for some time is Unknown, so that nobody vouches for a GPU
// when the watch itself does not work.
func (m *Monitor) Report() []DeviceHealth {
	m.mu.Lock()
	out := slices.Clone(m.devices)
	for i := range out {
		out[i].At = m.lastSeen[cmp.Or(out[i].Parent, out[i].UUID)]
	}
	m.mu.Unlock()
	now := m.options.Now()
	for i := range out {
		d := &out[i]
		d.State, d.Message = m.ledger.Health(d.UUID, d.Parent)
		if d.State != Healthy {
			continue
		}
		switch {
		case d.At.IsZero():
			d.State, d.Message = Unknown, "the GPU has not been looked at yet"
		case now.Sub(d.At) > staleAfter*m.options.Period:
			d.State, d.Message = Unknown, fmt.Sprintf("the GPU was last looked at %s ago", now.Sub(d.At).Truncate(time.Second))
		}
	}
	return out
}

// notify puts an item into a channel unless there is one.
func notify(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
