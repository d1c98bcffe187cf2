// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
)

// TestD17_OverlapIsRefused counts shares: what fits is prepared, what does not
// names all claims.
func TestD17_OverlapIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pods := []*corev1.Pod{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		pods = append(pods, podWith("pod-"+name, "app:main="+name))
		f.cluster.add(pods[len(pods)-1])
	}
	manager := f.manager()
	a := claim("a", pods[:1], result{request: "r", gpu: 0, memory: 40, cores: 60})
	b := claim("b", pods[1:2], result{request: "r", gpu: 0, memory: 40, cores: 40})
	f.cluster.add(a, b)
	f.prepare(manager, a, b)
	c := claim("c", pods[2:3], result{request: "r", gpu: 0, memory: 1})
	f.cluster.add(c)
	requireRefusal(t, manager, c, ReasonOverlap,
		`has 85899345920 of capacity "memory", but 86973087744 is allocated to claim "default/c" (request "r"), claim "default/a" (request "r"), claim "default/b" (request "r")`)
	if diff := cmp.Diff([]string{"record uid-a Completed", "record uid-b Completed", "spec uid-a", "spec uid-b",
		"region claims/uid-a/pod-pod-a_main", "region claims/uid-b/pod-pod-b_main"}, f.world()); diff != "" {
		t.Errorf("a refused claim has left something: %s", diff)
	}
	// Admin access is beside everybody else.
	d := claim("d", pods[3:4], result{request: "r", gpu: 0, admin: true})
	f.cluster.add(d)
	f.prepare(manager, d)
	// One claim alone can be too much.
	e := claim("e", pods[4:5], result{request: "x", gpu: 1, memory: 50}, result{request: "y", gpu: 1, memory: 50})
	f.cluster.add(e)
	requireRefusal(t, manager, e, ReasonOverlap, `claim "default/e" (request "x"), claim "default/e" (request "y")`)
	// With a gone, and nobody using it, there is room again.
	f.cluster.remove(a)
	f.cluster.remove(pods[0])
	f.prepare(manager, c)
	if f.document().Claims[a.UID] != nil {
		t.Error("the claim that is gone is still recorded")
	}
}

// TestForceDeletedClaimKeepsItsPlace: its pod still runs, so it is in the way.
func TestForceDeletedClaimKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := podWith("first", "app:main=a"), podWith("second", "app:main=b")
	a := claim("a", []*corev1.Pod{first}, result{request: "r", gpu: 0})
	b := claim("b", []*corev1.Pod{second}, result{request: "r", gpu: 0})
	f.cluster.add(first, second, a, b)
	manager := f.manager()
	f.prepare(manager, a)
	f.cluster.remove(a)
	requireRefusal(t, manager, b, ReasonOverlap, `claim "default/b" (request "r"), claim "default/a" (request "r")`)
	if err := manager.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.document().Claims[a.UID] == nil {
		t.Error("the claim of a live pod was removed")
	}
	first.Status.Phase = corev1.PodSucceeded
	f.prepare(manager, b)
}

// TestReservedForOthers: a claim of a PodGroup is for nobody that the driver knows;
// beside pods it does no harm.
func TestReservedForOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.nri = true
	pod := podWith("train", "app:main=c")
	c := claim("c", nil, result{request: "r", gpu: 0, memory: 20})
	group := resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "gang", UID: "uid-gang"}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{group}
	f.cluster.add(pod, c)
	manager := f.manager()
	requireRefusal(t, manager, c, ReasonNotReserved, `the claim is reserved for podgroups.scheduling.k8s.io "gang" and for no pod: which containers may use its devices`)
	if got := f.world(); len(got) > 0 {
		t.Errorf("refused, but there is %q", got)
	}
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	f.prepare(manager, c)
	if got := f.document().Claims[c.UID].Consumers; len(got) != 1 || got[0].UID != pod.UID {
		t.Errorf("got consumers %+v", got)
	}
}

