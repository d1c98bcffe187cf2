// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
)

// cycleCase is one pod on one DGX-1V, whose GPUs are two quads, 0-3 and 4-7:
//
//	two links:  0=3 1=2 2=3 0=4 | 4=7 5=6 6=7 1=5
//	one link:   0-1 0-2 1-3 2-6 | 4-5 4-6 5-7 3-7
//
// A DGX-1V has rings of four inside each quad, and {0,3,4,7} and {1,2,5,6}.
type cycleCase struct {
	claims []*resourceapi.ResourceClaim
	pod    *v1.Pod
	// change the node's slice before the scheduler sees it.
	change  func(slice *resourceapi.ResourceSlice)
	objects []runtime.Object
	// devices of the claims that the pod's cycle allocates.
	devices []string
}

// runCycle schedules the pod and compares everything.
func runCycle(t *testing.T, tc *cycleCase) {
	t.Helper()
	objects := append(slices.Clone(tc.objects), tc.pod, gpuClass("nvidia.com/gpu"))
	for _, claim := range tc.claims {
		objects = append(objects, claim)
	}
	change := tc.change
	if change == nil {
		change = func(*resourceapi.ResourceSlice) {}
	}
	w := newWorld(t, worldConfig{objects: append(objects, gpuNode(t, "dgx", "dgx1v_8xv100", change)...)})
	got := w.schedule(tc.pod)
	if got.node != "dgx" {
		t.Fatalf("the pod does not fit: %v %s", got.reasons, got.message)
	}
	if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if events := w.mismatches(); len(events) > 0 {
		t.Errorf("events about mismatches: %v", events)
	}
}

func runCycles(t *testing.T, cases map[string]cycleCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runCycle(t, &tc)
		})
	}
}

// where keeps devices whose index satisfies the condition.
func where(condition string) func(r *resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.topodra.dev"].index ` + condition,
		}})
	}
}

// all asks for every matching device.
func all(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }

// observer asks for admin access.
func observer(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = new(true) }

func TestCycleWholeGPUs(t *testing.T) {
	t.Parallel()
	runCycles(t, map[string]cycleCase{
		"pair": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2))}, pod: podOf("pod", "c"),
			devices: []string{"c/r=gpu-2", "c/r=gpu-3"},
		},
		"four of a fragmented machine, which no quad has": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 4)), busy("dgx", 2, 5)}, pod: podOf("pod", "c"),
			devices: []string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7"},
		},
		"two requests make one set": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("a", 2), gpus("b", 2)), busy("dgx", 2, 5)}, pod: podOf("pod", "c"),
			devices: []string{"c/a=gpu-0", "c/a=gpu-3", "c/b=gpu-4", "c/b=gpu-7"},
		},
		"two claims make one set": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2)), claimOf("d", gpus("r", 2)), busy("dgx", 2, 5)}, pod: podOf("pod", "c", "d"),
			devices: []string{"c/r=gpu-0", "c/r=gpu-3", "d/r=gpu-4", "d/r=gpu-7"},
		},
		"a selector that the second request needs": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("a", 1), gpus("b", 1, where("== 5")))}, pod: podOf("pod", "c"),
			devices: []string{"c/a=gpu-6", "c/b=gpu-5"},
		},
		"what the pod holds already attracts the rest": {
			claims: []*resourceapi.ResourceClaim{held(claimOf("shared", gpus("r", 1)), "dgx", 5), claimOf("c", gpus("r", 1))}, pod: podOf("pod", "shared", "c"),
			devices: []string{"c/r=gpu-6"},
		},
		"all": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 0, where("> 5"), all), gpus("s", 2))}, pod: podOf("pod", "c"),
			devices: []string{"c/r=gpu-6", "c/r=gpu-7", "c/s=gpu-4", "c/s=gpu-5"},
		},
		"tainted GPUs are avoided": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2))}, pod: podOf("pod", "c"),
			change: func(slice *resourceapi.ResourceSlice) {
				for _, i := range []int{2, 6} {
					slice.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
				}
			},
			devices: []string{"c/r=gpu-1", "c/r=gpu-5"},
		},
		"tolerated taints do not matter": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2, func(r *resourceapi.ExactDeviceRequest) {
				r.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
			}))}, pod: podOf("pod", "c"),
			change: func(slice *resourceapi.ResourceSlice) {
				slice.Spec.Devices[2].Taints = []resourceapi.DeviceTaint{{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			},
			devices: []string{"c/r=gpu-2", "c/r=gpu-3"},
		},
	})
}

func TestCycleConstraints(t *testing.T) {
	t.Parallel()
	constrained := func(claim *resourceapi.ResourceClaim, constraints ...resourceapi.DeviceConstraint) *resourceapi.ResourceClaim {
		claim.Spec.Devices.Constraints = constraints
		return claim
	}
	const color resourceapi.FullyQualifiedName = "gpu.topodra.dev/color"
	colors := func(slice *resourceapi.ResourceSlice) {
		for i, c := range []string{"red", "red", "red", "blue", "blue", "blue", "red", ""} {
			if c != "" {
				slice.Spec.Devices[i].Attributes["color"] = resourceapi.DeviceAttribute{StringValue: new(c)}
			}
		}
	}
	runCycles(t, map[string]cycleCase{
		"match": {
			change: colors, pod: podOf("pod", "c"),
			claims:  []*resourceapi.ResourceClaim{constrained(claimOf("c", gpus("r", 2)), resourceapi.DeviceConstraint{MatchAttribute: new(color)})},
			devices: []string{"c/r=gpu-1", "c/r=gpu-2"},
		},
		"distinct": {
			change: colors, pod: podOf("pod", "c"),
			claims: []*resourceapi.ResourceClaim{
				constrained(claimOf("c", gpus("a", 1), gpus("b", 1)), resourceapi.DeviceConstraint{DistinctAttribute: new(color)}), busy("dgx", 2),
			},
			devices: []string{"c/a=gpu-0", "c/b=gpu-3"},
		},
		"match ties only the requests that it names": {
			change: colors, pod: podOf("pod", "c"),
			claims: []*resourceapi.ResourceClaim{constrained(claimOf("c", gpus("a", 2), gpus("b", 2)),
				resourceapi.DeviceConstraint{Requests: []string{"a"}, MatchAttribute: new(color)})},
			devices: []string{"c/a=gpu-0", "c/a=gpu-1", "c/b=gpu-2", "c/b=gpu-3"},
		},
	})
}

