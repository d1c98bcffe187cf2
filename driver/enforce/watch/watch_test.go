// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
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

func TestCompare(t *testing.T) {
	t.Parallel()
	known := map[string]*owners.Owner{idA: owner("a", 10, 0), idB: owner("b", 5)}
	containerOf := func(pid int) string {
		return map[int]string{1: idA, 2: idA, 3: idB, 4: "unknown"}[pid]
	}
	const mib = 1 << 20
	got := Compare([]Process{
		{PID: 1, UUID: "GPU-0", MemoryBytes: 6 * mib}, {PID: 2, UUID: "GPU-0", MemoryBytes: 4*mib + 1}, // together above 10
		{PID: 1, UUID: "GPU-1", MemoryBytes: 100 * mib}, // no limit there
		{PID: 3, UUID: "GPU-0", MemoryBytes: 5 * mib},   // exactly its limit
		{PID: 3, UUID: "GPU-9", MemoryBytes: 9 * mib},   // not its GPU
		{PID: 4, UUID: "GPU-0", MemoryBytes: 99 * mib},  // nobody that we know
		{PID: 5, UUID: "GPU-0", MemoryBytes: 99 * mib},  // a process of the host
	}, containerOf, known)
	want := []Violation{{ContainerID: idA, Owner: known[idA], UUID: "GPU-0", UsedMiB: 11, LimitMiB: 10}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := want[0].String(); text != `container "a" of pod "default/train" uses 11 MiB of GPU "GPU-0", its limit is 10 MiB` {
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

// fakeProcesses answers what the test sets.
type fakeProcesses struct {
	processes []Process
	err       error
}

func (p *fakeProcesses) Processes(context.Context) ([]Process, error) { return p.processes, p.err }

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
	processes := &fakeProcesses{processes: []Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 20 << 20}, {PID: 8, UUID: "GPU-0", MemoryBytes: 1 << 40}}, err: errors.New("GPU 3 is lost")}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	actions := &calls{}
	watcher, err := New(Options{Processes: processes, Owners: store, Actions: actions, Now: func() time.Time { return now },
		Proc: fstest.MapFS{"7/cgroup": {Data: []byte("0::/kubepods/pod1/" + idA + "\n")}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 1, 2, 2, 3} {
		got, err := watcher.Look(t.Context())
		if !errors.Is(err, processes.err) {
			t.Errorf("look %d: got error %v", i, err)
		}
		if (len(got) > 0) != (processes.processes != nil) || len(actions.got) != want {
			t.Errorf("look %d: got %v, told %d times, want %d", i, got, len(actions.got), want)
		}
		switch i {
		case 0:
			now = now.Add(DefaultAgain - 1)
		case 1:
			now = now.Add(1)
		case 2:
			processes.processes = nil // it keeps to its limit
		case 3:
			processes.processes = []Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 20 << 20}}
		}
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
	watcher, err := New(Options{Processes: &fakeProcesses{processes: []Process{{PID: 7, UUID: "GPU-0", MemoryBytes: 20 << 20}}}, Owners: store, Period: time.Millisecond,
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

func FuzzContainerID(f *testing.F) {
	f.Add("0::/kubepods/pod1/" + idA)
	f.Fuzz(func(t *testing.T, cgroups string) {
		if id := ContainerID(cgroups); id != "" && !isContainerID(id) {
			t.Errorf("got %q", id)
		}
	})
}
