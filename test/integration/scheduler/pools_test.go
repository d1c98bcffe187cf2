// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// A pool that is not complete yet is left alone and harms nobody; when the rest arrives, it is used.
func TestIncompletePool(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	devices := plainDevices()
	s.PublishPart(plainDriver, bare, 0, 2, devices[:2])
	s.Submit(other("waits", "plain", 2, "Required,level=NUMA"), bare)
	s.WaitPending("waits", "0/8 nodes are available")
	s.Place(job("elsewhere", 2, nil), bare, weave)
	s.WantGPUs("elsewhere", weave, "0,2")
	s.StillPending("waits")
	s.PublishPart(plainDriver, bare, 1, 2, devices[2:])
	s.WaitBound("waits")
	s.WantDevices("waits", bare, "d0", "d2")
}

// Two devices of one name make a pool invalid: it serves nobody, and the scheduler lives on.
func TestInvalidPool(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	devices := plainDevices()
	s.Publish(plainDriver, bare, devices[:2], devices[1:])
	for name, annotation := range map[string]string{"preferred": "Preferred", "required": "Required,level=NUMA", "none": "None"} {
		s.Submit(other(name, "plain", 2, annotation), bare)
		s.WaitPending(name, "0/8 nodes are available")
	}
	s.Place(job("elsewhere", 2, nil), bare, weave)
	s.WantGPUs("elsewhere", weave, "0,2")
}

// Devices that consume shared counters cannot be hidden, and the planner knows nothing of counters: the allocator refuses its
// first choice, and the next one is taken.
func TestCountersForbidTheBestPair(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	devices := plainDevices()
	counter := func(amount string) map[string]resourceapi.Counter {
		return map[string]resourceapi.Counter{"power": {Value: resource.MustParse(amount)}}
	}
	for i := range devices {
		devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: []string{"even", "odd"}[i%2], Counters: counter("2")}}
	}
	// d0 and d2 have power for one of them, d1 and d3 for both.
	counters := []resourceapi.CounterSet{{Name: "even", Counters: counter("3")}, {Name: "odd", Counters: counter("4")}}
	s.PublishWithCounters(plainDriver, bare, counters, devices)
	s.Place(other("required", "plain", 2, "Required,level=NUMA"), bare)
	s.WantDevices("required", bare, "d1", "d3")
	s.Submit(other("impossible", "plain", 2, ""), bare)
	s.WaitPending("impossible", "0/8 nodes are available")
	s.Place(other("single", "plain", 1, ""), bare)
	if got := s.Allocation("single").Devices; len(got) != 1 || got[0] != "d0" && got[0] != "d2" {
		t.Errorf("a single device is %q, want d0 or d2", got)
	}
}

// A request that the devices of two drivers can serve is left to the allocator; a guarantee for it is refused.
func TestRequestForTwoDrivers(t *testing.T) {
	s := bed.Scene(t)
	classes := s.Client.ResourceV1().DeviceClasses()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any-gpu"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver in ["gpu.topodra.dev", "plain.example.com"]`,
		}}},
	}}
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error { return classes.Delete(ctx, class.Name, metav1.DeleteOptions{}) })
	s.Publish(plainDriver, weave, plainDevices())
	s.Place(other("preferred", "any-gpu", 2, ""), weave)
	s.WantGPUs("preferred", weave, "0,1") // the allocator's first
	required := other("required", "any-gpu", 2, "Required,level=NUMA")
	s.Submit(required, weave)
	s.WaitPending("required", "could not be shown to have the required topology")
}

// Devices that any number of claims may hold are shared by claims that fit together.
func TestSharedDevicesWithoutCapacity(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	devices := plainDevices()
	for i := range devices {
		devices[i].AllowMultipleAllocations = new(true)
	}
	s.Publish(plainDriver, bare, devices)
	for _, name := range []string{"first", "second", "third"} {
		s.Place(other(name, "plain", 2, "Required,level=NUMA"), bare)
		s.WantDevices(name, bare, "d0", "d2")
	}
}

