// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// script is a Prober that answers what a test has set. It is safe for concurrent
// use.
type script struct {
	mu     sync.Mutex
	answer []Observation
	err    error
	events chan Event
}

func (s *script) set(err error, answer ...Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = answer, err
}

func (s *script) Probe(context.Context) ([]Observation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Observation(nil), s.answer...), s.err
}

func (s *script) Watch(ctx context.Context, f func(Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-s.events:
			f(event)
		}
	}
}

// well is a look at a GPU that has nothing.
func well(uuid device.UUID) Observation { return Observation{UUID: uuid, ActiveLinks: new(4)} }

// snapshotOf has GPUs "GPU-0" and so on at PCI addresses in order, joined by
// links of different numbers.
func snapshotOf(n int) *device.Snapshot {
	s := &device.Snapshot{Machine: topology.New("m", n)}
	for i := range n {
		s.GPUs = append(s.GPUs, device.GPU{UUID: device.UUID(fmt.Sprintf("GPU-%d", i)), PCIAddress: device.PCIAddress(fmt.Sprintf("0000:%02x:00.0", i))})
		s.Machine.GPUs[i] = topology.GPUInfo{NUMA: i % 2, NVLinkMBps: 25000}
		for k := range i {
			s.Machine.NVLinks[i][k], s.Machine.NVLinks[k][i] = uint8(1+(i+k)%3), uint8(1+(i+k)%3)
			s.Machine.PCIe[i][k], s.Machine.PCIe[k][i] = topology.PCIe(1+(i*k)%5), topology.PCIe(1+(i*k)%5)
		}
	}
	return s
}

// without leaves GPUs out of a snapshot.
func without(s *device.Snapshot, gone ...int) *device.Snapshot {
	out := *s
	out.GPUs = nil
	rest := topology.FullMask(len(s.GPUs))
	for _, i := range gone {
		rest = rest.Without(i)
	}
	for i := range rest.All() {
		out.GPUs = append(out.GPUs, s.GPUs[i])
	}
	if out.Machine = nil; rest != 0 {
		out.Machine = s.Machine.Sub(rest)
	}
	return &out
}

// names calls every device what it is.
func names(s *device.Snapshot) map[device.UUID]string {
	out := map[device.UUID]string{}
	for i := range s.GPUs {
		out[s.GPUs[i].UUID] = "d-" + string(s.GPUs[i].UUID)
		for k := range s.GPUs[i].MIGDevices {
			out[s.GPUs[i].MIGDevices[k].UUID] = "d-" + string(s.GPUs[i].MIGDevices[k].UUID)
		}
	}
	return out
}

// newMonitor watches two GPUs that are well.
func newMonitor(t *testing.T) (*Monitor, *script, *clock, *memory) {
	t.Helper()
	prober, at, disk := &script{events: make(chan Event)}, newClock(), &memory{}
	l := NewLedger(Policy{}, NewDocument("n", "boot"), disk, at.read)
	m, err := New(Options{Prober: prober, Ledger: l, Now: at.read})
	if err != nil {
		t.Fatal(err)
	}
	prober.set(nil, well("GPU-0"), well("GPU-1"))
	m.Complete(snapshotOf(2), names)
	m.Look(t.Context())
	return m, prober, at, disk
}

// taintsOf two GPUs.
func taintsOf(m *Monitor) [2][]string {
	return [2][]string{keys(m.ledger.Taints("GPU-0", "")), keys(m.ledger.Taints("GPU-1", ""))}
}

