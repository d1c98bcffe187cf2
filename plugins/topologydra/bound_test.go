// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/api"
)

// cores asks for compute besides whatever else is asked for.
func cores(percent string) func(r *resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		if r.Capacity == nil {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		r.Capacity.Requests[api.CapacityCores] = resource.MustParse(percent)
	}
}

// firstOf asks for the first of two that can be had.
func firstOf(name string, first, second resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	list := resourceapi.DeviceRequest{Name: name}
	for i, alternative := range []resourceapi.DeviceRequest{first, second} {
		exact := alternative.Exactly
		list.FirstAvailable = append(list.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("alternative-%d", i), DeviceClassName: exact.DeviceClassName, Selectors: exact.Selectors,
			AllocationMode: exact.AllocationMode, Count: exact.Count, Capacity: exact.Capacity,
		})
	}
	return list
}

// verdicts is what Filter says about a pod on the first node.
type verdicts struct {
	ours, inTree *fwk.Status
	// hopeless and deferred say how ours came about without asking the in-tree
	// Filter.
	hopeless, deferred bool
}

func (w *world) verdicts(pod *v1.Pod) verdicts {
	w.t.Helper()
	state, status := w.preFilter(pod)
	if !status.IsSuccess() {
		w.t.Fatalf("PreFilter: %s", status.Message())
	}
	c := readCycle(state)
	if c == nil {
		w.t.Fatal("nothing is planned for the pod")
	}
	node := w.nodes[0]
	v := verdicts{ours: w.plugin.Filter(w.ctx, state, pod, node)}
	d, err := w.plugin.decideOn(w.ctx, c, pod, node)
	if err != nil {
		w.t.Fatal(err)
	}
	v.hopeless, v.deferred = d.hopeless, c.deferred[node.Node().Name]
	v.inTree = w.plugin.DynamicResources.Filter(w.ctx, state, pod, node)
	return v
}

// TestHopeless pins what is certain, and what is left to the allocator although it
// finds nothing.
func TestHopeless(t *testing.T) {
	t.Parallel()
	one := func(count int, change ...func(r *resourceapi.ExactDeviceRequest)) (requests []resourceapi.DeviceRequest) {
		for i := range count {
			requests = append(requests, gpus(fmt.Sprintf("r%d", i), 1, change...))
		}
		return requests
	}
	for name, tc := range map[string]struct {
		requests []resourceapi.DeviceRequest
		others   []*resourceapi.ResourceClaim
		hopeless bool
	}{
		"as many as there are":    {requests: one(8)},
		"one more than there are": {requests: one(9), hopeless: true},
		"more than there are":     {requests: []resourceapi.DeviceRequest{gpus("r", 9)}, hopeless: true},
		"a full node":             {requests: one(1), others: []*resourceapi.ResourceClaim{busy("dgx", 0, 1, 2, 3, 4, 5, 6, 7)}, hopeless: true},
		"the last one":            {requests: one(1), others: []*resourceapi.ResourceClaim{busy("dgx", 0, 1, 2, 3, 4, 5, 6)}},
		"halves stack":            {requests: one(16, memory("40Gi"))},
		"more than halves do not": {requests: one(9, memory("41Gi")), hopeless: true},
		"different halves do":     {requests: append(one(8, memory("41Gi")), gpus("s", 8, memory("10Gi"), cores("60")))},
		"an alternative fits":     {requests: []resourceapi.DeviceRequest{firstOf("r", gpus("", 9), gpus("", 8))}},
		"no alternative fits":     {requests: []resourceapi.DeviceRequest{firstOf("r", gpus("", 9), gpus("", 10))}, hopeless: true},
		"too little left of each": {requests: one(1, memory("50Gi")), others: []*resourceapi.ResourceClaim{busy("dgx", 1, 2, 3, 4, 5, 6, 7), shareOf("dgx", 0, "31Gi")}, hopeless: true},
		"just enough left":        {requests: one(1, memory("49Gi")), others: []*resourceapi.ResourceClaim{busy("dgx", 1, 2, 3, 4, 5, 6, 7), shareOf("dgx", 0, "31Gi")}},
		"what selectors leave":    {requests: one(3, where("> 5")), hopeless: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", tc.requests...), pod)
			for _, claim := range tc.others {
				objects = append(objects, claim)
			}
			w := newWorld(t, worldConfig{objects: objects})
			state, status := w.preFilter(pod)
			if !status.IsSuccess() {
				t.Fatal(status.Message())
			}
			d, err := w.plugin.decideOn(w.ctx, readCycle(state), pod, w.nodes[0])
			if err != nil {
				t.Fatal(err)
			}
			if d.hopeless != tc.hopeless {
				t.Errorf("hopeless = %t, want %t", d.hopeless, tc.hopeless)
			}
			if status := w.plugin.Filter(w.ctx, state, pod, w.nodes[0]); status.IsSuccess() == tc.hopeless {
				t.Errorf("Filter: %v %q", status.Code(), status.Message())
			} else if tc.hopeless && (status.Code() != fwk.UnschedulableAndUnresolvable || status.Message() != reasonNoRoom) {
				t.Errorf("Filter: %v %q", status.Code(), status.Message())
			}
		})
	}
}

