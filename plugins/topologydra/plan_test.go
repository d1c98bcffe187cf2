// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// counter reads a counter's value.
func counter(t *testing.T, metric metrics.CounterMetric) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(metric)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestDecisionsAreRemembered(t *testing.T) {
	t.Parallel()
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)), claimOf("d", gpus("r", 2)), claimOf("e", gpus("r", 4)))
	w := newWorld(t, worldConfig{objects: objects})
	decisionFor := func(claim string) *decision {
		state, _, _ := w.filter(podOf("pod-"+claim, claim))
		return readCycle(state).toCompare("dgx")
	}
	first := decisionFor("c")
	if decisionFor("d") != first {
		t.Error("the plan for an equal claim was made again")
	}
	if decisionFor("e") == first {
		t.Error("the plan for another claim was reused")
	}
	w.schedule(podOf("pod", "c"))
	if got := decisionFor("d"); got == first {
		t.Error("the plan was reused although devices were allocated since")
	}
}

func TestDecisionsThatDependOnOthersAreNot(t *testing.T) {
	t.Parallel()
	fabric := plainSlice("fabric", "fabric.example.com", "")
	fabric.Spec.NodeName, fabric.Spec.AllNodes = nil, new(true)
	elsewhere := plainSlice("other", "spread.example.com", "")
	elsewhere.Spec.Pool = resourceapi.ResourcePool{Name: "both", Generation: 1, ResourceSliceCount: 2}
	here := plainSlice("dgx", "spread.example.com", "")
	here.Spec.Pool = elsewhere.Spec.Pool
	for name, more := range map[string][]runtime.Object{"a slice of no node": {fabric}, "a pool of two nodes": {elsewhere, here}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)))
			w := newWorld(t, worldConfig{objects: append(objects, more...)})
			w.filter(podOf("pod", "c"))
			if n := w.plugin.planner.memo.Len(); n != 0 {
				t.Errorf("%d decisions are remembered although devices outside the node exist", n)
			}
		})
	}
}

// TestMismatchIsReported makes Reserve see other devices than were planned.
func TestMismatchIsReported(t *testing.T) {
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 1)))
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(objects, runtime.Object(pod))})
	state, passed, _ := w.filter(pod)
	if len(passed) != 1 {
		t.Fatal("the pod does not fit")
	}
	c := readCycle(state)
	tampered := *c.decisions["dgx"]
	tampered.expected = [][]resourceapi.DeviceRequestAllocationResult{{{Request: "r", Driver: api.DriverName, Pool: "dgx", Device: "gpu-5"}}}
	c.decided("dgx", &tampered)
	before := counter(t, plan.Mismatches)
	// A pod group reserves, takes it back, and reserves again.
	for range 2 {
		if status := w.framework.RunReservePluginsReserve(w.ctx, state, pod, "dgx"); !status.IsSuccess() {
			t.Fatalf("Reserve: %v", status.AsError())
		}
		w.framework.RunReservePluginsUnreserve(w.ctx, state, pod, "dgx")
	}
	events := w.mismatches()
	if len(events) != 1 || !strings.Contains(events[0], eventMismatch) ||
		!strings.Contains(events[0], `node "dgx": planned claim 0 request r: gpu.topodra.dev/dgx/gpu-5, reserved claim 0 request r: gpu.topodra.dev/dgx/gpu-`) {
		t.Errorf("events = %q, want one about the difference", events)
	}
	if got := counter(t, plan.Mismatches) - before; got != 1 {
		t.Errorf("%v mismatches counted, want 1", got)
	}
}

// TestReserveIsRepeatable reserves twice from one CycleState, as pod groups do.
func TestReserveIsRepeatable(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)), pod)})
	state, _, _ := w.filter(pod)
	for range 2 {
		if status := w.framework.RunReservePluginsReserve(w.ctx, state, pod, "dgx"); !status.IsSuccess() {
			t.Fatalf("Reserve: %v", status.AsError())
		}
		pending := w.manager.ResourceClaims().GetPendingAllocation("claim-c")
		if pending == nil || len(pending.Devices.Results) != 2 || pending.Devices.Results[0].Device != "gpu-2" || pending.Devices.Results[1].Device != "gpu-3" {
			t.Errorf("in flight: %v", pending)
		}
		w.framework.RunReservePluginsUnreserve(w.ctx, state, pod, "dgx")
		if w.manager.ResourceClaims().GetPendingAllocation("claim-c") != nil {
			t.Error("Unreserve left the allocation in flight")
		}
	}
	if events := w.mismatches(); len(events) > 0 {
		t.Errorf("events about mismatches: %v", events)
	}
}

