// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/topodra/topodra/driver/device"
)

// clock is a clock for tests.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)} }

func (c *clock) read() time.Time { return c.now }

// memory keeps what was saved last.
type memory struct {
	content []byte
	saves   int
	err     error
}

func (m *memory) Save(d *Document) error {
	if m.err != nil {
		return m.err
	}
	var err error
	m.saves++
	m.content, err = Encode(d)
	return err
}

// changes writes down what a ledger tells.
func changes(l *Ledger) *[]string {
	var out []string
	l.Listen(func(c Change) {
		verb := "begins"
		if c.Ended {
			verb = "ends"
		}
		out = append(out, fmt.Sprintf("%s %s=%s %s", c.Target, c.Kind, c.Value, verb))
	})
	return &out
}

// finding of a kind.
func finding(kind Kind, value string, severity Severity) Finding {
	return Finding{Kind: kind, Value: value, Severity: severity, State: Unhealthy, Message: "m", Advice: "a"}
}

// keys of taints with value and effect.
func keys(taints []resourceapi.DeviceTaint) []string {
	var out []string
	for _, taint := range taints {
		out = append(out, fmt.Sprintf("%s=%s:%s", strings.TrimPrefix(taint.Key, Domain), taint.Value, taint.Effect))
	}
	return out
}

// TestHysteresis: an event begins a condition, and exactly the third clean look in a
// row ends it; whatever is found in between starts the count anew; looks of others,
// at others, or that saw only a part do not count.
func TestHysteresis(t *testing.T) {
	t.Parallel()
	at := newClock()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, at.read)
	log := changes(l)
	bad := finding(KindXID, "79", Fatal)
	l.Raise("p", "GPU-a", bad)
	began := at.now
	for step := range 3 {
		at.now = at.now.Add(time.Minute)
		l.Look("p", "GPU-a")
		l.Look("p", "GPU-a")
		l.Look("other", "GPU-a")
		l.Look("p", "GPU-b")
		l.Raise("p", "GPU-a", finding(KindECC, "uncorrectable", Fatal)) // Ends nothing.
		if step < 2 {
			l.Raise("p", "GPU-a", bad)
		}
	}
	if got := keys(l.Taints("GPU-a", "")); !cmp.Equal(got, []string{"ecc=uncorrectable:NoSchedule", "xid=79:NoSchedule"}) {
		t.Fatalf("got taints %q", got)
	}
	if taint := l.Taints("GPU-a", "")[1]; !taint.TimeAdded.Equal(&metav1.Time{Time: began.Truncate(time.Second)}) {
		t.Errorf("added at %s, want %s", taint.TimeAdded, began)
	}
	l.Look("p", "GPU-a")
	if got := keys(l.Taints("GPU-a", "")); !cmp.Equal(got, []string{"ecc=uncorrectable:NoSchedule"}) {
		t.Errorf("after the third: got taints %q", got)
	}
	l.Look("p", "GPU-a")
	l.Look("p", "GPU-a")
	want := []string{"GPU-a xid=79 begins", "GPU-a ecc=uncorrectable begins", "GPU-a xid=79 ends", "GPU-a ecc=uncorrectable ends"}
	if diff := cmp.Diff(want, *log); diff != "" || l.Taints("GPU-a", "") != nil {
		t.Error(diff)
	}
}

// TestWorstStays: of one kind, what is worse replaces what is not, and not the other
// way round; another value at the same severity replaces, and keeps the time.
func TestWorstStays(t *testing.T) {
	t.Parallel()
	at := newClock()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, at.read)
	log := changes(l)
	began := at.now
	l.Raise("p", "GPU-a", finding(KindXID, "94", Degraded))
	at.now = at.now.Add(time.Hour)
	l.Raise("p", "GPU-a", finding(KindXID, "79", Fatal))
	l.Raise("p", "GPU-a", finding(KindXID, "94", Degraded))
	l.Raise("p", "GPU-a", finding(KindXID, "79", Fatal))
	l.Raise("p", "GPU-a", finding(KindXID, "48", Fatal))
	if diff := cmp.Diff([]string{"GPU-a xid=94 begins", "GPU-a xid=79 begins", "GPU-a xid=48 begins"}, *log); diff != "" {
		t.Error(diff)
	}
	if got := l.Conditions(); len(got) != 1 || got[0].Value != "48" || !got[0].Since.Equal(began) || !got[0].LastSeen.Equal(at.now) {
		t.Errorf("got %+v", got)
	}
}

