// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/plan"
)

// TestDeferredUntilChosen: the in-tree Filter runs on the chosen node alone, and what
// it leaves behind there is what was planned.
func TestDeferredUntilChosen(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuNode(t, "pcie", "pcie_8x_pix_node_sys")...)
	w := newWorld(t, worldConfig{objects: append(objects, gpuClass(""), claimOf("c", gpus("r", 4)), pod)})
	state, passed, result := w.filter(pod)
	c := readCycle(state)
	if diff := cmp.Diff([]string{"dgx", "pcie"}, slices.Sorted(maps.Keys(c.deferred))); diff != "" {
		t.Errorf("deferred after Filter (-want +got):\n%s", diff)
	}
	if status := w.plugin.DynamicResources.Reserve(w.ctx, state, pod, "dgx"); status.Code() != fwk.Error {
		t.Errorf("the in-tree Filter has run on a node before it was chosen: its Reserve says %v %q", status.Code(), status.Message())
	}
	result.node = w.best(state, pod, passed, &result)
	w.reserve(state, pod, &result)
	if diff := cmp.Diff([]string{"c/r=gpu-0", "c/r=gpu-1", "c/r=gpu-2", "c/r=gpu-3"}, result.devices); result.node != "dgx" || diff != "" {
		t.Errorf("on node %q (-want +got):\n%s", result.node, diff)
	}
	if diff := cmp.Diff([]string{"pcie"}, slices.Sorted(maps.Keys(c.deferred))); diff != "" {
		t.Errorf("deferred after Reserve (-want +got):\n%s", diff)
	}
}

// TestNotDeferred: where the in-tree plugin needs more from its Filter than the answer,
// that runs at once.
func TestNotDeferred(t *testing.T) {
	t.Parallel()
	extended := podOf("pod")
	extended.Spec.Containers[0].Resources.Requests = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	for name, tc := range map[string]cycleCase{
		"a claim that is allocated": {
			claims: []*resourceapi.ResourceClaim{held(claimOf("shared", gpus("r", 1)), "dgx", 5), claimOf("c", gpus("r", 1))}, pod: podOf("pod", "shared", "c"),
		},
		"alternatives":       {claims: []*resourceapi.ResourceClaim{claimOf("c", firstOf("r", gpus("", 2), gpus("", 1)))}, pod: podOf("pod", "c")},
		"extended resources": {pod: extended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass("nvidia.com/gpu"), tc.pod)
			for _, claim := range tc.claims {
				objects = append(objects, claim)
			}
			w := newWorld(t, worldConfig{objects: objects})
			state, passed, result := w.filter(tc.pod)
			if len(passed) != 1 {
				t.Fatalf("the pod does not fit: %v %s", result.reasons, result.message)
			}
			if deferred := readCycle(state).deferred; len(deferred) > 0 {
				t.Errorf("deferred on %v", deferred)
			}
		})
	}
}

// TestWrongAnswer: when an answer that was remembered does not hold, the pod is refused
// before anything is reserved, and the next attempt asks again.
func TestWrongAnswer(t *testing.T) {
	plan.RegisterMetrics()
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)), busy("dgx", 0, 1, 2, 3, 4, 5, 6), pod)
	w := newWorld(t, worldConfig{objects: objects})
	state, status := w.preFilter(pod)
	if !status.IsSuccess() {
		t.Fatal(status.Message())
	}
	c := readCycle(state)
	node := c.view.Node("dgx")
	w.plugin.planner.memo.Add(memoKey{node, c.view.Fingerprint(node), c.base.key}, &decision{
		settled: true, offer: &plan.Offer{}, arrangements: []arrangement{{pool: 0, devices: []int{2, 3}}},
	})
	before, err := testutil.GetCounterMetricValue(plan.Unsettled)
	if err != nil {
		t.Fatal(err)
	}
	if status := w.plugin.Filter(w.ctx, state, pod, w.nodes[0]); !status.IsSuccess() {
		t.Fatalf("Filter: %q", status.Message())
	}
	if status := w.plugin.Reserve(w.ctx, state, pod, "dgx"); status.Code() != fwk.UnschedulableAndUnresolvable || status.Message() != reasonNoRoom {
		t.Errorf("Reserve: %v %q", status.Code(), status.Message())
	}
	if after, err := testutil.GetCounterMetricValue(plan.Unsettled); err != nil || after != before+1 {
		t.Errorf("the metric went from %v to %v, %v", before, after, err)
	}
	if allocated := len(w.allocatedClaims()); allocated != 1 {
		t.Errorf("%d claims are allocated, want that of the others", allocated)
	}
	if pending := w.manager.ResourceClaims().GetPendingAllocation("claim-c"); pending != nil {
		t.Errorf("an allocation is in flight: %+v", pending)
	}
	got := w.schedule(pod)
	if got.node != "" || got.reasons["dgx"] != reasonNoRoom {
		t.Errorf("the next attempt: node %q, reasons %v", got.node, got.reasons)
	}
}
