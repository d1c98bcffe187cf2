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

// cycleCase is one pod on a cluster. The DGX-1V of most cases:
//
//	0-3 and 4-7 are quads; inside a quad 0=3, 1=2, 2=3 have two links, 0-1, 0-2,
//	1-3 one (and the same with 4 added: 4=7, 5=6, 6=7; 4-5, 4-6, 5-7); between
//	the quads 0=4 and 1=5 have two links, 2-6 and 3-7 one.
type cycleCase struct {
	objects []runtime.Object
	claims  []*resourceapi.ResourceClaim
	pod     *v1.Pod
	node    string
	devices []string
	// deviates is set where the plan cannot be followed and that is all right.
	message string
	reasons map[string]string
}

// runCycle schedules the pod and compares everything.
func runCycle(t *testing.T, tc *cycleCase) {
	t.Helper()
	objects := append(slices.Clone(tc.objects), tc.pod)
	for _, claim := range tc.claims {
		objects = append(objects, claim)
	}
	w := newWorld(t, worldConfig{objects: objects})
	got := w.schedule(tc.pod)
	if got.node != tc.node {
		t.Errorf("node = %q, want %q (reasons %v, %s)", got.node, tc.node, got.reasons, got.message)
	}
	if diff := cmp.Diff(tc.devices, got.devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if tc.message != "" && got.message != tc.message {
		t.Errorf("message = %q, want %q", got.message, tc.message)
	}
	if tc.reasons != nil {
		if diff := cmp.Diff(tc.reasons, got.reasons); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
	}
	if events := w.mismatches(); len(events) > 0 {
		t.Errorf("events about mismatches: %v", events)
	}
}

func TestCycleChoosesTheBestSet(t *testing.T) {
	t.Parallel()
	dgx := func(t *testing.T) []runtime.Object {
		return append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass("nvidia.com/gpu"))
	}
	extended := podOf("pod")
	extended.Spec.Containers[0].Resources.Requests = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	for name, tc := range map[string]cycleCase{
		"pair": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2))}, pod: podOf("pod", "c"),
			node: "dgx", devices: []string{"c/r=gpu-0", "c/r=gpu-3"},
		},
		"four of a fragmented machine": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 4)), busy("dgx", 2, 5)}, pod: podOf("pod", "c"),
			node: "dgx", devices: []string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7"},
		},
		"two requests": {
			claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("a", 1), gpus("b", 1)), busy("dgx", 0)}, pod: podOf("pod", "c"),
			node: "dgx", devices: []string{"c/a=gpu-1", "c/b=gpu-5"},
		},
		"extended resource": {
			pod: extended, claims: []*resourceapi.ResourceClaim{busy("dgx", 0)},
			node: "dgx", devices: []string{"container-0-request-0=gpu-1", "container-0-request-0=gpu-5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.objects = dgx(t)
			runCycle(t, &tc)
		})
	}
}

func TestCycleDebug(t *testing.T) {
	_ = api.DriverName
}