// TestAskAlways: the option leaves it to the allocator to find out.
func TestAskAlways(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 9)), pod)
	v := newWorld(t, worldConfig{options: Options{AskAlways: true}, objects: objects}).verdicts(pod)
	if v.hopeless || v.ours.Code() != fwk.UnschedulableAndUnresolvable {
		t.Errorf("hopeless = %t, Filter: %v %q", v.hopeless, v.ours.Code(), v.ours.Message())
	}
}

// TestFilterAgrees compares with the in-tree Filter on random states and demands:
// what is ruled out without asking it, and what passes before it has run.
func TestFilterAgrees(t *testing.T) {
	t.Parallel()
	const worlds, pods = 12, 40
	ruledOut, refused, deferred := 0, 0, 0
	for seed := range uint64(worlds) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // A seed makes it reproducible.
		objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""))
		for position := range 8 {
			if claim := randomHolder(random, position); claim != nil {
				objects = append(objects, claim)
			}
		}
		var waiting []*v1.Pod
		for i := range pods {
			var names []string
			for k := range 1 + random.IntN(2) {
				claim := claimOf(fmt.Sprintf("c%d-%d", i, k), randomRequests(random)...)
				objects, names = append(objects, runtime.Object(claim)), append(names, claim.Name)
			}
			waiting = append(waiting, podOf(fmt.Sprintf("pod-%d", i), names...))
		}
		w := newWorld(t, worldConfig{objects: objects})
		for _, pod := range waiting {
			v := w.verdicts(pod)
			if v.ours.Code() != v.inTree.Code() || v.ours.Message() != v.inTree.Message() {
				t.Errorf("seed %d, %s: %v %q (hopeless %t, deferred %t), but the in-tree Filter says %v %q",
					seed, pod.Name, v.ours.Code(), v.ours.Message(), v.hopeless, v.deferred, v.inTree.Code(), v.inTree.Message())
			}
			if !v.inTree.IsSuccess() {
				refused++
			}
			if v.hopeless {
				ruledOut++
			}
			if v.deferred {
				deferred++
			}
		}
	}
	// A rule that never applies would be sound as well.
	if ruledOut < refused/2 || ruledOut < 50 {
		t.Errorf("%d of %d pods that do not fit were ruled out", ruledOut, refused)
	}
	if fit := worlds*pods - refused; deferred < fit/2 || deferred < 50 {
		t.Errorf("%d of %d pods that fit passed before the in-tree Filter had run", deferred, fit)
	}
	t.Logf("of %d pods, %d do not fit (%d ruled out), and %d passed at once", worlds*pods, refused, ruledOut, deferred)
}

// randomHolder is somebody else's claim on a GPU, or nil.
func randomHolder(random *rand.Rand, position int) *resourceapi.ResourceClaim {
	switch random.IntN(3) {
	case 0:
		claim := busy("dgx", position)
		claim.Name += fmt.Sprint(position)
		claim.UID += "-" + claim.UID
		return claim
	case 1:
		claim := shareOf("dgx", position, fmt.Sprintf("%dGi", 1+random.IntN(80)))
		claim.Status.Allocation.Devices.Results[0].ConsumedCapacity[api.CapacityCores] = resource.MustParse(fmt.Sprint(random.IntN(101)))
		return claim
	default:
		return nil
	}
}

// randomRequests are those of one claim.
func randomRequests(random *rand.Rand) []resourceapi.DeviceRequest {
	one := func(name string) resourceapi.DeviceRequest {
		request := gpus(name, 1+random.Int64N(3))
		if random.IntN(2) == 0 {
			memory(fmt.Sprintf("%dGi", 1+random.IntN(80)))(request.Exactly)
		}
		if random.IntN(3) == 0 {
			cores(fmt.Sprint(random.IntN(101)))(request.Exactly)
		}
		if random.IntN(3) == 0 {
			where(fmt.Sprintf("> %d", random.IntN(7)))(request.Exactly)
		}
		return request
	}
	var requests []resourceapi.DeviceRequest
	for i := range 1 + random.IntN(2) {
		name := fmt.Sprintf("r%d", i)
		if random.IntN(5) == 0 {
			requests = append(requests, firstOf(name, one(""), one("")))
		} else {
			requests = append(requests, one(name))
		}
	}
	return requests
}