// TestTargets: a MIG device has its own taints, those of its GPU and those of all,
// of each key the strongest; its GPU does not have those of the MIG device.
func TestTargets(t *testing.T) {
	t.Parallel()
	policy := Policy{}
	if err := policy.SetEffects(map[string]string{"fatal": "NoExecute", "nvml": "NoSchedule", "info": "None"}); err != nil {
		t.Fatal(err)
	}
	l := NewLedger(policy, NewDocument("n", ""), nil, nil)
	l.Raise("p", "MIG-a", finding(KindXID, "94", Degraded))
	l.Raise("p", "GPU-a", finding(KindXID, "79", Fatal), finding(KindNVLink, "links-down", Info))
	l.Raise("q", AllDevices, finding(KindNVML, "unavailable", Fatal), finding(KindXID, "1", Degraded))
	for _, tc := range []struct {
		uuid, parent device.UUID
		want         []string
	}{
		{"MIG-a", "GPU-a", []string{"nvlink=links-down:None", "nvml=unavailable:NoSchedule", "xid=79:NoExecute"}},
		{"GPU-a", "", []string{"nvlink=links-down:None", "nvml=unavailable:NoSchedule", "xid=79:NoExecute"}},
		{"MIG-a", "GPU-b", []string{"nvml=unavailable:NoSchedule", "xid=1:NoSchedule"}},
		{"GPU-b", "", []string{"nvml=unavailable:NoSchedule", "xid=1:NoSchedule"}},
	} {
		if diff := cmp.Diff(tc.want, keys(l.Taints(tc.uuid, tc.parent))); diff != "" {
			t.Errorf("%s of %s: %s", tc.uuid, tc.parent, diff)
		}
	}
	l.Forget("GPU-a")
	if got := keys(l.Taints("GPU-a", "")); len(got) != 2 {
		t.Errorf("forgotten: got %q", got)
	}
}

// TestLookAll: what a source does not find any more, anywhere, ends.
func TestLookAll(t *testing.T) {
	t.Parallel()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	log := changes(l)
	l.SetCleanLooks("s", 1)
	l.LookAll("s", map[device.UUID][]Finding{"GPU-b": {finding(KindViolation, "over-limit", Degraded)}, "GPU-a": {finding(KindViolation, "over-limit", Degraded)}})
	l.LookAll("s", map[device.UUID][]Finding{"GPU-b": {finding(KindViolation, "over-limit", Degraded)}})
	l.LookAll("t", nil)
	l.LookAll("s", nil)
	want := []string{"GPU-a memory-violation=over-limit begins", "GPU-b memory-violation=over-limit begins",
		"GPU-a memory-violation=over-limit ends", "GPU-b memory-violation=over-limit ends"}
	if diff := cmp.Diff(want, *log); diff != "" {
		t.Error(diff)
	}
}

// TestRestart: a new ledger on what was saved has the same taints with the same
// times, and needs as many clean looks as ever; what could not be saved is saved
// with the next look, even one that finds nothing new.
func TestRestart(t *testing.T) {
	t.Parallel()
	at, disk := newClock(), &memory{}
	l := NewLedger(Policy{}, NewDocument("n", "boot"), disk, at.read)
	l.Raise("p", "GPU-a", finding(KindXID, "79", Fatal))
	l.Look("p", "GPU-a")
	l.Look("p", "GPU-a")
	disk.err = errors.New("disk full")
	l.Raise("p", "GPU-b", finding(KindECC, "uncorrectable", Fatal))
	if l.SaveError() == nil || len(l.Taints("GPU-b", "")) != 1 {
		t.Errorf("save error %v, taints %v", l.SaveError(), l.Taints("GPU-b", ""))
	}
	disk.err = nil
	l.Look("p", "GPU-c")
	if disk.saves != 2 || l.SaveError() != nil {
		t.Errorf("saved %d times, error %v", disk.saves, l.SaveError())
	}
	document, err := Decode(disk.content)
	if err != nil {
		t.Fatal(err)
	}
	again := NewLedger(Policy{}, document, disk, at.read)
	for _, uuid := range []device.UUID{"GPU-a", "GPU-b", "GPU-c"} {
		if diff := cmp.Diff(l.Taints(uuid, ""), again.Taints(uuid, "")); diff != "" {
			t.Error(diff)
		}
	}
	for look, want := range []int{1, 1, 0} {
		again.Look("p", "GPU-a")
		if got := len(again.Taints("GPU-a", "")); got != want {
			t.Errorf("after look %d: %d taints, want %d", look+1, got, want)
		}
	}
	if document, err = Decode(disk.content); err != nil || len(document.Conditions) != 1 {
		t.Errorf("after the end: got %+v, %v", document, err)
	}
}

