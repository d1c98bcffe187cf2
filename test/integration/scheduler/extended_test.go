// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/test/integration/testbed"
)

const nvidiaGPU corev1.ResourceName = "nvidia.com/gpu"

// Classic requests get the best set too.
func TestExtendedResource(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 1)
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{cube, bare}, Extended: map[corev1.ResourceName]string{nvidiaGPU: "4"}})
	s.WaitBound("job")
	s.WantGPUs(s.ExtendedClaim("job"), cube, "4-7")
	// By the name that every class has.
	s.CreatePod(testbed.Pod{Name: "implicit", Nodes: []string{cube}, Extended: map[corev1.ResourceName]string{
		"deviceclass.resource.kubernetes.io/gpu.topodra.dev": "2",
	}})
	s.WaitBound("implicit")
	s.WantGPUs(s.ExtendedClaim("implicit"), cube, "2,3") // of 0, 2 and 3, also 0-3 has two NVLinks
}

// Extended resources and claims of one pod are placed together, on the better linked node.
func TestExtendedResourceBesideAClaim(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 0) // the lowest GPUs are no quad
	s.CreateClaim(testbed.Claim{Name: "claim", Requests: testbed.Requests(testbed.GPUs("gpus", 2))})
	s.CreatePod(testbed.Pod{
		Name: "job", Nodes: []string{cube, pcie}, Claims: []string{"claim"}, Extended: map[corev1.ResourceName]string{nvidiaGPU: "2"},
	})
	s.WaitBound("job")
	claim, extended := s.Allocation("claim"), s.Allocation(s.ExtendedClaim("job"))
	if claim.GPUs.Count() != 2 || extended.GPUs.Count() != 2 || (claim.GPUs|extended.GPUs).String() != "{4-7}" || claim.Node != cube {
		t.Errorf("claim got %s, extended resource got %s, want the quad {4-7} of %q", claim, extended, cube)
	}
}

// The pod's annotation is the policy of its extended resources.
func TestExtendedResourceWithPolicy(t *testing.T) {
	s := bed.Scene(t)
	two := map[corev1.ResourceName]string{nvidiaGPU: "2"}
	s.Occupy(weave, 1)
	s.CreatePod(testbed.Pod{Name: "first", Nodes: []string{weave}, Extended: two, Annotation: "Required,level=NVLink"})
	s.WaitBound("first")
	first := s.Allocation(s.ExtendedClaim("first")).GPUs
	if got := first.String(); got != "{0,2}" && got != "{4,5}" && got != "{6,7}" {
		t.Fatalf("required pair got %s", got)
	}
	s.CreatePod(testbed.Pod{Name: "second", Nodes: []string{pcie}, Extended: two, Annotation: "Required,level=NVLink"})
	s.WaitPending("second", `topology: required are 2 GPUs over NVLink; best now: PCIe 12 GB/s on node "pcie" (GPUs 0,1)`)
	s.CreatePod(testbed.Pod{Name: "third", Nodes: []string{pcie}, Extended: two, Annotation: "Sometimes"})
	s.WaitPending("third", "gpu.topodra.dev/topology", "Sometimes")
	s.CreatePod(testbed.Pod{Name: "fourth", Nodes: []string{pcie}, Extended: map[corev1.ResourceName]string{nvidiaGPU: "3"}, Annotation: "None"})
	s.WaitBound("fourth")
	s.WantGPUs(s.ExtendedClaim("fourth"), pcie, "0-2")
}
