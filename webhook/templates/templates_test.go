// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const grace = 10 * time.Minute

// start is when the tests begin.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// specOf makes a spec that differs by the class.
func specOf(class string) *resourceapi.ResourceClaimSpec {
	return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu-0", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

// world is a store and a collector on one fake server with one clock.
type world struct {
	t         *testing.T
	client    *fake.Clientset
	now       time.Time
	store     *Store
	collector *Collector
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{t: t, client: fake.NewClientset(objects...), now: start}
	clock := func() time.Time { return w.now }
	w.store = &Store{Client: w.client, Grace: grace, Now: clock}
	w.collector = &Collector{Client: w.client, Grace: grace, Now: clock}
	return w
}

func (w *world) ensure(spec *resourceapi.ResourceClaimSpec) string {
	w.t.Helper()
	name, err := w.store.Ensure(w.t.Context(), "ns", spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// collect makes a pass and returns what is left.
func (w *world) collect() []string {
	w.t.Helper()
	if err := w.collector.Collect(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return w.names()
}

func (w *world) names() []string {
	w.t.Helper()
	list, err := w.client.ResourceV1().ResourceClaimTemplates("ns").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// writes counts what was written.
func (w *world) writes() (verbs []string) {
	for _, action := range w.client.Actions() {
		if verb := action.GetVerb(); verb != "get" && verb != "list" {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

func podWith(name string, phase corev1.PodPhase, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "own"}, {Name: "gpu", ResourceClaimTemplateName: &template}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func TestNameIsContent(t *testing.T) {
	t.Parallel()
	a, err := Name(specOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Name(specOf("a"))
	b, _ := Name(specOf("b"))
	if a != again || a == b {
		t.Errorf("names are %q, %q and %q", a, again, b)
	}
	// A name that changes between releases would make new templates for every pod that is running.
	if want := "topodra-80fcf5a4ce7c43fbbdb9"; a != want {
		t.Errorf("got %q, want %q", a, want)
	}
}

func TestEnsureIsIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.ensure(specOf("a"))
	w.now = w.now.Add(grace/2 - time.Second)
	if second := w.ensure(specOf("a")); second != first {
		t.Errorf("got %q, then %q", first, second)
	}
	if diff := cmp.Diff([]string{"create"}, w.writes()); diff != "" {
		t.Error(diff)
	}
	w.now = w.now.Add(time.Second)
	w.ensure(specOf("a"))
	if diff := cmp.Diff([]string{"create", "patch"}, w.writes()); diff != "" {
		t.Errorf("after half of the grace period: %s", diff)
	}
	template, err := w.client.ResourceV1().ResourceClaimTemplates("ns").Get(t.Context(), first, metav1.GetOptions{})
	if err != nil || !lastUsed(template).Equal(w.now) || template.Labels[LabelManagedBy] != ManagedBy || template.Spec.Labels[LabelManagedBy] != ManagedBy {
		t.Errorf("got %+v, %v", template, err)
	}
}

func TestEnsureTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wait sync.WaitGroup
	names := make([]string, 16)
	for i := range names {
		wait.Go(func() {
			name, err := w.store.Ensure(t.Context(), "ns", specOf("a"))
			if err != nil {
				t.Error(err)
			}
			names[i] = name
		})
	}
	wait.Wait()
	if slices.Sort(names); names[0] != names[15] || len(w.names()) != 1 {
		t.Errorf("got %q, there are %q", names, w.names())
	}
}

// TestNameIsTaken puts another template where ours belongs: it is neither used nor changed nor removed.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	name, err := Name(specOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	squatter := func(name string, labels map[string]string, spec *resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: *spec},
		}
	}
	ours := map[string]string{LabelManagedBy: ManagedBy}
	w := newWorld(t, squatter(name, ours, specOf("other")), squatter(name+"-1", nil, specOf("a")))
	if got := w.ensure(specOf("a")); got != name+"-2" {
		t.Errorf("got %q", got)
	}
	w.now = w.now.Add(grace)
	if diff := cmp.Diff([]string{name, name + "-1"}, w.collect()); diff != "" {
		t.Error(diff)
	}
	full := newWorld(t, squatter(name, nil, specOf("a")), squatter(name+"-1", nil, specOf("a")), squatter(name+"-2", nil, specOf("a")), squatter(name+"-3", nil, specOf("a")))
	if _, err := full.store.Ensure(t.Context(), "ns", specOf("a")); err == nil || !strings.Contains(err.Error(), "are taken by ResourceClaimTemplates with other content: remove them") {
		t.Errorf("got %v", err)
	}
}

func TestCollectWaitsForGraceAndUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	used, ended, free := w.ensure(specOf("used")), w.ensure(specOf("ended")), w.ensure(specOf("free"))
	for _, pod := range []*corev1.Pod{podWith("a", corev1.PodPending, used), podWith("b", corev1.PodSucceeded, ended), podWith("c", corev1.PodFailed, ended)} {
		if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{used, ended, free}
	slices.Sort(all)
	w.now = start.Add(grace - time.Second)
	if diff := cmp.Diff(all, w.collect()); diff != "" {
		t.Errorf("within the grace period: %s", diff)
	}
	w.now = start.Add(grace)
	removed := 0
	w.collector.Removed = func() { removed++ }
	if diff := cmp.Diff([]string{used}, w.collect()); diff != "" || removed != 2 {
		t.Errorf("after it: %s (%d removed)", diff, removed)
	}
	if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := w.collect(); len(left) > 0 {
		t.Errorf("without users there is still %q", left)
	}
}

// TestCollectRacesWithPods plays every order of one admission and one pass that the API server can see, with the fake server
// keeping versions: the pod's template is there at the end.
func TestCollectRacesWithPods(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"before the list", "before the pods", "before the removal"} {
		for _, age := range []time.Duration{grace, grace + time.Hour} {
			w := newWorld(t)
			collecting := w.versioned()
			w.ensure(specOf("a"))
			w.now = start.Add(age)
			admitted := ""
			admit := func() { // the pod is stored only after the pass
				if admitted == "" {
					admitted = "…"
					admitted = w.ensure(specOf("a"))
				}
			}
			verbs := map[string][2]string{
				"before the list": {"list", "resourceclaimtemplates"}, "before the pods": {"list", "pods"}, "before the removal": {"delete", "resourceclaimtemplates"},
			}
			collecting.PrependReactor(verbs[step][0], verbs[step][1], func(clienttesting.Action) (bool, runtime.Object, error) {
				admit()
				return false, nil, nil
			})
			if err := w.collector.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if admitted == "" {
				t.Fatalf("%s: the pod was not admitted", step)
			}
			if diff := cmp.Diff([]string{admitted}, w.names()); diff != "" {
				t.Errorf("%s, %s old: the pod's template is gone: %s", step, age, diff)
			}
		}
	}
}

// versioned gives the collector a client of its own to the same objects, since a fake client answers one call at a time. It makes the
// fake server count versions of templates and keep the preconditions of deletions.
func (w *world) versioned() *fake.Clientset {
	collecting := fake.NewClientset()
	collecting.PrependReactor("*", "*", clienttesting.ObjectReaction(w.client.Tracker()))
	w.collector.Client = collecting
	version := map[string]int{}
	w.client.PrependReactor("patch", "resourceclaimtemplates", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			version[patch.GetName()]++
		}
		return false, nil, nil
	})
	collecting.PrependReactor("list", "resourceclaimtemplates", func(clienttesting.Action) (bool, runtime.Object, error) {
		clear(version) // what changes from now on conflicts with what is listed
		return false, nil, nil
	})
	collecting.PrependReactor("delete", "resourceclaimtemplates", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion, ok := action.(clienttesting.DeleteActionImpl)
		if !ok || deletion.DeleteOptions.Preconditions == nil || deletion.DeleteOptions.Preconditions.ResourceVersion == nil {
			w.t.Error("a deletion without a version")
			return false, nil, nil
		}
		if version[deletion.Name] > 0 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{}, deletion.Name, errors.New("it has changed"))
		}
		return false, nil, nil
	})
	return collecting
}

func TestEnsureTriesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ensure(specOf("a"))
	w.now = w.now.Add(grace)
	conflicts := 0
	w.client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts < 3 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("it has changed"))
		}
		return false, nil, nil
	})
	w.ensure(specOf("a"))
	if conflicts != 3 {
		t.Errorf("%d tries", conflicts)
	}
}

func TestErrorsAreToldAndOthersGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ensure(specOf("a"))
	if _, err := w.store.Ensure(t.Context(), "another", specOf("a")); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(grace)
	w.client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "another" {
			return true, nil, errors.New("no answer")
		}
		return false, nil, nil
	})
	if err := w.collector.Collect(t.Context()); err == nil || err.Error() != `listing pods in namespace "another": no answer` {
		t.Errorf("got %v", err)
	}
	if left := w.names(); len(left) > 0 {
		t.Errorf("an error in one namespace keeps %q in another", left)
	}
	w.client.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no room")
	})
	if _, err := w.store.Ensure(t.Context(), "ns", specOf("b")); err == nil || !strings.Contains(err.Error(), `in namespace "ns": no room`) {
		t.Errorf("got %v", err)
	}
}

func TestStartEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ensure(specOf("a"))
	w.now = w.now.Add(grace)
	w.collector.Period = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	w.collector.Removed = cancel
	if err := w.collector.Start(ctx); err != nil {
		t.Error(err)
	}
}