// TestExclusiveDevice: a MIG device has no shares.
func TestExclusiveDevice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pods := []*corev1.Pod{podWith("one", "app:main=a"), podWith("two", "app:main=b")}
	mig := func(name string, pod *corev1.Pod) *resourceapi.ResourceClaim {
		c := claim(name, []*corev1.Pod{pod})
		c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: api.DriverName, Pool: nodeName, Device: migDevice().Name},
			{Request: "nic", Driver: "nic.example.com", Pool: "elsewhere", Device: "eth1"}}
		f.cluster.add(pod, c)
		return c
	}
	manager := f.manager()
	a, b := mig("a", pods[0]), mig("b", pods[1])
	got, err := manager.Prepare(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].ShareID != nil || f.document().Claims[a.UID].Delivery != checkpoint.DeliveryNone {
		t.Errorf("got %+v", got)
	}
	requireRefusal(t, manager, b, ReasonOverlap, "can be used by one claim at a time")
}

// TestIdentity: a device that is gone or exchanged is refused by both names.
func TestIdentity(t *testing.T) {
	t.Parallel()
	pod := podWith("train", "app:main=c")
	for name, test := range map[string]struct {
		change func(f *fixture)
		reason Reason
		want   []string
	}{
		"gone": {func(f *fixture) { f.inventory.present = f.inventory.present[1:] }, ReasonDeviceGone,
			[]string{"gpu-aaaaaaaaaaaa (GPU-aaaaaaaaaaaa-0 at 0000:10:00.0) is gone since it was published", "present are gpu-bbbbbbbbbbbb, gpu-cccccccccccc"}},
		"exchanged": {func(f *fixture) {
			other := gpuDevice(25)
			other.PCIAddress = gpuDevice(0).PCIAddress
			f.inventory.present[0] = other
		}, ReasonDeviceSwapped, []string{"GPU-aaaaaaaaaaaa-0 at 0000:10:00.0", "GPU-zzzzzzzzzzzz-25 at 0000:10:00.0", "is in its place"}},
		"same name": {func(f *fixture) { f.inventory.present[0].UUID = "GPU-aaaaaaaaaaaa-other" }, ReasonDeviceSwapped,
			[]string{`published as GPU "GPU-aaaaaaaaaaaa-0", but now it is GPU "GPU-aaaaaaaaaaaa-other"`}},
		"mute":    {func(f *fixture) { f.inventory.present[0].UUID = ""; f.inventory.published = map[string]Device{} }, ReasonDeviceGone, []string{"does not tell its UUID"}},
		"unknown": {func(f *fixture) { f.inventory.present = nil; f.inventory.published = map[string]Device{} }, ReasonDeviceGone, []string{`"gpu-aaaaaaaaaaaa" is not on this node`}},
	} {
		for _, preparedBefore := range []bool{false, true} {
			f := newFixture(t)
			c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0})
			f.cluster.add(pod, c)
			manager := f.manager()
			if preparedBefore {
				f.prepare(manager, c)
			}
			test.change(f)
			for _, want := range test.want {
				requireRefusal(t, manager, c, test.reason, want)
			}
			if !f.log.has("claim default/c", string(test.reason)) {
				t.Errorf("%s: no event: %q", name, f.log.events)
			}
		}
	}
}

// TestD18_BadConfigurationIsRefused, with the source and the field.
func TestD18_BadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	f.cluster.add(pod)
	manager := f.manager()
	configured := func(source resourceapi.AllocationConfigSource, requests []string, sharing string) *resourceapi.ResourceClaim {
		c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 10})
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: source, Requests: requests, DeviceConfiguration: opaque(api.DriverName, sharing)}}
		f.cluster.add(c)
		return c
	}
	requireRefusal(t, manager, configured(resourceapi.AllocationConfigSourceClaim, nil, `{"enforcement":"None"}`), ReasonBadConfiguration, "FromClaim configuration: validating GPUClaimConfig: sharing.enforcement: Forbidden")
	requireRefusal(t, manager, configured(resourceapi.AllocationConfigSourceClass, []string{"r"}, `{"logLevel":"loud"}`), ReasonBadConfiguration, "FromClass configuration")
	// Not for this request, or not for this driver: no business of ours.
	f.prepare(manager, configured(resourceapi.AllocationConfigSourceClaim, []string{"other"}, `{"logLevel":"loud"}`))
	foreign := configured(resourceapi.AllocationConfigSourceClaim, nil, ``)
	foreign.Status.Allocation.Devices.Config[0].DeviceConfiguration = opaque("nic.example.com", `"loud"`)
	f.prepare(manager, foreign)
}