// TestOneBadGPU: each fault taints its GPU and no other, and goes after three clean
// looks; a look that could not see the GPU is not clean.
func TestOneBadGPU(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		seen []Observation
		want string
	}{
		"lost":    {[]Observation{{UUID: "GPU-0", Lost: "gone"}, well("GPU-1")}, "lost=lost:NoSchedule"},
		"hangs":   {[]Observation{{UUID: "GPU-0", Hangs: "GetName"}, well("GPU-1")}, "not-responding=hangs:NoSchedule"},
		"off bus": {[]Observation{well("GPU-1")}, "lost=missing:NoSchedule"},
		"errors":  {[]Observation{{UUID: "GPU-0", ActiveLinks: new(4), UncorrectedErrors: new(uint64(1))}, well("GPU-1")}, "ecc=uncorrectable:NoSchedule"},
		"link":    {[]Observation{{UUID: "GPU-0", ActiveLinks: new(3)}, well("GPU-1")}, "nvlink=links-down:None"},
	} {
		m, prober, _, _ := newMonitor(t)
		prober.set(nil, tc.seen...)
		m.Look(t.Context())
		m.Look(t.Context())
		if diff := cmp.Diff([2][]string{{tc.want}, nil}, taintsOf(m)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		prober.set(nil, well("GPU-0"), well("GPU-1"))
		m.Look(t.Context())
		prober.set(nil, Observation{UUID: "GPU-0", ActiveLinks: new(4), Partial: true}, well("GPU-1"))
		m.Look(t.Context())
		m.Look(t.Context())
		prober.set(nil, well("GPU-0"), well("GPU-1"))
		if name != "errors" {
			m.Look(t.Context())
			if got := taintsOf(m)[0]; len(got) != 1 {
				t.Errorf("%s after two clean looks: got %q", name, got)
			}
		}
		m.Look(t.Context())
		if got := taintsOf(m)[0]; got != nil {
			t.Errorf("%s after three clean looks: got %q", name, got)
		}
	}
}