// Claims of one pod with policies of their own: the guarantee is kept, the rest goes where it costs least.
func TestClaimsWithDifferentPolicies(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0, 5)
	s.CreateClaim(job("any", 2, testbed.Policy(api.PolicyNone)))
	s.CreateClaim(job("ring", 2, testbed.Required(api.LevelNVLink, 0)))
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{weave}, Claims: []string{"any", "ring"}})
	s.WaitBound("job")
	if ring := s.Allocation("ring").GPUs.String(); ring != "{1,3}" && ring != "{6,7}" {
		t.Errorf("claim with a guarantee got %s, want an NVLink pair", ring)
	}
	s.WantGPUs("any", weave, "2,4") // both have lost their partner
}

// "All" with a guarantee is judged as a whole.
func TestGuaranteeForAll(t *testing.T) {
	s := bed.Scene(t)
	all := func(name string, level api.Level) testbed.Claim {
		return testbed.Claim{Name: name, Topology: testbed.Required(level, 0), Requests: testbed.Requests(
			testbed.GPUs("gpus", 0, testbed.All, testbed.At(0, 1, 2, 3)),
		)}
	}
	s.Submit(all("nvlink", api.LevelNVLink), pairs)
	s.WaitPending("nvlink", `topology: required are `, `best now: NUMA 32 GB/s on node "pairs" (GPUs 0-3)`)
	s.Place(all("numa", api.LevelNUMA), pairs)
	s.WantGPUs("numa", pairs, "0-3")
	s.StillPending("nvlink")
}

// Drivers of network cards publish more devices than a machine has GPUs. That concerns nobody's GPUs.
func TestManyDevicesOfAnotherDriver(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	var devices []resourceapi.Device
	for i := range 100 {
		devices = append(devices, testbed.Device(fmt.Sprintf("vf-%03d", i), testbed.Attributes{api.AttrNUMANode: i % 2}))
	}
	s.Publish(plainDriver, weave, devices)
	s.CreateClaim(other("cards", "plain", 2, ""))
	s.CreateClaim(job("gpus", 2, testbed.Required(api.LevelNVLink, 0)))
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{weave}, Claims: []string{"cards", "gpus"}})
	s.WaitBound("job")
	s.WantGPUs("gpus", weave, "0,2")
	s.WantDevices("cards", weave, "vf-000", "vf-001") // the allocator's first: there is no plan for so many
}

// Slices of a node that does not exist harm nobody.
func TestSlicesOfAMissingNode(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, "ghost", plainDevices())
	s.Submit(other("job", "plain", 2, "Required,level=NUMA"), bare, "ghost")
	s.WaitPending("job", "0/8 nodes are available")
	s.AddNode(testbed.Node{Name: "ghost"})
	s.WaitBound("job")
	s.WantDevices("job", "ghost", "d0", "d2")
}

// A class that changes is not remembered as it was.
func TestClassChanges(t *testing.T) {
	s := bed.Scene(t)
	classes := s.Client.ResourceV1().DeviceClasses()
	expression := func(positions string) []resourceapi.DeviceSelector {
		return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.topodra.dev" && device.attributes["gpu.topodra.dev"].index in [` + positions + `]`,
		}}}
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "half"}, Spec: resourceapi.DeviceClassSpec{Selectors: expression("0,1,2,3")}}
	class, err := classes.Create(t.Context(), class, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error { return classes.Delete(ctx, class.Name, metav1.DeleteOptions{}) })
	s.Place(other("before", "half", 2, ""), weave)
	s.WantGPUs("before", weave, "0,2")
	s.Finish("before")
	class.Spec.Selectors = expression("3,4,5,6")
	if _, err := classes.Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Retry(func(name string) bool {
		s.Place(other(name, "half", 4, ""), weave)
		return s.Allocation(name).GPUs.String() == "{3-6}"
	})
	s.Place(other("after", "half", 2, ""), weave)
	s.WantGPUs("after", weave, "4,5")
}
