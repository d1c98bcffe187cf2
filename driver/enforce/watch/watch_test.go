// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/internal/owners"
)

var (
	idA = strings.Repeat("a", 64)
	idB = strings.Repeat("0123456789abcdef", 4)
)

func owner(container string, limits ...int64) *owners.Owner {
	out := &owners.Owner{Namespace: "default", Pod: "train", Container: container}
	for i, limit := range limits {
		out.GPUs = append(out.GPUs, owners.GPU{UUID: fmt.Sprintf("GPU-%d", i), MemoryLimitMiB: limit})
	}
	return out
}

// answering is a GPU that tells everything about its processes.
func answering(uuid string) GPU { return GPU{UUID: uuid, TellsProcesses: true, TellsBusy: true} }

// TestSum: uses and violations of a sample, exactly.
func TestSum(t *testing.T) {
	t.Parallel()
	known := map[string]*owners.Owner{idA: owner("a", 10, 0), idB: owner("b", 5, 5, 5, 5)}
	containerOf := func(pid int) string {
		return map[int]string{1: idA, 2: idA, 3: idB, 4: "unknown"}[pid]
	}
	const mib = 1 << 20
	sample := &Sample{
		GPUs: []GPU{answering("GPU-0"), answering("GPU-1"), {UUID: "GPU-2", TellsProcesses: true}, {UUID: "GPU-3"}, answering("GPU-9")},
		Processes: []Process{
			{PID: 1, UUID: "GPU-0", MemoryBytes: 6 * mib, BusyPercent: 70}, {PID: 2, UUID: "GPU-0", MemoryBytes: 4*mib + 1, BusyPercent: 70}, // together above 10
			{PID: 1, UUID: "GPU-1", MemoryBytes: 100 * mib, BusyPercent: 1}, // no limit there
			{PID: 3, UUID: "GPU-0", MemoryBytes: 5 * mib},                   // exactly its limit
			{PID: 3, UUID: "GPU-9", MemoryBytes: 9 * mib},                   // not its GPU
			{PID: 4, UUID: "GPU-0", MemoryBytes: 99 * mib},                  // nobody that we know
			{PID: 5, UUID: "GPU-0", MemoryBytes: 99 * mib},                  // a process of the host
			{PID: 3, UUID: "GPU-3", MemoryBytes: 99 * mib},                  // not all of its processes are known
		},
	}
	uses := Sum(sample, containerOf, known)
	percent := func(p uint32) *uint32 { return &p }
	want := []Use{
		{ContainerID: idB, Owner: known[idB], GPU: &known[idB].GPUs[0], MemoryBytes: 5 * mib, BusyPercent: percent(0)},
		{ContainerID: idB, Owner: known[idB], GPU: &known[idB].GPUs[1], BusyPercent: percent(0)},
		{ContainerID: idB, Owner: known[idB], GPU: &known[idB].GPUs[2]},
		{ContainerID: idA, Owner: known[idA], GPU: &known[idA].GPUs[0], MemoryBytes: 10*mib + 1, BusyPercent: percent(100)},
		{ContainerID: idA, Owner: known[idA], GPU: &known[idA].GPUs[1], MemoryBytes: 100 * mib, BusyPercent: percent(1)},
	}
	if diff := cmp.Diff(want, uses); diff != "" {
		t.Error(diff)
	}
	got := Compare(uses)
	violations := []Violation{{ContainerID: idA, Owner: known[idA], UUID: "GPU-0", UsedMiB: 11, LimitMiB: 10}}
	if diff := cmp.Diff(violations, got); diff != "" {
		t.Fatal(diff)
	}
	if text := got[0].String(); text != `container "a" of pod "default/train" uses 11 MiB of GPU "GPU-0", its limit is 10 MiB` {
		t.Errorf("got %q", text)
	}
}

