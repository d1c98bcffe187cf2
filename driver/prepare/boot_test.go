// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// errStuck is what cannot be removed.
var errStuck = errors.New("stuck")

// stuckHost can set regions aside, but not remove them.
type stuckHost struct{ Host }

func (stuckHost) RemoveSetAside() error { return errStuck }

// write makes a file of a region, with the directories above it.
func (f *fixture) write(dir, content string) string {
	f.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(dir, "mark")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// requireFiles wants the one there and the other gone.
func (f *fixture) requireFiles(what, there, gone string) {
	f.t.Helper()
	if content, err := os.ReadFile(there); err != nil || string(content) != "of this boot" {
		f.t.Errorf("%s: what containers of this boot share is %q, %v", what, content, err)
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("%s: the region of a container of the earlier boot is there: %v", what, err)
	}
}

// setAside lists what is left of earlier boots.
func (f *fixture) setAside() []string {
	f.t.Helper()
	out, err := filepath.Glob(filepath.Join(f.state, regionsDir, earlierPrefix+"*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// rebooted is a node that has prepared a claim before the reboot, and whose driver
// cannot reach the API server now.
func rebooted(t *testing.T, nri bool) (f *fixture, c *resourceapi.ResourceClaim, pod *corev1.Pod, old string) {
	t.Helper()
	f = newFixture(t)
	f.nri = nri
	pod = podWith("train", "app:main=c")
	c = claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 10})
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	f.reconcile()
	old = f.write(filepath.Join(f.state, regionsDir, "containers", "old"), "of the earlier boot")
	f.bootID = "boot-2"
	f.cluster.err = errors.New("the API server is away")
	if err := f.manager().Reconcile(t.Context()); err == nil {
		t.Fatal("reconciled without a server")
	}
	f.cluster.err = nil
	return f, c, pod, old
}

// TestRebootThenContainer: the first reconciliation after a reboot fails, and a
// container is made before the next, with NRI right after the reboot or after its
// claim was prepared. What its processes share stays, however often the driver
// reconciles.
func TestRebootThenContainer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ nri, prepare bool }{"claim": {false, true}, "container": {true, true}, "container at once": {true, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c, pod, old := rebooted(t, test.nri)
			manager := f.manager()
			if test.prepare {
				f.prepare(manager, c)
			}
			region := manager.ClaimRegion(c.UID, string(pod.UID)+"/main")
			if test.nri {
				names := []string{f.document().Claims[c.UID].Devices[0].CDIDevice}
				if _, err := manager.Lookup(t.Context(), Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, names); err != nil {
					t.Fatal(err)
				}
				region = manager.ContainerRegion("new")
			}
			mine := f.write(region, "of this boot")
			for range 3 {
				f.reconcile()
				f.requireFiles("after a reconciliation", mine, old)
			}
			if left := f.setAside(); len(left) > 0 || f.document().BootID != "boot-2" {
				t.Errorf("left over: %q; the boot ID is %q", left, f.document().BootID)
			}
		})
	}
}

// TestRebootWithStuckRegion: regions of an earlier boot that cannot be removed
// are told about each time, and cost nobody of this boot anything.
func TestRebootWithStuckRegion(t *testing.T) {
	t.Parallel()
	f, c, pod, old := rebooted(t, false)
	f.wrap = func(host Host) Host { return stuckHost{host} }
	manager := f.manager()
	f.prepare(manager, c)
	mine := f.write(manager.ClaimRegion(c.UID, string(pod.UID)+"/main"), "of this boot")
	for range 3 {
		if err := f.manager().Reconcile(t.Context()); !errors.Is(err, errStuck) {
			t.Errorf("got %v", err)
		}
		f.requireFiles("although something is stuck", mine, old)
	}
	if got := f.setAside(); len(got) != 1 || f.document().BootID != "boot-2" {
		t.Errorf("set aside: %q; the boot ID is %q", got, f.document().BootID)
	}
	f.wrap = nil
	f.reconcile()
	if diff := cmp.Diff([]string{"record uid-c Completed", "spec uid-c", "region claims/uid-c/pod-train_main"}, f.world()); diff != "" {
		t.Error(diff)
	}
	if left := f.setAside(); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestRebootNotNoticed: while regions of the earlier boot cannot be set aside,
// nothing happens that they would be mistaken for.
func TestRebootNotNoticed(t *testing.T) {
	t.Parallel()
	f, c, pod, _ := rebooted(t, true)
	manager := f.faulty(&fault{stays: true})
	names := []string{f.document().Claims[c.UID].Devices[0].CDIDevice}
	before := f.world()
	if _, err := manager.Lookup(t.Context(), Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, names); !errors.Is(err, errFault) {
		t.Errorf("Lookup: got %v", err)
	}
	if _, err := manager.Prepare(t.Context(), c); !errors.Is(err, errFault) {
		t.Errorf("Prepare: got %v", err)
	}
	if err := manager.Unprepare(t.Context(), c.UID); !errors.Is(err, errFault) {
		t.Errorf("Unprepare: got %v", err)
	}
	if diff := cmp.Diff(before, f.world()); diff != "" || f.document().BootID != "boot-1" {
		t.Errorf("the boot ID is %q; %s", f.document().BootID, diff)
	}
}
