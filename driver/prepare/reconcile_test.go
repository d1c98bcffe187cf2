// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/internal/atomicfile"
)

// twoClaims prepares claims "a" and "b" of two running pods.
func twoClaims(t *testing.T) (f *fixture, a, b *resourceapi.ResourceClaim) {
	t.Helper()
	f = newFixture(t)
	pods := []*corev1.Pod{ran(podWith("pod-a", "app:main=a")), ran(podWith("pod-b", "app:main=b"))}
	a, b = claim("a", pods[:1], result{request: "r", gpu: 0, memory: 20}), claim("b", pods[1:], result{request: "r", gpu: 0, memory: 30})
	f.cluster.add(pods[0], pods[1], a, b)
	f.prepare(f.manager(), a, b)
	f.reconcile()
	return f, a, b
}

// reconcile is what a new driver process does first.
func (f *fixture) reconcile() {
	f.t.Helper()
	if err := f.manager().Reconcile(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

var bothThere = []string{"record uid-a Completed", "record uid-b Completed", "spec uid-a", "spec uid-b", "region claims/uid-a/pod-pod-a_main", "region claims/uid-b/pod-pod-b_main"}

// TestReconcileChangesNothing when all is well: not even a file is touched.
func TestReconcileChangesNothing(t *testing.T) {
	t.Parallel()
	f, a, _ := twoClaims(t)
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Fatal(diff)
	}
	files := []string{filepath.Join(f.state, checkpoint.FileName), filepath.Join(f.cdiDir, "k8s.gpu.topodra.dev-claim_"+string(a.UID)+".json")}
	var before []os.FileInfo
	for _, file := range files {
		before = append(before, mustStat(t, file))
	}
	f.reconcile()
	for i, file := range files {
		if !os.SameFile(before[i], mustStat(t, file)) {
			t.Errorf("%q was written again", file)
		}
	}
	if len(f.log.events) > 0 {
		t.Errorf("got events %q", f.log.events)
	}
}

// TestReboot: the CDI directory was in memory; regions of dead containers go,
// specs come back, and the kubelet's Prepare gets the same answer.
func TestReboot(t *testing.T) {
	t.Parallel()
	f, a, b := twoClaims(t)
	if err := os.RemoveAll(f.cdiDir); err != nil {
		t.Fatal(err)
	}
	for _, stale := range []string{"claims/uid-a/pod-pod-a_main/vgpu.cache", "containers/0123/vgpu.cache"} {
		path := filepath.Join(f.state, regionsDir, stale)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("usage of before"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.bootID = "boot-2"
	f.reconcile()
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
	if f.document().BootID != "boot-2" {
		t.Errorf("the boot ID is %q", f.document().BootID)
	}
	if content, err := os.ReadFile(filepath.Join(f.state, regionsDir, "claims/uid-a/pod-pod-a_main/vgpu.cache")); err != nil || strings.Contains(string(content), "before") {
		t.Errorf("usage of before the reboot is still there: %.20q, %v", content, err)
	}
	f.prepare(f.manager(), a, b)
}

// TestCorruptCheckpoint: it is set aside, people are told, and the records come
// back from the API server and the CDI directory. Whoever comes first, the
// kubelet or the reconciliation.
func TestCorruptCheckpoint(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{"", "{", strings.Repeat("\x00", 4096), `{"apiVersion":"checkpoint.gpu.topodra.dev/v9","checksum":"","data":{}}`} {
		f, a, _ := twoClaims(t)
		want := f.document()
		if err := os.WriteFile(filepath.Join(f.state, checkpoint.FileName), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		f.prepare(f.manager(), a)
		f.reconcile()
		got := f.document()
		for uid, record := range want.Claims {
			if diff := cmp.Diff(record.Devices, got.Claims[uid].Devices); diff != "" {
				t.Errorf("%q: claim %s: %s", damage, uid, diff)
			}
		}
		if diff := cmp.Diff(bothThere, f.world()); diff != "" {
			t.Errorf("%q: %s", damage, diff)
		}
		if !f.log.has("node "+EventCheckpointCorrupt, "checkpoint.corrupt-") {
			t.Errorf("%q: nobody was told: %q", damage, f.log.events)
		}
		aside, err := filepath.Glob(filepath.Join(f.state, "checkpoint.corrupt-*"))
		if err != nil || len(aside) != 1 {
			t.Fatalf("%q: set aside: %q, %v", damage, aside, err)
		}
		if content, err := os.ReadFile(aside[0]); err != nil || string(content) != damage {
			t.Errorf("%q: evidence is %q, %v", damage, content, err)
		}
	}
}

// TestLostState: checkpoint and CDI directory are both gone while containers
// run. What they use is counted again; a pod that has yet to start is left to
// the kubelet.
func TestLostState(t *testing.T) {
	t.Parallel()
	f, _, b := twoClaims(t)
	for _, lost := range []string{filepath.Join(f.state, checkpoint.FileName), f.cdiDir} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(f.state, regionsDir, "claims", string(b.UID))); err != nil {
		t.Fatal(err)
	}
	f.cluster.pods["default/pod-b"].Status.ContainerStatuses = nil
	f.reconcile()
	if diff := cmp.Diff([]string{"record uid-a Completed", "spec uid-a", "region claims/uid-a/pod-pod-a_main"}, f.world()); diff != "" {
		t.Error(diff)
	}
	f.prepare(f.manager(), b)
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
}

// TestOrphans: whatever has lost its claim goes, whatever has not stays.
func TestOrphans(t *testing.T) {
	t.Parallel()
	onlyB := []string{"record uid-b Completed", "spec uid-b", "region claims/uid-b/pod-pod-b_main"}
	for name, test := range map[string]struct {
		change func(f *fixture, a *resourceapi.ResourceClaim)
		want   []string
	}{
		"claim and pod deleted": {func(f *fixture, a *resourceapi.ResourceClaim) {
			f.cluster.remove(a)
			f.cluster.remove(f.cluster.pods["default/pod-a"])
		}, onlyB},
		"claim deleted by force": {func(f *fixture, a *resourceapi.ResourceClaim) { f.cluster.remove(a) }, bothThere},
		"claim deleted, pod finished": {func(f *fixture, a *resourceapi.ResourceClaim) {
			f.cluster.remove(a)
			f.cluster.pods["default/pod-a"].Status.Phase = corev1.PodSucceeded
		}, onlyB},
		"pod deleted, claim reserved": {func(f *fixture, _ *resourceapi.ResourceClaim) { f.cluster.remove(f.cluster.pods["default/pod-a"]) }, bothThere},
		"not reserved any more": {func(f *fixture, a *resourceapi.ResourceClaim) {
			a.Status.ReservedFor = nil
			f.cluster.remove(f.cluster.pods["default/pod-a"])
		}, onlyB},
		"deallocated": {func(f *fixture, a *resourceapi.ResourceClaim) {
			a.Status = resourceapi.ResourceClaimStatus{}
			f.cluster.remove(f.cluster.pods["default/pod-a"])
		}, onlyB},
		"another of the name": {func(f *fixture, a *resourceapi.ResourceClaim) {
			a.UID = "uid-new"
			f.cluster.remove(f.cluster.pods["default/pod-a"])
		}, onlyB},
		"moved to another node": {func(f *fixture, a *resourceapi.ResourceClaim) {
			a.Status.Allocation.Devices.Results[0].Pool = "node-2"
			f.cluster.remove(f.cluster.pods["default/pod-a"])
		}, onlyB},
	} {
		f, a, _ := twoClaims(t)
		test.change(f, a)
		f.reconcile()
		if diff := cmp.Diff(test.want, f.world()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if removed := len(test.want) == len(onlyB); removed != f.log.has("node "+EventOrphanRemoved, "uid-a") || removed != (f.log.statuses[a.UID] == "unprepared" || f.log.statuses["uid-a"] == "unprepared") {
			t.Errorf("%s: events %q, statuses %v", name, f.log.events, f.log.statuses)
		}
	}
}

// TestStrays: specs and regions without record go, unless a live pod refers to a
// claim that is gone and might own them.
func TestStrays(t *testing.T) {
	t.Parallel()
	f, _, _ := twoClaims(t)
	stray := filepath.Join(f.cdiDir, "k8s.gpu.topodra.dev-claim_uid-stray.json")
	region := filepath.Join(f.state, regionsDir, "claims", "uid-region", "x")
	foreign := filepath.Join(f.cdiDir, "nvidia.yaml")
	make := func() {
		for _, path := range []string{stray, foreign} {
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(region, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	make()
	riddle := podWith("riddle", "app:main=gone")
	f.cluster.add(riddle)
	f.reconcile()
	mustStat(t, stray)
	mustStat(t, region)
	f.cluster.remove(riddle)
	f.reconcile()
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
	mustStat(t, foreign)
}

// TestTempsGo: what a killed driver was writing is removed.
func TestTempsGo(t *testing.T) {
	t.Parallel()
	f, _, _ := twoClaims(t)
	temp, staged := filepath.Join(f.state, atomicfile.TempPrefix+"1"), filepath.Join(f.cdiDir, ".topodra-staging-1", "spec.json")
	if err := errors.Join(os.WriteFile(temp, nil, 0o600), os.Mkdir(filepath.Dir(staged), 0o700), os.WriteFile(staged, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	for _, path := range []string{temp, filepath.Dir(staged)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: got error %v, want it gone", path, err)
		}
	}
}

// TestReconcileWithoutServer: nothing is removed on no word.
func TestReconcileWithoutServer(t *testing.T) {
	t.Parallel()
	f, _, _ := twoClaims(t)
	f.cluster.err = errors.New("connection refused")
	if err := f.manager().Reconcile(t.Context()); !errors.Is(err, f.cluster.err) {
		t.Errorf("got error %v", err)
	}
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
	f.cluster.err = nil
	f.inventory.err = errors.New("NVML is gone")
	if err := f.manager().Reconcile(t.Context()); !errors.Is(err, f.inventory.err) {
		t.Errorf("got error %v", err)
	}
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
}

// TestRepairFails: a GPU that is gone makes the claim not ready, with an event,
// and hinders no other claim.
func TestRepairFails(t *testing.T) {
	t.Parallel()
	f, a, _ := twoClaims(t)
	pod := ran(podWith("pod-c", "app:main=c"))
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 1, memory: 20})
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	f.inventory.present = slices.DeleteFunc(f.inventory.present, func(d Device) bool { return d.Name == gpuDevice(1).Name })
	if err := os.RemoveAll(f.cdiDir); err != nil {
		t.Fatal(err)
	}
	if err := f.manager().Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), `repairing claim "default/c"`) {
		t.Errorf("got error %v", err)
	}
	if !strings.HasPrefix(f.log.statuses[c.UID], "failed: ") || !f.log.has("claim default/c", EventPrepareFailed) || f.log.statuses[a.UID] != "prepared" {
		t.Errorf("got %q, %v", f.log.events, f.log.statuses)
	}
	if diff := cmp.Diff([]string{"spec uid-a", "spec uid-b"}, slices.DeleteFunc(f.world(), func(s string) bool { return !strings.HasPrefix(s, "spec") })); diff != "" {
		t.Error(diff)
	}
}

// TestLatecomerIsTold: without NRI, a second pod on a share that is prepared
// already is noticed by the reconciliation at least.
func TestLatecomerIsTold(t *testing.T) {
	t.Parallel()
	f, a, _ := twoClaims(t)
	late := ran(podWith("late", "app:main=a"))
	f.cluster.add(late)
	a.Status.ReservedFor = append(a.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "late", UID: late.UID})
	f.reconcile()
	if !f.log.has("claim default/a "+string(ReasonSharedByContainers), `pod "late"`) || f.log.has("claim default/b") {
		t.Errorf("got events %q", f.log.events)
	}
	if diff := cmp.Diff(bothThere, f.world()); diff != "" {
		t.Error(diff)
	}
}

// TestLookup: who may use what.
func TestLookup(t *testing.T) {
	t.Parallel()
	f, a, b := twoClaims(t)
	manager := f.manager()
	name := "k8s.gpu.topodra.dev/claim=uid-a_r_gpu-aaaaaaaaaaaa_share-a-0"
	podA := Pod{Namespace: "default", Name: "pod-a", UID: "pod-pod-a"}
	f.cluster.err = errors.New("connection refused") // the checkpoint is enough
	got, err := manager.Lookup(t.Context(), podA, []string{name})
	if err != nil || len(got) != 1 || got[0].Claim != a.UID || got[0].ClaimName != "a" || got[0].Device.Limit.MemoryMiB != 20*1024 {
		t.Errorf("got %+v, %v", got, err)
	}
	podB := Pod{Namespace: "default", Name: "pod-b", UID: "pod-pod-b"}
	if _, err := manager.Lookup(t.Context(), podB, []string{name}); !errors.Is(err, f.cluster.err) {
		t.Errorf("fails open when the server is away: %v", err)
	}
	f.cluster.err = nil
	for what, test := range map[string]struct {
		pod  Pod
		name string
		want string
	}{
		"not reserved":    {podB, name, `pod "default/pod-b" (pod-pod-b) has not reserved claim "default/a"`},
		"other namespace": {Pod{Namespace: "evil", Name: "pod-a", UID: "x"}, name, `pod "evil/pod-a" may not use claim "default/a" of another namespace`},
		"unknown claim":   {podA, strings.Replace(name, "uid-a", "uid-x", 1), "which is not prepared on this node"},
		"unknown device":  {podA, name + "x", `claim "default/a" has no CDI device`},
		"foreign":         {podA, "nvidia.com/gpu=0", "none of this driver's"},
	} {
		if _, err := manager.Lookup(t.Context(), test.pod, []string{test.name}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want %q", what, err, test.want)
		}
	}
	// A pod that reserves later must not share with the one that is there, and is
	// remembered.
	f.cluster.pods["default/pod-b"].Spec.ResourceClaims = podWith("pod-b", "app:main=a").Spec.ResourceClaims
	f.cluster.pods["default/pod-b"].Spec.Containers = podWith("pod-b", "app:main=a").Spec.Containers
	a.Status.ReservedFor = append(a.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-b", UID: "pod-pod-b"})
	if _, err := manager.Lookup(t.Context(), podB, []string{name}); err == nil || !strings.Contains(err.Error(), `container "main" of pod "pod-a" and container "main" of pod "pod-b"`) {
		t.Errorf("got error %v", err)
	}
	f.cluster.pods["default/pod-a"].Status.Phase = corev1.PodSucceeded
	a.UID = "uid-another" // of the same name, which pod-b may use, but it is not what is prepared
	if _, err := manager.Lookup(t.Context(), podB, []string{name}); err == nil || !strings.Contains(err.Error(), "has not reserved") {
		t.Errorf("got error %v", err)
	}
	a.UID = "uid-a"
	if _, err := manager.Lookup(t.Context(), podB, []string{name}); err != nil {
		t.Error(err)
	}
	if !f.document().Claims[a.UID].HasConsumer("pod-pod-b") {
		t.Error("the pod was not remembered")
	}
	// A claim that is not completely prepared gives nothing.
	store := checkpoint.NewStore(f.state, nodeName)
	document := f.document()
	document.Claims[b.UID].State = checkpoint.StateStarted
	if err := store.Save(document); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Lookup(t.Context(), podB, []string{document.Claims[b.UID].Devices[0].CDIDevice}); err == nil || !strings.Contains(err.Error(), "is not prepared") {
		t.Errorf("got error %v", err)
	}
	if got, want := manager.ContainerRegion("id"), filepath.Join(f.state, regionsDir, "containers", "id"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRegionNames: claims with strange UIDs cannot lead out of the directory.
func TestRegionNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, bad := range []types.UID{"", ".", "..", "../x", "a/b"} {
		if err := f.manager().host.RemoveClaimRegions(bad); err == nil {
			t.Errorf("regions of claim %q were removed", bad)
		}
	}
	if err := f.manager().Unprepare(t.Context(), ".."); err == nil {
		t.Error("a claim UID that leads out of the directory is accepted")
	}
}

func mustStat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