func TestContainerID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ cgroups, want string }{
		"v2, cgroupfs":      {"0::/kubepods/burstable/pod1234/" + idA + "\n", idA},
		"v2, systemd":       {"0::/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-" + idB + ".scope\n", idB},
		"CRI-O":             {"0::/kubepods.slice/kubepods-pod1_2.slice/crio-" + idB + ".scope\n", idB},
		"v1":                {"12:memory:/own/kubepods/pod1/" + idA + "\n1:name=systemd:/kubepods/pod1/" + idB + "\n", idA},
		"cgroup below":      {"0::/kubepods/pod1/" + idA + "/init/" + idB + "\n", idA},
		"host":              {"0::/system.slice/sshd.service\n", ""},
		"container, no pod": {"0::/system.slice/docker-" + idA + ".scope\n", ""},
		"pod itself":        {"0::/kubepods/pod1\n", ""},
		"too short":         {"0::/kubepods/pod1/" + idA[1:] + "\n", ""},
		"upper case":        {"0::/kubepods/pod1/" + strings.ToUpper(idA) + "\n", ""},
		"empty":             {"", ""},
		"no colons":         {"kubepods/" + idA, ""},
	} {
		if got := ContainerID(test.cgroups); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// fakeSource answers what the test sets.
type fakeSource struct {
	sample *Sample
	err    error
}

func (s *fakeSource) Sample(context.Context) (*Sample, error) { return s.sample, s.err }

// sampleOf has a process on GPU-0.
func sampleOf(pid int, bytes uint64) *Sample {
	return &Sample{GPUs: []GPU{answering("GPU-0")}, Processes: []Process{{PID: pid, UUID: "GPU-0", MemoryBytes: bytes}, {PID: 8, UUID: "GPU-0", MemoryBytes: 1 << 40}}}
}

// calls of Actions.
type calls struct{ got []string }

func (c *calls) Violated(_ context.Context, v *Violation) { c.got = append(c.got, v.String()) }

// TestLook: a violation is told when it begins and again after a while; what can
// be read counts although something else cannot.
func TestLook(t *testing.T) {
	t.Parallel()
	store := owners.NewStore(t.TempDir())
	if err := store.Put(idA, owner("a", 10)); err != nil {
		t.Fatal(err)
	}
	source := &fakeSource{sample: sampleOf(7, 20<<20), err: errors.New("GPU 3 is lost")}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	actions := &calls{}
	watcher, err := New(Options{Source: source, Owners: store, Actions: actions, Now: func() time.Time { return now },
		Proc: fstest.MapFS{"7/cgroup": {Data: []byte("0::/kubepods/pod1/" + idA + "\n")}}})
	if err != nil {
		t.Fatal(err)
	}
	if watcher.Last() != nil {
		t.Error("something was seen before the first look")
	}
	for i, want := range []int{1, 1, 2, 2, 3, 3} {
		got, err := watcher.Look(t.Context())
		if !errors.Is(err, source.err) || watcher.Failed() != uint64(i+1) {
			t.Errorf("look %d: got error %v, %d failures", i, err, watcher.Failed())
		}
		if (len(got) > 0) != (i != 3 && i != 5) || len(actions.got) != want {
			t.Errorf("look %d: got %v, told %d times, want %d", i, got, len(actions.got), want)
		}
		if last := watcher.Last(); i != 5 && (!last.At.Equal(now) || len(last.Uses) != 1 || (last.Uses[0].MemoryBytes > 0) != (i != 3)) {
			t.Errorf("look %d: remembers %+v", i, last)
		}
		switch i {
		case 0:
			now = now.Add(DefaultAgain - 1)
		case 1:
			now = now.Add(1)
		case 2:
			source.sample = sampleOf(9, 1) // it keeps to its limit
		case 3:
			source.sample = sampleOf(7, 20<<20)
		case 4:
			source.sample = nil // nothing can be asked
			now = now.Add(time.Hour)
		}
	}
	if last := watcher.Last(); now.Sub(last.At) != time.Hour || len(last.Uses) != 1 {
		t.Errorf("after nothing could be asked: remembers %+v", last)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a watcher of nothing is accepted")
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	store := owners.NewStore(t.TempDir())
	if err := store.Put(idA, owner("a", 10)); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 1)
	watcher, err := New(Options{Source: &fakeSource{sample: sampleOf(7, 20<<20)}, Owners: store, Period: time.Millisecond,
		Actions: notify(told), Proc: fstest.MapFS{"7/cgroup": {Data: []byte("0::/kubepods/pod1/" + idA + "\n")}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { watcher.Run(ctx); close(done) }()
	<-told
	cancel()
	<-done
}

type notify chan struct{}

func (n notify) Violated(context.Context, *Violation) { n <- struct{}{} }

// hanging is a source that answers only when it is given up.
type hanging struct{}

func (hanging) Sample(ctx context.Context) (*Sample, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestHang: a source that hangs is given up after a period.
func TestHang(t *testing.T) {
	t.Parallel()
	watcher, err := New(Options{Source: hanging{}, Owners: owners.NewStore(t.TempDir()), Proc: fstest.MapFS{}, Actions: &calls{}, Period: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watcher.Look(t.Context()); !errors.Is(err, context.DeadlineExceeded) || watcher.Last() != nil || watcher.Failed() != 1 {
		t.Errorf("got %v, %+v, %d failures", err, watcher.Last(), watcher.Failed())
	}
}

// observing is Actions that hear of every look.
type observing struct {
	calls
	looks []string
}

func (o *observing) Looked(_ context.Context, seen []string, violations []Violation, err error) {
	o.looks = append(o.looks, fmt.Sprintf("%d of %q %v", len(violations), seen, err))
}

// TestObserver: an observer hears of every look, also of what was told before, and
// of which GPUs everything could be seen: of none while a container is not known.
func TestObserver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := owners.NewStore(dir)
	if err := store.Put(idA, owner("a", 10)); err != nil {
		t.Fatal(err)
	}
	source, observer := &fakeSource{sample: sampleOf(7, 20<<20)}, &observing{}
	watcher, err := New(Options{Source: source, Owners: store, Actions: observer, Proc: fstest.MapFS{"7/cgroup": {Data: []byte("0::/kubepods/pod1/" + idA + "\n")}}})
	if err != nil {
		t.Fatal(err)
	}
	mute := sampleOf(7, 20<<20)
	mute.GPUs = append(mute.GPUs, GPU{UUID: "GPU-1"}, answering("GPU-2"))
	for _, answer := range []*fakeSource{source, source, {sample: mute, err: errors.New("lost")}, {err: errors.New("hangs")}, {sample: sampleOf(9, 1)}} {
		*source = *answer
		_, _ = watcher.Look(t.Context()) // the error is what the observer gets
	}
	want := []string{`1 of ["GPU-0"] <nil>`, `1 of ["GPU-0"] <nil>`, `1 of ["GPU-0" "GPU-2"] lost`, `0 of [] hangs`, `0 of ["GPU-0"] <nil>`}
	if diff := cmp.Diff(want, observer.looks); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("c", 64)+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = watcher.Look(t.Context())
	if last := observer.looks[len(observer.looks)-1]; err == nil || !strings.HasPrefix(last, "0 of [] reading the owner") {
		t.Errorf("damaged file: got %q, %v", last, err)
	}
	if len(observer.got) != 1 {
		t.Errorf("told %d times", len(observer.got))
	}
}

func FuzzContainerID(f *testing.F) {
	f.Add("0::/kubepods/pod1/" + idA)
	f.Fuzz(func(t *testing.T, cgroups string) {
		if id := ContainerID(cgroups); id != "" && !isContainerID(id) {
			t.Errorf("got %q", id)
		}
	})
}