// TestFilterFallsBack plants a plan for a preference that the in-tree Filter
// rejects: the pod must get what it would have got without us.
func TestFilterFallsBack(t *testing.T) {
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)), pod)})
	plant := func(guaranteed bool) {
		state, _, _ := w.filter(pod)
		c := readCycle(state)
		node := c.view.Node("dgx")
		w.plugin.planner.memo.Add(memoKey{node, c.view.Fingerprint(node), c.base.key}, &decision{
			guaranteed: guaranteed, offer: &plan.Offer{}, arrangements: []arrangement{{devices: []int{5}, hide: true}},
		})
	}
	before := counter(t, plan.MaskFallbacks.WithLabelValues(fallbackRejected))
	plant(false)
	if _, passed, result := w.filter(pod); len(passed) != 1 {
		t.Errorf("a preference keeps the pod from a node that has room: %v", result.reasons)
	}
	if got := counter(t, plan.MaskFallbacks.WithLabelValues(fallbackRejected)) - before; got != 1 {
		t.Errorf("%v fallbacks counted, want 1", got)
	}
	plant(true)
	if _, passed, _ := w.filter(pod); len(passed) != 0 {
		t.Error("a guarantee was dropped")
	}
}

// TestErrorsArePassedOn covers what the in-tree plugin reports as an error.
func TestErrorsArePassedOn(t *testing.T) {
	t.Parallel()
	bad := claimOf("c", gpus("r", 1, func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.topodra.dev"].missing == 1`}}}
	}))
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), bad, pod)})
	state, status := w.preFilter(pod)
	if !status.IsSuccess() {
		t.Fatalf("PreFilter: %v", status.AsError())
	}
	status = w.framework.RunFilterPlugins(w.ctx, state, pod, w.nodes[0])
	if status.Code() != fwk.Error || !strings.Contains(status.Message(), "CEL runtime error") {
		t.Errorf("status = %v (%s), want the in-tree plugin's error", status.Code(), status.Message())
	}
}

// TestBudget drops preferences that take too long, and only those.
func TestBudget(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config string
		want   string
	}{
		"preferred": {`{"policy":"Preferred"}`, fallbackBudget},
		"required":  {requireNVLink, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), configured(claimOf("c", gpus("r", 2)), tc.config))})
			w.plugin.planner.budget = -time.Second
			pod := podOf("pod", "c")
			state, _ := w.preFilter(pod)
			d, err := w.plugin.decideOn(w.ctx, readCycle(state), pod, w.nodes[0])
			if err != nil {
				t.Fatal(err)
			}
			if d.fallback != tc.want || (d.arrangements == nil) != (tc.want != "") {
				t.Errorf("fallback = %q, want %q", d.fallback, tc.want)
			}
			if n, want := w.plugin.planner.memo.Len(), map[bool]int{true: 1}[tc.want == ""]; n != want {
				t.Errorf("%d decisions are remembered, want %d", n, want)
			}
		})
	}
}

func TestTooManyAlternatives(t *testing.T) {
	t.Parallel()
	sub := func(name string, count int64) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	}
	claim := claimOf("c")
	for _, name := range []string{"a", "b", "d", "e"} {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: name, FirstAvailable: []resourceapi.DeviceSubRequest{sub("x", 1), sub("y", 1), sub("z", 1)},
		})
	}
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claim, pod)})
	state, _ := w.preFilter(pod)
	d, err := w.plugin.decideOn(w.ctx, readCycle(state), pod, w.nodes[0])
	if err != nil || d.fallback != fallbackAlternatives {
		t.Errorf("decision = %+v, %v, want the fallback %q", d, err, fallbackAlternatives)
	}
	if got := w.schedule(pod); got.node != "dgx" {
		t.Errorf("the pod does not fit: %v", got.reasons)
	}
}

// TestChoicesFollowTheAllocator pins the order of combinations.
func TestChoicesFollowTheAllocator(t *testing.T) {
	t.Parallel()
	list := func(names ...string) *requestDemand {
		r := &requestDemand{policies: make([]requestPolicies, len(names))}
		for _, name := range names {
			r.alternatives = append(r.alternatives, &kube.Request{Name: name})
		}
		return r
	}
	d := &demand{claims: []*claimDemand{{requests: []*requestDemand{list("a/1", "a/2"), list("b")}}, {requests: []*requestDemand{list("c/1", "c/2")}}}}
	choices, complete := d.choices()
	var got []string
	for _, choice := range choices {
		var names []string
		for _, it := range choice {
			names = append(names, it.Name)
		}
		got = append(got, strings.Join(names, " "))
	}
	want := []string{"a/1 b c/1", "a/1 b c/2", "a/2 b c/1", "a/2 b c/2"}
	if diff := cmp.Diff(want, got); diff != "" || !complete {
		t.Errorf("choices (-want +got), complete %t:\n%s", complete, diff)
	}
}

