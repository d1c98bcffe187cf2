// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// world is a cluster of a DGX-1V, four A30 in pairs of which one is partitioned, and a node without GPUs, on which older claims
// hold GPUs.
func world(t *testing.T, pod *corev1.Pod, claims ...resourceapi.ResourceClaim) *Snapshot {
	t.Helper()
	pairs := clitest.Slice(t, "pairs", "a30_4x_pairs")
	clitest.Partition(&pairs, 3, 2, "2g.12gb", "12Gi")
	return &Snapshot{
		Pod: pod, Classes: clitest.Classes(), Claims: claims, Now: clitest.Epoch,
		Slices:    []resourceapi.ResourceSlice{clitest.Slice(t, "cube", "dgx1v_8xv100"), pairs},
		Templates: map[string]*resourceapi.ResourceClaimTemplate{},
		Nodes:     []corev1.Node{clitest.Node("cube"), clitest.Node("pairs"), clitest.Node("plain")},
		Pods:      []corev1.Pod{},
	}
}

func explained(t *testing.T, s *Snapshot) *Explanation {
	t.Helper()
	planner, err := fit.New()
	if err != nil {
		t.Fatal(err)
	}
	e, err := Of(t.Context(), planner, s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func text(t *testing.T, e *Explanation) string {
	t.Helper()
	var b strings.Builder
	if err := WriteText(&b, e); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// said gives a pod the condition that a scheduler writes.
func said(pod *corev1.Pod, message string) *corev1.Pod {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
		LastTransitionTime: metav1.Time{Time: clitest.Epoch},
	})
	return pod
}

// byTemplate makes a pod use a template whose claim has the name made, or is not made yet if that is empty.
func byTemplate(pod *corev1.Pod, template, made string) *corev1.Pod {
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gpus", ResourceClaimTemplateName: &template})
	if made != "" {
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: "gpus", ResourceClaimName: &made})
	}
	return pod
}

// extended makes a pod ask for nvidia.com/gpu.
func extended(pod *corev1.Pod, count, claim string) *corev1.Pod {
	list := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(count)}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	if claim != "" {
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
	}
	return pod
}

// mig makes a claim ask for MIG devices.
func mig(c *resourceapi.ResourceClaim) {
	c.Spec.Devices.Requests[0].Exactly.DeviceClassName = api.DeviceClassMIG
}