// TestSubscribe: any number of changes is one item, and none comes after the stop.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	changes, stop := l.Subscribe()
	l.Raise("p", "GPU-a", finding(KindXID, "1", Fatal))
	l.Raise("p", "GPU-b", finding(KindXID, "1", Fatal))
	if len(changes) != 1 {
		t.Errorf("%d items", len(changes))
	}
	<-changes
	l.Raise("p", "GPU-a", finding(KindXID, "1", Fatal)) // No news.
	if len(changes) != 0 {
		t.Error("an item without news")
	}
	stop()
	l.Forget("GPU-a")
	if len(changes) != 0 {
		t.Error("an item after the stop")
	}
}

// TestLedgerProperty: whatever happens, in any order, every target ends without
// taints after three complete looks of all sources that find nothing; and at no time
// does a device have two taints of one key, or another's.
func TestLedgerProperty(t *testing.T) {
	t.Parallel()
	targets := []device.UUID{"GPU-a", "GPU-b", AllDevices}
	sources := []string{"p", "q"}
	rapid.Check(t, func(t *rapid.T) {
		disk := &memory{}
		l := NewLedger(Policy{}, NewDocument("n", ""), disk, newClock().read)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			source, target := rapid.SampledFrom(sources).Draw(t, "source"), rapid.SampledFrom(targets).Draw(t, "target")
			f := finding(rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"), rapid.SampledFrom(severities).Draw(t, "severity"))
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				l.Raise(source, target, f)
			case 1:
				l.Look(source, target, f)
			case 2:
				l.Look(source, target)
			default:
				l.Forget(target)
			}
			seen := map[string]bool{}
			for _, taint := range l.Taints("GPU-a", "") {
				if seen[taint.Key] {
					t.Fatalf("two taints %q", taint.Key)
				}
				seen[taint.Key] = true
			}
			if disk.content != nil {
				if _, err := Decode(disk.content); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range DefaultCleanLooks {
			for _, source := range sources {
				for _, target := range targets {
					l.Look(source, target)
				}
			}
		}
		if left := l.Conditions(); len(left) != 0 {
			t.Fatalf("left: %+v", left)
		}
	})
}

func TestSetEffects(t *testing.T) {
	t.Parallel()
	var p Policy
	for severity, want := range DefaultEffects {
		if got := p.Effect(KindXID, severity); got != want {
			t.Errorf("%s: got %s, want %s", severity, got, want)
		}
	}
	err := p.SetEffects(map[string]string{"fatal": "Explode", "colour": "None", "xid": "NoExecute", "degraded": "None"})
	want := `reading effects of taints: "colour" is neither a severity (fatal, degraded, info) nor a kind of taint (ecc, fabric, lost, memory-violation, not-responding, nvlink, nvml, other-allocator, recovery-action, row-remap, xid)
the effect of "fatal" is "Explode", known are None, NoSchedule, NoExecute`
	if err == nil || err.Error() != want {
		t.Errorf("got error %v", err)
	}
	if p.Effect(KindXID, Info) != resourceapi.DeviceTaintEffectNoExecute || p.Effect(KindECC, Degraded) != resourceapi.DeviceTaintEffectNone {
		t.Errorf("got %+v", p)
	}
}

// TestXIDs: the ignored ones are what programs cause; others have a severity and
// something to do.
func TestXIDs(t *testing.T) {
	t.Parallel()
	p := Policy{}
	for _, number := range DefaultIgnoredXIDs {
		if !p.Ignores(number) {
			t.Errorf("%d is not ignored", number)
		}
		if _, ok := xids[number]; ok {
			t.Errorf("%d is ignored and known", number)
		}
	}
	if p.Ignores(79) || (&Policy{IgnoredXIDs: []uint64{79}}).Ignores(13) || !(&Policy{IgnoredXIDs: []uint64{79}}).Ignores(79) || (&Policy{IgnoredXIDs: []uint64{}}).Ignores(13) {
		t.Error("the list is not what counts")
	}
	for number := range uint64(200) {
		f := XIDFinding(number)
		c := Condition{Target: "GPU-a", Finding: f}
		if err := c.check(); err != nil || f.Message == "" || f.Advice == "" || f.State != Unhealthy {
			t.Errorf("%d: %+v, %v", number, f, err)
		}
	}
	if f := XIDFinding(79); f.Severity != Fatal || f.Message != "XID 79: the GPU has fallen off the bus" {
		t.Errorf("got %+v", f)
	}
}