// TestHintsWakePods asks the promoted queueing hints about claims that go away.
func TestHintsWakePods(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)), pod)})
	allocated := busy("dgx", 1)
	deallocated := allocated.DeepCopy()
	deallocated.Status.Allocation = nil
	asked := false
	events, err := w.plugin.DynamicResources.EventsToRegister(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range events {
		if event.Event.Resource != fwk.ResourceClaim {
			continue
		}
		asked = true
		for name, change := range map[string][2]any{"deleted": {allocated, nil}, "deallocated": {allocated, deallocated}} {
			hint, err := event.QueueingHintFn(klog.Logger{}, pod, change[0], change[1])
			if err != nil || hint != fwk.Queue {
				t.Errorf("another claim is %s: hint = %v, %v, want Queue", name, hint, err)
			}
		}
	}
	if !asked {
		t.Error("no event about claims is registered")
	}
}

func TestInTreeArgs(t *testing.T) {
	t.Parallel()
	args := &api.TopologyDynamicResourcesArgs{}
	args.Default()
	inner, err := inTreeArgs(args)
	if err != nil {
		t.Fatal(err)
	}
	if inner.FilterTimeout == nil || inner.FilterTimeout.Duration != 10*time.Second || inner.BindingTimeout == nil || inner.BindingTimeout.Duration != 600*time.Second {
		t.Errorf("defaults = %v, %v, want 10s, 600s", inner.FilterTimeout, inner.BindingTimeout)
	}
	args.FilterTimeout, args.BindingTimeout = &metav1.Duration{}, &metav1.Duration{Duration: time.Minute}
	if inner, err = inTreeArgs(args); err != nil {
		t.Fatal(err)
	}
	if inner.FilterTimeout.Duration != 0 || inner.BindingTimeout.Duration != time.Minute {
		t.Errorf("given values became %v, %v", inner.FilterTimeout, inner.BindingTimeout)
	}
}

func TestFactoryNamesThePlugin(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), &runtime.Unknown{Raw: []byte(`{"tierPercent":"many"}`)}, nil)
	if err == nil || !strings.Contains(err.Error(), Name) || !strings.Contains(err.Error(), "tierPercent") {
		t.Errorf("error = %v, want one that names the plugin and the field", err)
	}
}

func TestRatio(t *testing.T) {
	t.Parallel()
	ring := quality.Quality{Rings: 1, MBps: 20_000, Bottleneck: quality.NVLink}
	double := quality.Quality{Rings: 2, MBps: 40_000, Bottleneck: quality.NVLink}
	pcie := quality.Quality{MBps: 25_000, Bottleneck: quality.PIX}
	for _, tc := range []struct {
		got, best quality.Quality
		want      float64
	}{{double, double, 1}, {ring, double, 0.5}, {ring, pcie, 1}, {pcie, ring, 0.99}, {ring, quality.Quality{}, 1}} {
		if got := ratio(tc.got, tc.best); got != tc.want {
			t.Errorf("ratio(%v, %v) = %v, want %v", tc.got, tc.best, got, tc.want)
		}
	}
}

// TestOfferSpeaksForOnePool keeps the best of one pool apart from that of another.
func TestOfferSpeaksForOnePool(t *testing.T) {
	t.Parallel()
	const nic = "nic.example.com"
	// 1 and 4, which are left, are far apart; the two cards are not.
	pod := podOf("pod", "n", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), driverClass(nic), plainSlice("dgx", nic, "pci0000:00", "pci0000:00"), pod,
		claimOf("n", gpus("r", 2, of(nic))), claimOf("c", gpus("r", 2)), busy("dgx", 0, 2, 3, 5, 6, 7))
	w := newWorld(t, worldConfig{objects: objects})
	state, passed, _ := w.filter(pod)
	offer := offersOf(state, passed)["dgx"]
	if offer.GPUs != topology.MaskOf(1, 4) || offer.BestOfNode != offer.Quality {
		t.Errorf("offer = %+v, want the GPUs 1 and 4 and no better set of the same pool", offer)
	}
}
