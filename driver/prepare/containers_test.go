// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/driver/internal/owners"
)

// TestForceDeletedPodKeepsItsPlace: claim and pod were deleted by force, but the
// container is still there. Neither a reconciliation nor a claim without room frees
// what it has, before the container has gone.
func TestForceDeletedPodKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.nri = true
	old, other := ran(podWith("old", "app:main=o")), podWith("new", "app:main=n")
	o, n := claim("o", []*corev1.Pod{old}, result{request: "r", gpu: 0, memory: 60}), claim("n", []*corev1.Pod{other}, result{request: "r", gpu: 0, memory: 60})
	f.cluster.add(old, o)
	manager := f.manager()
	f.prepare(manager, o)
	for id, pod := range map[string]*corev1.Pod{"of-old": old, "of-new": other} {
		if err := f.owners.Put(id, &owners.Owner{Namespace: "default", Pod: pod.Name, PodUID: pod.UID, Container: "main"}); err != nil {
			t.Fatal(err)
		}
	}
	f.cluster.remove(old)
	f.cluster.remove(o)
	f.cluster.add(other, n)
	kept := []string{"record uid-o Completed", "spec uid-o"}
	f.reconcile()
	if diff := cmp.Diff(kept, f.world()); diff != "" {
		t.Errorf("after the reconciliation: %s", diff)
	}
	requireRefusal(t, manager, n, ReasonOverlap, `claim "default/o"`)
	if diff := cmp.Diff(kept, f.world()); diff != "" {
		t.Errorf("after the other's Prepare: %s", diff)
	}
	if err := f.owners.Remove("of-old"); err != nil {
		t.Fatal(err)
	}
	f.prepare(manager, n)
	if diff := cmp.Diff([]string{"record uid-n Completed", "spec uid-n"}, f.world()); diff != "" {
		t.Errorf("after the container has gone: %s", diff)
	}
}

// TestUnknownContainersKeepPlaces: while it cannot be said whose a container is,
// nothing is freed and the error names the file.
func TestUnknownContainersKeepPlaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := ran(podWith("old", "app:main=o"))
	o := claim("o", []*corev1.Pod{pod}, result{request: "r", gpu: 0})
	f.cluster.add(pod, o)
	f.prepare(f.manager(), o)
	f.cluster.remove(pod)
	f.cluster.remove(o)
	file := filepath.Join(f.state, "containers", "damaged.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.manager().Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), `claim "default/o"`) || !strings.Contains(err.Error(), `container "damaged"`) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"record uid-o Completed", "spec uid-o"}, f.world()); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if got := f.world(); len(got) > 0 {
		t.Errorf("left over: %q", got)
	}
}