func TestPlaced(t *testing.T) {
	t.Parallel()
	other := clitest.Claim("other", 2, clitest.Allocated("cube", "g0,g3", 5, "other-0"))
	late := clitest.Claim("late", 1, clitest.Allocated("cube", "g1", 20, "late-0"))
	for name, s := range map[string]*Snapshot{
		// Four GPUs beside an older claim: the best of what was left.
		"placed-best": world(t, clitest.Pod("job", "cube", "four"), other, late, clitest.Claim("four", 4, clitest.Allocated("cube", "g4,g5,g6,g7", 10, "job"))),
		// Two over PCIe while pairs with NVLinks were free.
		"placed-worse": world(t, clitest.Pod("job", "cube", "two"), other, late, clitest.Claim("two", 2, clitest.Allocated("cube", "g2,g5", 10, "job"))),
		// The same, and now everything better is held by claims that came later.
		"placed-then": world(t, clitest.Pod("job", "pairs", "two"), clitest.Claim("later", 1, clitest.Allocated("pairs", "g1", 20)),
			clitest.Claim("two", 2, clitest.Allocated("pairs", "g0,g2", 10, "job"))),
		// A share of two GPUs and a whole one, in two claims, one of them made of a template.
		"placed-shares": world(t, byTemplate(clitest.Pod("job", "cube", "whole"), "half", "job-half-x"), other,
			clitest.Claim("whole", 1, clitest.Allocated("cube", "g4", 10, "job")),
			clitest.Claim("job-half-x", 2, clitest.Share("4Gi", "50"), clitest.Allocated("cube", "g5,g6", 10, "job")),
			clitest.Claim("neighbour", 1, clitest.Share("8Gi", "50"), clitest.Allocated("cube", "g5", 11, "n"))),
		"placed-extended": world(t, extended(clitest.Pod("job", "cube"), "2", "job-extended-resources-x"),
			clitest.Claim("job-extended-resources-x", 2, clitest.Allocated("cube", "g0,g3", 10, "job"))),
		"placed-mig":    world(t, clitest.Pod("job", "pairs", "small"), clitest.Claim("small", 1, mig, clitest.Allocated("pairs", "m3-1", 10, "job"))),
		"placed-single": world(t, clitest.Pod("job", "pairs", "one"), clitest.Claim("one", 1, clitest.Allocated("pairs", "g1", 10, "job"))),
		"placed-gone":   world(t, clitest.Pod("job", "cube", "one"), clitest.Claim("one", 2, clitest.Allocated("cube", "g1,g77", 10, "job"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clitest.Golden(t, *update, name+".txt", text(t, explained(t, s)))
		})
	}
}

// TestWithoutTimes: schedulers may leave the time of an allocation out.
func TestWithoutTimes(t *testing.T) {
	t.Parallel()
	own := clitest.Claim("two", 2, clitest.Allocated("cube", "g2,g5", 10, "job"))
	own.Status.Allocation.AllocationTimestamp = nil
	e := explained(t, world(t, clitest.Pod("job", "cube", "two"), own))
	if e.Placed.Then != nil || !strings.Contains(e.Placed.ThenText, "cannot be reconstructed") || e.Claims[0].AllocatedAt != "" {
		t.Errorf("without a time: then %+v, %q", e.Placed.Then, e.Placed.ThenText)
	}
	// Others without a time may have come later: they count as free then, never as a reason.
	own = clitest.Claim("two", 2, clitest.Allocated("cube", "g0,g3", 10, "job"))
	other := clitest.Claim("other", 6, clitest.Allocated("cube", "g1,g2,g4,g5,g6,g7", 5))
	other.Status.Allocation.AllocationTimestamp = nil
	e = explained(t, world(t, clitest.Pod("job", "cube", "two"), own, other))
	if e.Placed.Then == nil || e.Placed.Then.GBps < e.Placed.Got.GBps {
		t.Errorf("a claim without a time counts as older: then %+v", e.Placed.Then)
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	const words = "0/3 nodes are available"
	held := []resourceapi.ResourceClaim{
		clitest.Claim("a", 1, clitest.Allocated("cube", "g0", 1, "a-0")), clitest.Claim("b", 1, clitest.Allocated("cube", "g5", 1, "b-0", "b-1")),
		clitest.Claim("c", 2, clitest.Allocated("cube", "g6,g7", 1)), clitest.Claim("d", 1, clitest.Share("2Gi", "10"), clitest.Allocated("pairs", "g1", 1, "d-0")),
	}
	with := func(pod *corev1.Pod, claims ...resourceapi.ResourceClaim) *Snapshot {
		return world(t, pod, append(claims, held...)...)
	}
	cordoned := with(said(clitest.Pod("job", "", "two"), words), clitest.Claim("two", 2, clitest.Required(api.LevelNVLink)))
	cordoned.Nodes[0].Spec.Unschedulable = true
	cordoned.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
	cordoned.Nodes[2].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
	busy := with(said(clitest.Pod("job", "", "one"), words), clitest.Claim("one", 1))
	busy.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "cube"}
	busy.Pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("60"), corev1.ResourceMemory: resource.MustParse("1Ti")}
	neighbour := clitest.Pod("neighbour", "cube")
	neighbour.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
	busy.Pods = []corev1.Pod{*neighbour}
	made := with(said(byTemplate(clitest.Pod("job", ""), "quads", ""), words))
	quads := clitest.Claim("", 4)
	made.Templates["quads"] = &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: quads.Spec}}
	event := with(clitest.Pod("job", "", "four"), clitest.Claim("four", 4))
	event.Events = []corev1.Event{
		{Reason: "FailedScheduling", Message: "newer", LastTimestamp: metav1.Time{Time: clitest.Epoch.Add(2)}},
		{Reason: "FailedScheduling", Message: "older", LastTimestamp: metav1.Time{Time: clitest.Epoch}},
		{Reason: "Other", Message: "other", LastTimestamp: metav1.Time{Time: clitest.Epoch.Add(3)}},
	}
	annotated := extended(said(clitest.Pod("job", ""), words), "4", "")
	annotated.Annotations = map[string]string{api.AnnotationTopology: "Required,level=NVLink"}
	plugin := with(annotated)
	plugin.Nodes[1].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
	bad := clitest.Claim("bad", 1)
	bad.Annotations = map[string]string{api.AnnotationTopology: "Rquired"}
	otherScheduler := clitest.Pod("job", "", "four")
	otherScheduler.Spec.SchedulerName = corev1.DefaultSchedulerName
	otherScheduler.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	for name, s := range map[string]*Snapshot{
		"pending-required":  with(said(clitest.Pod("job", "", "four"), words), clitest.Claim("four", 4, clitest.Required(api.LevelNVLink))),
		"pending-preferred": with(said(clitest.Pod("job", "", "six"), words), clitest.Claim("six", 6)),
		"pending-never":     with(said(clitest.Pod("job", "", "three"), words), clitest.Claim("three", 3, clitest.Required(api.LevelPCIe), pinned("pairs"))),
		"pending-too-many":  with(said(clitest.Pod("job", "", "many"), words), clitest.Claim("many", 16)),
		"pending-share":     with(said(clitest.Pod("job", "", "share"), words), clitest.Claim("share", 8, clitest.Share("12Gi", "10"))),
		"pending-mig":       with(said(clitest.Pod("job", "", "parts"), words), clitest.Claim("parts", 2, mig), clitest.Claim("x", 1, mig, clitest.Allocated("pairs", "m3-0", 1, "x-0"))),
		"pending-two":       with(said(clitest.Pod("job", "", "pair", "one"), words), clitest.Claim("pair", 4, clitest.Required(api.LevelNVLink)), clitest.Claim("one", 1)),
		"pending-list":      with(said(clitest.Pod("job", "", "list"), words), list()),
		"pending-fits":      with(said(clitest.Pod("job", "", "two"), words), clitest.Claim("two", 2)),
		"pending-nodes":     cordoned,
		"pending-busy":      busy,
		"pending-template":  made,
		"pending-event":     event,
		"pending-extended":  plugin,
		"pending-missing":   with(byTemplate(clitest.Pod("job", "", "nothing"), "none", "")),
		"pending-malformed": with(said(clitest.Pod("job", "", "bad"), words), bad),
		"pending-others":    with(otherScheduler, clitest.Claim("four", 4)),
		"pending-nobody":    with(clitest.Pod("job", "")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := explained(t, s)
			clitest.Golden(t, *update, name+".txt", text(t, e))
			var out strings.Builder
			if err := WriteJSON(&out, e); err != nil {
				t.Fatal(err)
			}
			if !json.Valid([]byte(out.String())) || strings.Contains(out.String(), ": null") && name == "pending-required" && e.Pending.Free[0].Gives == nil {
				t.Errorf("JSON: %s", out.String())
			}
			if name == "pending-required" {
				clitest.Golden(t, *update, name+".json", out.String())
			}
		})
	}
}

// pinned selects the devices of a node by its model.
func pinned(string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.topodra.dev"].productName == "A30"`,
		}}}
	}
}

// list is a claim for eight GPUs, or else for six with NVLinks.
func list() resourceapi.ResourceClaim {
	c := clitest.Claim("list", 1, clitest.Required(api.LevelNVLink))
	c.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "eight", DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 8},
		{Name: "six", DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 6},
	}}
	return c
}
