// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

const requireNVLink = `{"policy":"Required","level":"NVLink"}`

func TestRequiredIsRefusedWithReasons(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config  string
		count   int64
		taken   []int
		reasons map[string]string
		message string
	}{
		"never": {
			config: `{"policy":"Required","level":"NVLink","minGBps":1000}`, count: 4,
			reasons: map[string]string{"dgx": reasonNever, "pcie": reasonNever},
			message: `topology: required are 4 GPUs over NVLink at 1000 GB/s; best now: NVLink 52 GB/s on node "dgx" (GPUs 0-3); best if GPUs were freed: NVLink 52 GB/s on node "dgx" (GPUs 0-3)`,
		},
		"not now": {
			config: requireNVLink, count: 2, taken: []int{0, 2, 3, 5, 6, 7},
			reasons: map[string]string{"dgx": reasonNow, "pcie": reasonNever},
			message: `topology: required are 2 GPUs over NVLink; best now: PCIe 12 GB/s on node "pcie" (GPUs 0,1); best if GPUs were freed: NVLink 52 GB/s on node "dgx" (GPUs 2,3)`,
		},
		"too few free": {
			config: requireNVLink, count: 3, taken: []int{0, 1, 2, 3, 4, 5},
			reasons: map[string]string{"dgx": reasonFew, "pcie": reasonNever},
			message: `topology: required are 3 GPUs over NVLink; best now: NUMA 8 GB/s on node "pcie" (GPUs 0-2); best if GPUs were freed: NVLink 26 GB/s on node "dgx" (GPUs 0,2,3)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuNode(t, "pcie", "pcie_8x_pix_node_sys")...)
			objects = append(objects, gpuClass(""), configured(claimOf("c", gpus("r", tc.count)), tc.config), pod)
			if len(tc.taken) > 0 {
				objects = append(objects, runtime.Object(busy("dgx", tc.taken...)))
			}
			got := newWorld(t, worldConfig{objects: objects}).schedule(pod)
			if got.node != "" {
				t.Fatalf("the pod got %v on %s", got.devices, got.node)
			}
			if diff := cmp.Diff(tc.reasons, got.reasons); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.message, tc.message) {
				t.Errorf("message = %q, want a part %q", got.message, tc.message)
			}
		})
	}
}

func TestRequiredSchedulesWhenItBecomesPossible(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""),
		configured(claimOf("c", gpus("r", 2)), requireNVLink), busy("dgx", 0, 2, 3, 5, 6, 7), pod)
	w := newWorld(t, worldConfig{objects: objects})
	if got := w.schedule(pod); got.node != "" {
		t.Fatalf("the pod got %v", got.devices)
	}
	if err := w.client.ResourceV1().ResourceClaims("default").Delete(w.ctx, "busy-dgx", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitForClaims(1)
	if diff := cmp.Diff([]string{"c/r=gpu-2", "c/r=gpu-3"}, w.schedule(pod).devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestRequiredTakesOnlyWhatItNeeds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		claims  []*resourceapi.ResourceClaim
		pod     []string
		devices []string
	}{
		"level": {
			claims: []*resourceapi.ResourceClaim{configured(claimOf("c", gpus("r", 4)), requireNVLink), busy("dgx", 2, 5)}, pod: []string{"c"},
			devices: []string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7"},
		},
		"one GPU satisfies every level": {
			claims: []*resourceapi.ResourceClaim{configured(claimOf("c", gpus("r", 1)), requireNVLink), busy("dgx", 0, 1, 2, 4, 5, 6, 7)}, pod: []string{"c"},
			devices: []string{"c/r=gpu-3"},
		},
		"a guarantee for one request of two": {
			// Only 1 and 5 are linked; the rest of the pod takes what is left.
			claims: []*resourceapi.ResourceClaim{
				configured(claimOf("c", gpus("any", 1), gpus("r", 2)), requireNVLink, "r"), busy("dgx", 2, 3, 4, 6, 7),
			}, pod: []string{"c"},
			devices: []string{"c/any=gpu-0", "c/r=gpu-1", "c/r=gpu-5"},
		},
		"a guarantee for one claim of two": {
			claims: []*resourceapi.ResourceClaim{
				claimOf("any", gpus("r", 1)), configured(claimOf("c", gpus("r", 2)), requireNVLink), busy("dgx", 2, 3, 4, 6, 7),
			}, pod: []string{"any", "c"},
			devices: []string{"any/r=gpu-0", "c/r=gpu-1", "c/r=gpu-5"},
		},
		"all of some": {
			claims: []*resourceapi.ResourceClaim{configured(claimOf("c", gpus("r", 0, where("> 5"), all)), requireNVLink)}, pod: []string{"c"},
			devices: []string{"c/r=gpu-6", "c/r=gpu-7"},
		},
		"all of some that are not linked": {
			claims: []*resourceapi.ResourceClaim{configured(claimOf("c", gpus("r", 0, where("in [1, 4]"), all)), requireNVLink)}, pod: []string{"c"},
		},
		"shares": {
			claims: []*resourceapi.ResourceClaim{
				configured(claimOf("c", gpus("r", 2, memory("10Gi"))), requireNVLink), shareOf("dgx", 0, "5Gi"), shareOf("dgx", 5, "5Gi"),
			}, pod: []string{"c"},
			devices: []string{"c/r=gpu-0", "c/r=gpu-4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", tc.pod...)
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), pod)
			for _, claim := range tc.claims {
				objects = append(objects, claim)
			}
			w := newWorld(t, worldConfig{objects: objects})
			got := w.schedule(pod)
			if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s%v %s", diff, got.reasons, got.message)
			}
			if events := w.mismatches(); len(events) > 0 {
				t.Errorf("events about mismatches: %v", events)
			}
		})
	}
}

// TestGuaranteesWithoutMasks covers pools in which no device may be hidden.
func TestGuaranteesWithoutMasks(t *testing.T) {
	t.Parallel()
	counters := func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].BindingConditions = []string{"attached"}
			slice.Spec.Devices[i].BindingFailureConditions = []string{"failed"}
		}
	}
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100", counters), gpuClass(""), pod,
		configured(claimOf("c", gpus("r", 4)), requireNVLink), busy("dgx", 2, 5))
	w := newWorld(t, worldConfig{objects: objects})
	state, passed, result := w.filter(pod)
	if len(passed) != 1 {
		t.Fatalf("the pod does not fit: %v", result.reasons)
	}
	if got, want := offersOf(state, passed)["dgx"].GPUs, topology.MaskOf(0, 3, 4, 7); got != want {
		t.Errorf("planned %s, want %s", got, want)
	}
}

// TestGuaranteesThatCannotBeShown covers nodes whose topology is not known.
func TestGuaranteesThatCannotBeShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(slice *resourceapi.ResourceSlice)
		count  int64
		fits   bool
	}{
		"broken attributes": {
			change: func(slice *resourceapi.ResourceSlice) {
				slice.Spec.Devices[3].Attributes[api.AttrNVLinks] = resourceapi.DeviceAttribute{StringValue: new("!")}
			}, count: 2,
		},
		"broken attributes and one GPU": {
			change: func(slice *resourceapi.ResourceSlice) {
				slice.Spec.Devices[3].Attributes[api.AttrNVLinks] = resourceapi.DeviceAttribute{StringValue: new("!")}
			}, count: 1, fits: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100", tc.change), gpuClass(""), pod, configured(claimOf("c", gpus("r", tc.count)), requireNVLink))
			got := newWorld(t, worldConfig{objects: objects}).schedule(pod)
			if fits := got.node != ""; fits != tc.fits {
				t.Errorf("fits = %t, want %t", fits, tc.fits)
			}
			if !tc.fits && got.reasons["dgx"] != reasonUnknown {
				t.Errorf("reason = %q, want %q", got.reasons["dgx"], reasonUnknown)
			}
		})
	}
}

func TestPoliciesOfOtherKinds(t *testing.T) {
	t.Parallel()
	annotated := claimOf("c", gpus("r", 2))
	annotated.Annotations = map[string]string{api.AnnotationTopology: "Required,level=NVLink"}
	broken := claimOf("c", gpus("r", 2))
	broken.Annotations = map[string]string{api.AnnotationTopology: "Sometimes"}
	for name, tc := range map[string]struct {
		claim   *resourceapi.ResourceClaim
		class   string
		args    *api.TopologyDynamicResourcesArgs
		devices []string
		message string
	}{
		"none takes the first devices":     {claim: configured(claimOf("c", gpus("r", 2)), `{"policy":"None"}`), devices: []string{"c/r=gpu-1", "c/r=gpu-4"}},
		"annotation":                       {claim: annotated},
		"configuration beats annotation":   {claim: configured(annotated.DeepCopy(), `{"policy":"Preferred"}`), devices: []string{"c/r=gpu-1", "c/r=gpu-4"}},
		"class":                            {claim: claimOf("c", gpus("r", 2)), class: requireNVLink},
		"claim beats class":                {claim: configured(claimOf("c", gpus("r", 2)), `{"policy":"Preferred"}`), class: requireNVLink, devices: []string{"c/r=gpu-1", "c/r=gpu-4"}},
		"the last configuration counts":    {claim: configured(configured(claimOf("c", gpus("r", 2)), `{"policy":"Preferred"}`), requireNVLink)},
		"for another request":              {claim: configured(claimOf("c", gpus("r", 2)), requireNVLink, "other"), devices: []string{"c/r=gpu-1", "c/r=gpu-4"}},
		"broken annotation":                {claim: broken, message: `resourceclaim "c": parsing annotation "gpu.topodra.dev/topology"`},
		"broken configuration":             {claim: configured(claimOf("c", gpus("r", 2)), `{"policy":"Required"}`), message: `resourceclaim "c": reading configuration 0 of the claim: `},
		"default none from the arguments":  {claim: claimOf("c", gpus("r", 2)), args: &api.TopologyDynamicResourcesArgs{DefaultPolicy: api.PolicyNone}, devices: []string{"c/r=gpu-1", "c/r=gpu-4"}},
		"unknown field of a configuration": {claim: configured(claimOf("c", gpus("r", 2)), `{"policies":"None"}`), message: `unknown field "topology.policies"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			class := gpuClass("")
			if tc.class != "" {
				class.Spec.Config = []resourceapi.DeviceClassConfiguration{{
					DeviceConfiguration: configured(claimOf("x"), tc.class).Spec.Devices.Config[0].DeviceConfiguration,
				}}
			}
			// 1 and 4 are all that is left, and are not linked.
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), class, pod, tc.claim, busy("dgx", 0, 2, 3, 5, 6, 7))
			config := worldConfig{objects: objects}
			if tc.args != nil {
				config.args = tc.args
			}
			got := newWorld(t, config).schedule(pod)
			if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.message, tc.message) {
				t.Errorf("message = %q, want a part %q", got.message, tc.message)
			}
		})
	}
}