// TestNVMLLost: one failed look is forgiven, the second makes all GPUs unknown, and
// when NVML is back they are well again.
func TestNVMLLost(t *testing.T) {
	t.Parallel()
	m, prober, _, _ := newMonitor(t)
	for i, want := range [][]string{nil, {"nvml=unavailable:NoSchedule"}, {"nvml=unavailable:NoSchedule"}} {
		prober.set(errors.New("driver not loaded"))
		m.Look(t.Context())
		if diff := cmp.Diff([2][]string{want, want}, taintsOf(m)); diff != "" {
			t.Errorf("failure %d: %s", i, diff)
		}
	}
	if r := m.Report(); r[0].State != Unknown || r[0].Message != "no GPU of the node can be looked at: driver not loaded; see whether the kernel driver is loaded and answers (nvidia-smi)" {
		t.Errorf("got %+v", r)
	}
	prober.set(nil, well("GPU-0"), well("GPU-1"))
	for range DefaultCleanLooks {
		m.Look(t.Context())
	}
	if diff := cmp.Diff([2][]string{}, taintsOf(m)); diff != "" || m.Report()[0].State != Healthy {
		t.Errorf("back: %s, %+v", diff, m.Report())
	}
	prober.set(errors.New("again"))
	m.Look(t.Context())
	if diff := cmp.Diff([2][]string{}, taintsOf(m)); diff != "" {
		t.Errorf("once after it was back: %s", diff)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m.Look(ended)
	m.Look(t.Context())
	if got := taintsOf(m)[0]; len(got) != 1 {
		t.Errorf("an interrupted look counted: %q", got)
	}
}

// TestXIDEvents: an error taints its GPU or MIG device, ignored ones and those of no
// known GPU do not, and each asks for a look.
func TestXIDEvents(t *testing.T) {
	t.Parallel()
	m, _, _, _ := newMonitor(t)
	s := snapshotOf(2)
	s.GPUs[1].MIGEnabled, s.GPUs[1].MIGDevices = true, []device.MIGDevice{{UUID: "MIG-a", GPUInstance: 1, ComputeInstance: 0}, {UUID: "MIG-b", GPUInstance: 2, ComputeInstance: 0}}
	m.Complete(s, names)
	for _, event := range []Event{
		{GPU: "GPU-0", XID: 13}, {XID: 79}, {GPU: "GPU-0"}, {GPU: "GPU-0", XID: 48},
		{GPU: "GPU-1", XID: 94, GPUInstance: new(2), ComputeInstance: new(0)}, {GPU: "GPU-1", XID: 63, GPUInstance: new(5), ComputeInstance: new(0)},
	} {
		m.Handle(t.Context(), event)
	}
	got := map[device.UUID][]string{}
	for _, c := range m.ledger.Conditions() {
		got[c.Target] = append(got[c.Target], c.Value)
	}
	want := map[device.UUID][]string{"GPU-0": {"48"}, "MIG-b": {"94"}, "GPU-1": {"63"}}
	if diff := cmp.Diff(want, got); diff != "" || len(m.look) != 1 {
		t.Errorf("%d looks asked for: %s", len(m.look), diff)
	}
	for range DefaultCleanLooks {
		m.Look(t.Context())
	}
	if left := m.ledger.Conditions(); len(left) != 0 {
		t.Errorf("left after clean looks at the GPUs: %+v", left)
	}
}

// TestLinksChange: a change of links or of what answers asks for a discovery, and
// nothing else does.
func TestLinksChange(t *testing.T) {
	t.Parallel()
	m, prober, _, _ := newMonitor(t)
	asked := func() bool {
		m.Look(t.Context())
		select {
		case <-m.Changed():
			return true
		default:
			return false
		}
	}
	down := Observation{UUID: "GPU-0", ActiveLinks: new(3)}
	for i, step := range []struct {
		seen Observation
		want bool
	}{
		{well("GPU-0"), false}, {down, true}, {down, false}, {Observation{UUID: "GPU-0", ActiveLinks: new(3), UncorrectedErrors: new(uint64(9))}, false}, {well("GPU-0"), true},
		{Observation{UUID: "GPU-0", Lost: "x"}, true}, {Observation{UUID: "GPU-0", Hangs: "x"}, false}, {well("GPU-0"), true},
	} {
		prober.set(nil, step.seen, well("GPU-1"))
		if got := asked(); got != step.want {
			t.Errorf("step %d: got %v", i, got)
		}
	}
}

// TestMissingIsNotNews: a GPU that a discovery leaves out because it is lost or hangs
// keeps the reason that is known, look after look and discovery after discovery; one of
// which nothing is known is missing.
func TestMissingIsNotNews(t *testing.T) {
	t.Parallel()
	for want, seen := range map[string][]Observation{
		"lost=lost:NoSchedule":            {{UUID: "GPU-0", Lost: "x"}, well("GPU-1")},
		"not-responding=hangs:NoSchedule": {{UUID: "GPU-0", Hangs: "x"}, well("GPU-1")},
		"lost=missing:NoSchedule":         {well("GPU-1")},
	} {
		m, prober, _, _ := newMonitor(t)
		log := changes(m.ledger)
		prober.set(nil, seen...)
		for range 3 {
			m.Look(t.Context())
			m.Complete(without(snapshotOf(2), 0), names)
		}
		if diff := cmp.Diff([2][]string{{want}, nil}, taintsOf(m)); diff != "" || len(*log) != 1 {
			t.Errorf("changes %q: %s", *log, diff)
		}
	}
	m, _, _, _ := newMonitor(t)
	m.Complete(without(snapshotOf(2), 0), names)
	if diff := cmp.Diff([2][]string{{"lost=missing:NoSchedule"}, nil}, taintsOf(m)); diff != "" {
		t.Error(diff)
	}
}

// TestNobodyLooks: without a Prober, what earlier ones have found ends, what others
// have found does not, and a GPU that disappears is neither kept nor tainted.
func TestNobodyLooks(t *testing.T) {
	t.Parallel()
	store := NewStore(t.TempDir(), "n")
	ledger := func() *Ledger {
		t.Helper()
		document, problem, err := store.Load("boot-1", newClock().now)
		if err != nil || problem != nil {
			t.Fatal(err, problem)
		}
		return NewLedger(Policy{}, document, store, nil)
	}
	before, prober := ledger(), &script{}
	watching, err := New(Options{Prober: prober, Ledger: before})
	if err != nil {
		t.Fatal(err)
	}
	watching.Complete(snapshotOf(3), names)
	watching.Handle(t.Context(), Event{GPU: "GPU-0", XID: 79})
	prober.set(errors.New("no NVML"))
	for range failuresToTaint {
		watching.Look(t.Context())
	}
	before.Raise("w", "GPU-1", finding(KindViolation, "over-limit", Degraded))
	before.Raise("w", "GPU-2", finding(KindViolation, "over-limit", Degraded))
	if got := len(before.Conditions()); got != 4 {
		t.Fatalf("got %d conditions to begin with", got)
	}

	after := ledger()
	idle, err := New(Options{Ledger: after})
	if err != nil {
		t.Fatal(err)
	}
	log := changes(after)
	idle.Look(t.Context())
	if diff := cmp.Diff([]string{"* nvml=unavailable ends", "GPU-0 xid=79 ends"}, *log); diff != "" {
		t.Error(diff)
	}
	rest := without(snapshotOf(3), 2)
	if full := idle.Complete(rest, names); full != rest {
		t.Errorf("published %d GPUs", len(full.GPUs))
	}
	idle.Look(t.Context())
	for what, l := range map[string]*Ledger{"in memory": after, "on disk": ledger()} {
		if left := l.Conditions(); len(left) != 1 || left[0].Target != "GPU-1" || left[0].Kind != KindViolation {
			t.Errorf("%s: got %+v", what, left)
		}
	}
	if whole := snapshotOf(3); idle.Complete(whole, names) != whole || len(after.Conditions()) != 1 {
		t.Errorf("back: got %+v", after.Conditions())
	}
}

// TestReport: the health of devices in order of publication, with MIG devices in
// place of their GPU; what was not looked at for long, or ever, is unknown, and what
// others do with a GPU does not make it ill.
func TestReport(t *testing.T) {
	t.Parallel()
	m, prober, at, _ := newMonitor(t)
	s := snapshotOf(3)
	s.GPUs[1].MIGEnabled, s.GPUs[1].MIGDevices = true, []device.MIGDevice{{UUID: "MIG-a"}}
	m.Complete(s, names)
	m.ledger.Raise("w", "GPU-0", Finding{Kind: KindViolation, Value: "over-limit", Severity: Degraded, Message: "m", Advice: "a"})
	seen := at.now
	want := []DeviceHealth{
		{Name: "d-GPU-0", UUID: "GPU-0", State: Healthy, At: seen},
		{Name: "d-MIG-a", UUID: "MIG-a", Parent: "GPU-1", State: Healthy, At: seen},
		{Name: "d-GPU-2", UUID: "GPU-2", State: Unknown, Message: "the GPU has not been looked at yet"},
	}
	if diff := cmp.Diff(want, m.Report()); diff != "" {
		t.Error(diff)
	}
	prober.set(nil, well("GPU-0"), Observation{UUID: "GPU-1", Remap: &Remap{Failed: true}}, well("GPU-2"))
	at.now = at.now.Add(staleAfter * DefaultPeriod)
	if diff := cmp.Diff(want, m.Report()); diff != "" {
		t.Errorf("just in time: %s", diff)
	}
	at.now = at.now.Add(time.Second)
	if got := m.Report()[0]; got.State != Unknown || got.Message != "the GPU was last looked at 1m1s ago" {
		t.Errorf("too late: got %+v", got)
	}
	m.Look(t.Context())
	got := m.Report()
	if got[0].State != Healthy || got[2].State != Healthy || got[1].State != Unhealthy || got[1].Message != "bad memory could not be replaced by spare memory; "+replaceGPU {
		t.Errorf("got %+v", got)
	}
}

// TestRun: looks come by the clock and soon after an event, and end with the context.
func TestRun(t *testing.T) {
	t.Parallel()
	prober := &script{events: make(chan Event)}
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	m, err := New(Options{Prober: prober, Ledger: l, Period: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	m.Complete(snapshotOf(1), names)
	prober.set(nil, well("GPU-0"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	told := make(chan Change, 10)
	l.Listen(func(c Change) { told <- c })
	prober.events <- Event{GPU: "GPU-0", XID: 79}
	for i, want := range []bool{false, true} {
		select {
		case c := <-told:
			if c.Ended != want || c.Value != "79" {
				t.Errorf("change %d: got %+v", i, c)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no change %d after a minute", i)
		}
	}
	if r := m.Report(); r[0].State != Healthy || r[0].At.IsZero() {
		t.Errorf("got %+v", r)
	}
	cancel()
	<-done

	idle, err := New(Options{Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	idle.Look(t.Context())
	idle.Run(ctx)
	if _, err := New(Options{}); err == nil {
		t.Error("a monitor without ledger")
	}
}
