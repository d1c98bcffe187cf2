// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
)

// errFault is what a faulty step returns; errKilled is what it panics with.
var (
	errFault  = errors.New("injected fault")
	errKilled = errors.New("injected kill")
)

// fault says at which step (counted from 0) something happens.
type fault struct {
	at int

	// after lets the step have its effect first.
	after bool

	// stays makes all later steps fail, too, as a full disk does.
	stays bool

	// kill ends the process instead of returning an error.
	kill bool

	step  int
	trace []string
}

// do counts and runs a step.
func (f *fault) do(name string, act func() error) error {
	step := f.step
	f.step++
	f.trace = append(f.trace, name)
	if step != f.at && (!f.stays || step < f.at) {
		return act()
	}
	if f.after {
		if err := act(); err != nil {
			return err
		}
	}
	if f.kill {
		panic(errKilled)
	}
	return errFault
}

// faultyHost puts a fault before or after each step that changes the node.
type faultyHost struct {
	Host
	fault *fault
}

func (h *faultyHost) SaveIntent(d *checkpoint.Document) error {
	return h.fault.do("SaveIntent", func() error { return h.Host.SaveIntent(d) })
}
func (h *faultyHost) Save(d *checkpoint.Document) error {
	return h.fault.do("Save", func() error { return h.Host.Save(d) })
}
func (h *faultyHost) WriteSpec(uid types.UID, spec *specs.Spec) error {
	return h.fault.do("WriteSpec", func() error { return h.Host.WriteSpec(uid, spec) })
}
func (h *faultyHost) RemoveSpec(uid types.UID) error {
	return h.fault.do("RemoveSpec", func() error { return h.Host.RemoveSpec(uid) })
}
func (h *faultyHost) CheckPaths(spec *specs.Spec) error {
	return h.fault.do("CheckPaths", func() error { return h.Host.CheckPaths(spec) })
}
func (h *faultyHost) Provision(ctx context.Context, c *enforce.Container) error {
	return h.fault.do("Provision", func() error { return h.Host.Provision(ctx, c) })
}
func (h *faultyHost) RemoveClaimRegions(uid types.UID) error {
	return h.fault.do("RemoveClaimRegions", func() error { return h.Host.RemoveClaimRegions(uid) })
}
func (h *faultyHost) SetRegionsAside() error {
	return h.fault.do("SetRegionsAside", h.Host.SetRegionsAside)
}
func (h *faultyHost) RemoveSetAside() error {
	return h.fault.do("RemoveSetAside", h.Host.RemoveSetAside)
}
func (h *faultyHost) SetAside(now time.Time) (path string, err error) {
	err = h.fault.do("SetAside", func() error { path, err = h.Host.SetAside(now); return err })
	return path, err
}

// faulty is a manager with a fault, as another process would be.
func (f *fixture) faulty(fault *fault) *Manager {
	f.wrap = func(host Host) Host { return &faultyHost{Host: host, fault: fault} }
	defer func() { f.wrap = nil }()
	return f.manager()
}

// survive runs act, which may be killed, and reports that.
func survive(act func() error) (killed bool, err error) {
	defer func() {
		if got := recover(); got != nil {
			if got != any(errKilled) {
				panic(got)
			}
			killed = true
		}
	}()
	return false, act()
}

// faultCase is what is done under faults, on a node that begin has set up, and
// what must be there when it has worked.
type faultCase struct {
	name  string
	begin func(f *fixture, c *resourceapi.ResourceClaim)
	act   func(ctx context.Context, m *Manager, c *resourceapi.ResourceClaim) error
	done  []string
}

var (
	clean    = []string{"record uid-other Completed", "spec uid-other", "region claims/uid-other/pod-other_main"}
	prepared = []string{"record uid-c Completed", "record uid-other Completed", "spec uid-c", "spec uid-other",
		"region claims/uid-c/pod-p_main", "region claims/uid-other/pod-other_main"}
)

func faultCases() []faultCase {
	prepare := func(ctx context.Context, m *Manager, c *resourceapi.ResourceClaim) error {
		_, err := m.Prepare(ctx, c)
		return err
	}
	return []faultCase{
		{"prepare", func(*fixture, *resourceapi.ResourceClaim) {}, prepare, prepared},
		{"prepare again", func(f *fixture, c *resourceapi.ResourceClaim) { f.prepare(f.manager(), c) }, prepare, prepared},
		{"unprepare", func(f *fixture, c *resourceapi.ResourceClaim) { f.prepare(f.manager(), c) },
			func(ctx context.Context, m *Manager, c *resourceapi.ResourceClaim) error {
				return m.Unprepare(ctx, c.UID)
			}, clean},
		{"new allocation", func(f *fixture, c *resourceapi.ResourceClaim) {
			old := claim("c", []*corev1.Pod{podWith("p")}, result{request: "r", gpu: 2, memory: 5})
			f.cluster.add(podWith("p", "app:before=c"))
			f.prepare(f.manager(), old)
			f.cluster.add(ran(podWith("p", "app:main=c")), c)
		}, prepare, prepared},
	}
}

// faultKinds are all kinds; a process that was killed stays so by itself.
func faultKinds() []fault {
	return []fault{{}, {after: true}, {stays: true}, {after: true, stays: true}, {kill: true}, {after: true, kill: true}}
}

