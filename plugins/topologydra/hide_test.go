// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// withMIG adds a MIG device with index 6 to the pool.
func withMIG(slice *resourceapi.ResourceSlice) {
	slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
		Name: "mig-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			api.AttrType: {StringValue: new(api.DeviceTypeMIG)}, api.AttrIndex: {IntValue: new(int64(6))},
		},
	})
}

// TestGuaranteesHideOnlyWhatNobodyNeeds lists pods of which a part would fail, or
// get something else, if all devices that are not planned were hidden.
func TestGuaranteesHideOnlyWhatNobodyNeeds(t *testing.T) {
	t.Parallel()
	anything := func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = api.DriverName + "-any" }
	class := driverClass(api.DriverName)
	class.Name = api.DriverName + "-any"
	for name, tc := range map[string]struct {
		claim   *resourceapi.ResourceClaim
		devices []string
	}{
		"another request needs a device that is no GPU": {
			claim: claimOf("c", gpus("r", 2), gpus("m", 1, anything, func(r *resourceapi.ExactDeviceRequest) {
				r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: `device.attributes["gpu.topodra.dev"].type == "mig"`,
				}}}
			})),
			devices: []string{"c/m=mig-0", "c/r=gpu-2", "c/r=gpu-3"},
		},
		"all devices of a kind": {
			claim:   claimOf("c", gpus("r", 2), gpus("all", 0, anything, all, where("> 5"))),
			devices: []string{"c/all=gpu-6", "c/all=gpu-7", "c/all=mig-0", "c/r=gpu-2", "c/r=gpu-3"},
		},
		"an observer": {
			claim:   claimOf("c", gpus("r", 2, memory("70Gi")), gpus("watch", 1, observer, where("== 0"), memory("1Mi"))),
			devices: []string{"c/r=gpu-2", "c/r=gpu-3", "c/watch=gpu-0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100", withMIG), gpuClass(""), class, pod, configured(tc.claim, requireNVLink, "r"))
			w := newWorld(t, worldConfig{objects: objects})
			got := w.schedule(pod)
			if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s%v", diff, got.reasons)
			}
		})
	}
}

// TestGuaranteesCoverWholeCombinations lets the allocator prefer another
// alternative than the one that keeps the guarantee, where nothing can be hidden.
func TestGuaranteesCoverWholeCombinations(t *testing.T) {
	t.Parallel()
	sub := func(name string, count int64) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	}
	binding := func(slice *resourceapi.ResourceSlice) {
		slice.Spec.Devices[1].BindingConditions = []string{"attached"}
		slice.Spec.Devices[1].BindingFailureConditions = []string{"failed"}
	}
	// Of 0, 2, 3, 5 and 7, which are free, 0, 2 and 3 form a ring; 5 hangs on 7.
	claim := claimOf("c", gpus("a", 1), resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{sub("four", 4), sub("two", 2)}})
	for name, tc := range map[string]struct {
		change  func(slice *resourceapi.ResourceSlice)
		devices []string
		reason  string
	}{
		"hidden":  {change: func(*resourceapi.ResourceSlice) {}, devices: []string{"c/a=gpu-0", "c/r/two=gpu-2", "c/r/two=gpu-3"}},
		"visible": {change: binding, reason: reasonUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100", tc.change), gpuClass(""), pod, busy("dgx", 1, 4, 6), configured(claim.DeepCopy(), requireNVLink))
			got := newWorld(t, worldConfig{objects: objects}).schedule(pod)
			if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if got.reasons["dgx"] != tc.reason {
				t.Errorf("reason = %q, want %q", got.reasons["dgx"], tc.reason)
			}
		})
	}
}

// problemOn returns what one claim asks of the DGX-1V.
func problemOn(t *testing.T, change func(slice *resourceapi.ResourceSlice), claims ...*resourceapi.ResourceClaim) *problem {
	t.Helper()
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100", change), gpuClass(""))
	for _, claim := range claims {
		objects = append(objects, claim)
	}
	w := newWorld(t, worldConfig{objects: objects})
	state, status := w.preFilter(podOf("pod", claims[0].Name))
	if !status.IsSuccess() {
		t.Fatalf("PreFilter: %s", status.Message())
	}
	c := readCycle(state)
	choices, _ := c.base.choices()
	problems, reason, err := w.plugin.planner.newProblems(t.Context(), c.view, c.view.Node("dgx"), c.base, choices[0])
	if err != nil || reason != "" || len(problems) != 1 {
		t.Fatalf("problems = %v, %q, %v", problems, reason, err)
	}
	return problems[0]
}

// TestProblemAccepts checks the last line of defence of a guarantee.
func TestProblemAccepts(t *testing.T) {
	t.Parallel()
	pr := problemOn(t, func(*resourceapi.ResourceSlice) {}, configured(claimOf("c", gpus("r", 2), gpus("any", 1)), requireNVLink, "r"))
	for _, tc := range []struct {
		r, other topology.Mask
		want     bool
	}{
		{topology.MaskOf(0, 3), topology.MaskOf(5), true},
		{topology.MaskOf(0, 5), topology.MaskOf(3), false},
		{topology.MaskOf(5), topology.MaskOf(0), true},
	} {
		if got := pr.accepts([]topology.Mask{tc.r, tc.other}); got != tc.want {
			t.Errorf("accepts(%s, %s) = %t, want %t", tc.r, tc.other, got, tc.want)
		}
	}
	pr.held = topology.MaskOf(4)
	if pr.accepts([]topology.Mask{topology.MaskOf(2, 3), 0}) {
		t.Error("what the pod holds already does not count")
	}
}

// TestProblemKnowsForeignCapacities keeps the planner from GPUs that are full in a
// capacity which it does not reckon with.
func TestProblemKnowsForeignCapacities(t *testing.T) {
	t.Parallel()
	encoders := func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Capacity["encoders"] = resourceapi.DeviceCapacity{Value: resource.MustParse("2"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: new(resource.MustParse("1")), ValidValues: []resource.Quantity{resource.MustParse("1")},
			}}
		}
	}
	full, half := shareOf("dgx", 6, "10Gi"), shareOf("dgx", 1, "10Gi")
	full.Status.Allocation.Devices.Results[0].ConsumedCapacity["encoders"] = resource.MustParse("2")
	half.Status.Allocation.Devices.Results[0].ConsumedCapacity["encoders"] = resource.MustParse("1")
	pr := problemOn(t, encoders, claimOf("c", gpus("r", 1, memory("10Gi"))), full, half)
	if got, want := pr.requests[0].Eligible, topology.FullMask(8).Without(6); got != want {
		t.Errorf("eligible = %s, want %s", got, want)
	}
	if got, want := pr.requests[0].Use, (placement.Capacity{MemoryMiB: 10 << 10}); got != want {
		t.Errorf("use = %+v, want %+v", got, want)
	}
	if got, want := pr.inventory.Free[6], (placement.Capacity{MemoryMiB: 70 << 10, CoresPercent: 100}); got != want {
		t.Errorf("free on GPU 6 = %+v, want %+v", got, want)
	}
}