func TestCycleShares(t *testing.T) {
	t.Parallel()
	runCycles(t, map[string]cycleCase{
		"a share goes where GPUs are shared already": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 1, memory("10Gi"))), shareOf("dgx", 6, "20Gi")},
			devices: []string{"c/r=gpu-6"},
		},
		"GPUs of one request are distinct": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2, memory("10Gi"))), shareOf("dgx", 6, "20Gi")},
			devices: []string{"c/r=gpu-6", "c/r=gpu-7"},
		},
		"two requests may share one GPU": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{
				claimOf("c", gpus("a", 1, memory("10Gi")), gpus("b", 1, memory("10Gi"))), shareOf("dgx", 6, "20Gi"),
			},
			devices: []string{"c/a=gpu-6", "c/b=gpu-6"},
		},
		"what is requested is rounded up": {
			// 79 GiB and a half fit after rounding, and leave no room.
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 1, memory("64425246721"))), shareOf("dgx", 6, "20Gi"), shareOf("dgx", 1, "10Gi")},
			devices: []string{"c/r=gpu-1"},
		},
		"whole GPUs do not share": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 1)), shareOf("dgx", 6, "1Mi"), busy("dgx", 0, 1, 2, 3, 4, 5)},
			devices: []string{"c/r=gpu-7"},
		},
	})
}

func TestCycleAlternatives(t *testing.T) {
	t.Parallel()
	sub := func(name string, count int64) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	}
	list := func() *resourceapi.ResourceClaim {
		return claimOf("c", resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{sub("four", 4), sub("two", 2)}})
	}
	runCycles(t, map[string]cycleCase{
		"the first fits": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{list(), busy("dgx", 2, 5)},
			devices: []string{"c/r/four=gpu-0", "c/r/four=gpu-3", "c/r/four=gpu-4", "c/r/four=gpu-7"},
		},
		"the second fits": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{list(), busy("dgx", 0, 1, 2, 3, 4)},
			devices: []string{"c/r/two=gpu-6", "c/r/two=gpu-7"},
		},
		"the first is not linked as required, the second is": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{
				configured(list(), `{"policy":"Required","level":"NVLink"}`), busy("dgx", 1, 2, 4, 7),
			},
			devices: []string{"c/r/two=gpu-0", "c/r/two=gpu-3"},
		},
	})
}

func TestCycleAdminAccess(t *testing.T) {
	t.Parallel()
	runCycles(t, map[string]cycleCase{
		// Kubernetes 1.37 charges an observer of a shareable device as if it were
		// a sharer, so it has to ask for little.
		"observing devices in use, as published": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{
				claimOf("c", gpus("r", 2, observer, memory("1Mi"))), shareOf("dgx", 0, "79Gi"),
			},
			devices: []string{"c/r=gpu-0", "c/r=gpu-1"},
		},
		"observing all beside a planned request": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{
				claimOf("c", gpus("r", 2, memory("70Gi")), gpus("watch", 0, observer, all, where("< 2"), memory("1Mi"))), shareOf("dgx", 0, "40Gi"),
			},
			devices: []string{"c/r=gpu-2", "c/r=gpu-3", "c/watch=gpu-0", "c/watch=gpu-1"},
		},
		"a guarantee beside an observer": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{configured(
				claimOf("c", gpus("r", 2, memory("70Gi")), gpus("watch", 0, observer, all, where("< 2"), memory("1Mi"))),
				`{"policy":"Required","level":"NVLink"}`, "r"), shareOf("dgx", 0, "40Gi")},
			devices: []string{"c/r=gpu-2", "c/r=gpu-3", "c/watch=gpu-0", "c/watch=gpu-1"},
		},
	})
}

func TestCycleExtendedResources(t *testing.T) {
	t.Parallel()
	pod := func(main string, init ...string) *v1.Pod {
		p := podOf("pod")
		ask := func(count string) v1.ResourceRequirements {
			return v1.ResourceRequirements{Requests: v1.ResourceList{"nvidia.com/gpu": resource.MustParse(count)}}
		}
		p.Spec.Containers[0].Resources = ask(main)
		for _, count := range init {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "init", Resources: ask(count)})
		}
		return p
	}
	runCycles(t, map[string]cycleCase{
		"one container": {
			pod: pod("4"), claims: []*resourceapi.ResourceClaim{busy("dgx", 2, 5)},
			devices: []string{
				"container-0-request-0=gpu-0", "container-0-request-0=gpu-3", "container-0-request-0=gpu-4", "container-0-request-0=gpu-7",
			},
		},
		"an init container needs more": {
			pod: pod("2", "4"), claims: []*resourceapi.ResourceClaim{busy("dgx", 2, 5)},
			devices: []string{
				"container-0-request-0=gpu-0", "container-0-request-0=gpu-3", "container-1-request-0=gpu-4", "container-1-request-0=gpu-7",
			},
		},
	})
}