// eachFault runs check for every step of the cases with every kind of fault,
// until the step is past the end.
func eachFault(t *testing.T, cases []faultCase, kinds []fault, check func(t *testing.T, test faultCase, f *fixture, c *resourceapi.ResourceClaim, fault *fault)) {
	t.Helper()
	enforcer := newHAMiCore(t)
	for _, test := range cases {
		for _, kind := range kinds {
			for at := 0; ; at++ {
				fault := kind
				fault.at = at
				f := newFixtureWith(t, enforcer)
				other, pod := podWith("other", "app:main=other"), ran(podWith("p", "app:main=c"))
				c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 20})
				f.cluster.add(ran(other), pod, c, claim("other", []*corev1.Pod{other}, result{request: "r", gpu: 1, memory: 20}))
				f.prepare(f.manager(), f.cluster.claims["default/other"])
				test.begin(f, c)
				check(t, test, f, c, &fault)
				if fault.step <= at {
					if at < 2 {
						t.Fatalf("%s has only %d steps: %q", test.name, at, fault.trace)
					}
					break
				}
			}
		}
	}
}

// TestFaultThenTryAgain: whatever step fails or kills the process, the other
// claim is untouched, an error is reported, and the next try works.
func TestFaultThenTryAgain(t *testing.T) {
	t.Parallel()
	eachFault(t, faultCases(), faultKinds(), func(t *testing.T, test faultCase, f *fixture, c *resourceapi.ResourceClaim, fault *fault) {
		t.Helper()
		what := fmt.Sprintf("%s, %+v", test.name, *fault)
		manager := f.faulty(fault)
		killed, err := survive(func() error { return test.act(t.Context(), manager, c) })
		hit := fault.step > fault.at
		if hit != (killed || errors.Is(err, errFault)) {
			t.Errorf("%s: got error %v, killed %t", what, err, killed)
		}
		requireOther(t, what, f)
		if err := test.act(t.Context(), f.manager(), c); err != nil {
			t.Errorf("%s: trying again: %v", what, err)
		}
		if diff := cmp.Diff(test.done, f.world()); diff != "" {
			t.Errorf("%s: after trying again: %s", what, diff)
		}
	})
}

// TestFaultThenGone: after whatever step failed or killed the process, claim and
// pod go, and a new process removes everything that was left.
func TestFaultThenGone(t *testing.T) {
	t.Parallel()
	eachFault(t, faultCases(), faultKinds(), func(t *testing.T, test faultCase, f *fixture, c *resourceapi.ResourceClaim, fault *fault) {
		t.Helper()
		what := fmt.Sprintf("%s, %+v", test.name, *fault)
		manager := f.faulty(fault)
		_, _ = survive(func() error { return test.act(t.Context(), manager, c) }) // the other test looks at the error
		f.cluster.remove(c)
		f.cluster.remove(f.cluster.pods["default/p"])
		if err := f.manager().Reconcile(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(clean, f.world()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	})
}

// TestFailureLeavesNothing: a first Prepare that fails at one step takes back
// what it has done, at once and by itself.
func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	eachFault(t, faultCases()[:1], faultKinds()[:2], func(t *testing.T, test faultCase, f *fixture, c *resourceapi.ResourceClaim, fault *fault) {
		t.Helper()
		if err := test.act(t.Context(), f.faulty(fault), c); err == nil {
			return
		}
		if diff := cmp.Diff(clean, f.world()); diff != "" {
			t.Errorf("%+v: %s", *fault, diff)
		}
	})
}

// TestReconcileUnderFaults: a reconciliation that fails or dies at any step is
// completed by the next one, and claims of live pods stay.
func TestReconcileUnderFaults(t *testing.T) {
	t.Parallel()
	enforcer := newHAMiCore(t)
	for _, kind := range faultKinds() {
		for at := 0; ; at++ {
			fault := &kind
			fault.at, fault.step, fault.trace = at, 0, nil
			f := newFixtureWith(t, enforcer)
			pods := []*corev1.Pod{ran(podWith("live", "app:main=live")), ran(podWith("dead", "app:main=dead"))}
			live, dead := claim("live", pods[:1], result{request: "r", gpu: 0, memory: 20}), claim("dead", pods[1:], result{request: "r", gpu: 1, memory: 20})
			f.cluster.add(pods[0], pods[1], live, dead)
			f.prepare(f.manager(), live, dead)
			if err := f.manager().Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.bootID = "boot-2"
			f.cluster.remove(dead)
			f.cluster.remove(pods[1])
			what := fmt.Sprintf("%+v", *fault)
			manager := f.faulty(fault)
			killed, err := survive(func() error { return manager.Reconcile(t.Context()) })
			if hit := fault.step > at; hit != (killed || errors.Is(err, errFault)) {
				t.Errorf("%s: got error %v, killed %t", what, err, killed)
			}
			if got := f.world(); !slices.Contains(got, "record uid-live Completed") {
				t.Errorf("%s: the live claim is lost: %q", what, got)
			}
			if err := f.manager().Reconcile(t.Context()); err != nil {
				t.Errorf("%s: trying again: %v", what, err)
			}
			if diff := cmp.Diff([]string{"record uid-live Completed", "spec uid-live", "region claims/uid-live/pod-live_main"}, f.world()); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			if fault.step <= at {
				if at < 5 {
					t.Fatalf("only %d steps: %q", at, fault.trace)
				}
				break
			}
		}
	}
}

// requireOther checks that the other claim has all it had.
func requireOther(t *testing.T, what string, f *fixture) {
	t.Helper()
	got := slices.DeleteFunc(f.world(), func(s string) bool { return !strings.Contains(s, "other") })
	if diff := cmp.Diff(clean, got); diff != "" {
		t.Errorf("%s: the other claim: %s", what, diff)
	}
}
