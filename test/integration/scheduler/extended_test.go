// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
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

// Requests of several containers, of one that runs beside them and of one that runs before them become one demand. While
// the one that runs before needs four, the three that come after it have three, so one more is taken: five in all.
func TestExtendedResourceOfSeveralContainers(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 0)
	container := func(name, gpus string) corev1.Container {
		return corev1.Container{Name: name, Image: "none.invalid/simulated:1", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{nvidiaGPU: resource.MustParse(gpus)},
		}}
	}
	sidecar := container("sidecar", "1")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: corev1.PodSpec{
			SchedulerName: api.SchedulerName, NodeSelector: map[string]string{corev1.LabelHostname: cube},
			InitContainers: []corev1.Container{sidecar, container("check", "4")},
			Containers:     []corev1.Container{container("left", "2"), container("right", "1")},
		},
	}
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.WaitBound("job")
	a := s.Allocation(s.ExtendedClaim("job"))
	counts := map[string]int{}
	for request, gpus := range a.ByRequest {
		counts[request] = gpus.Count()
	}
	want := map[string]int{"container-0-request-0": 1, "container-1-request-0": 1, "container-2-request-0": 2, "container-3-request-0": 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("GPUs by request (-want +got):\n%s", diff)
	}
	wantBest(t, cube, "0", strings.Trim(a.GPUs.String(), "{}"))
}