// opaque makes a configuration for the driver.
func opaque(driver, sharing string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{
		Raw: fmt.Appendf(nil, `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","sharing":%s}`, sharing)}}}
}

// TestCannotEnforce: no share is handed out that nothing limits.
func TestCannotEnforce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 10})
	whole := claim("w", []*corev1.Pod{pod}, result{request: "r", gpu: 1})
	f.cluster.add(pod, c, whole)
	f.enforcer = nil
	manager := f.manager()
	requireRefusal(t, manager, c, ReasonCannotEnforce, "without anything to limit them with")
	f.prepare(manager, whole)
	enforcer := newHAMiCore(t)
	f.enforcer = enforcer
	if err := os.RemoveAll(enforcer.Dir()); err != nil {
		t.Fatal(err)
	}
	requireRefusal(t, f.manager(), c, ReasonCannotEnforce, "HAMi-core cannot limit containers on this node")
	// An administrator may do without.
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
		{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: opaque(api.DriverName, `{"enforcement":"None"}`)}}
	f.prepare(manager, c)
	if _, limited := env(f.spec(c.UID), 0)["CUDA_DEVICE_MEMORY_LIMIT_0"]; limited || guarded(f.spec(c.UID), 0) {
		t.Error("a claim without enforcement is limited or guarded")
	}
}

// missingBase refers to a file that is not there.
type missingBase struct{ path string }

func (b missingBase) Edits(ctx context.Context, uuids []string) (*cdi.BaseEdits, error) {
	out, err := cdi.Simulated{}.Edits(ctx, uuids)
	out.Common.Mounts = []*specs.Mount{{HostPath: b.path, ContainerPath: "/usr/lib/libcuda.so.1"}}
	return out, err
}

// TestHostPathsAreChecked: no container fails later for a library that is not
// there, and a Prepare that is repeated looks again.
func TestHostPathsAreChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	library := filepath.Join(t.TempDir(), "libcuda.so.1")
	f.base = missingBase{path: library}
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0})
	f.cluster.add(pod, c)
	manager := f.manager()
	requireMissing := func() {
		t.Helper()
		if _, err := manager.Prepare(t.Context(), c); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), library) {
			t.Errorf("got error %v", err)
		}
	}
	requireMissing()
	if diff := cmp.Diff([]string{}, f.world()); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(library, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.prepare(manager, c)
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	requireMissing()
	if diff := cmp.Diff([]string{"record uid-c Completed", "spec uid-c"}, f.world()); diff != "" {
		t.Errorf("a claim that may be in use was touched: %s", diff)
	}
}

// TestWrongNode and other allocations that cannot be prepared here.
func TestWrongNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0})
	c.Status.Allocation.Devices.Results[0].Pool = "node-2"
	manager := f.manager()
	requireRefusal(t, manager, c, ReasonNotForThisNode, `belongs to node "node-2", this is node "node-1"`)
	c.Status.Allocation.Devices.Results[0].Driver = "other.example.com"
	requireRefusal(t, manager, c, ReasonNotForThisNode, `has no device of driver "gpu.topodra.dev"`)
	c.Status.Allocation = nil
	requireRefusal(t, manager, c, ReasonNotForThisNode, "has no allocation")
	f.inventory.err = errors.New("NVML is gone")
	if _, err := manager.Prepare(t.Context(), c); !errors.Is(err, f.inventory.err) {
		t.Errorf("got error %v", err)
	}
}

// requireRefusal prepares and must be refused.
func requireRefusal(t *testing.T, manager *Manager, c *resourceapi.ResourceClaim, reason Reason, want string) {
	t.Helper()
	got, err := manager.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
	if err != nil {
		t.Fatal(err)
	}
	refusal, ok := errors.AsType[*Refusal](got[c.UID].Err)
	if !ok || refusal.Reason != reason || !strings.Contains(got[c.UID].Err.Error(), want) || !strings.Contains(got[c.UID].Err.Error(), `"default/`+c.Name) {
		t.Errorf("got %v, want reason %s and %q", got[c.UID].Err, reason, want)
	}
}
