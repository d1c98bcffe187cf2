// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// mib writes an amount of memory as the API server does.
func mib(n int64) string { return resource.NewQuantity(n<<20, resource.BinarySI).String() }

// memoryOf is what claims can take of a GPU of the node, in MiB.
func memoryOf(t *testing.T, s *testbed.Scene, node string) int64 {
	t.Helper()
	slices, err := s.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	if err != nil || len(slices.Items) == 0 {
		t.Fatalf("node %q has no slices: %v", node, err)
	}
	memory := slices.Items[0].Spec.Devices[0].Capacity[api.CapacityMemory].Value
	return memory.Value() >> 20
}

func TestWholeGPUs(t *testing.T) {
	s := bed.Scene(t)
	claim := place(t, s, pod("quad", "gpu", "4", "cpu", "1"))
	if got := gpus(s, claim).Count(); got != 4 {
		t.Errorf("it has %d GPUs", got)
	}
	each := mib(memoryOf(t, s, s.Allocation(claim.Name).Node)) + "/0"
	if got, want := consumed(claim), strings.Join([]string{each, each, each, each}, " "); got != want {
		t.Errorf("it takes %s, want %s", got, want)
	}
	found, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), "quad", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if found.Spec.SchedulerName != api.SchedulerName || len(classicLeft(found)) > 0 {
		t.Errorf("scheduler %q, left %q", found.Spec.SchedulerName, classicLeft(found))
	}
	if cpu := found.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; cpu.String() != "1" {
		t.Errorf("other resources have changed: %v", found.Spec.Containers[0].Resources)
	}
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), "quad", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Eventually(func(ctx context.Context) string {
		if _, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, claim.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the claim is still there (%v)", err)
		}
		return ""
	})
	waitTemplates(s, 0)
}

// TestPercentOnMixedNodes asks for percentages on nodes whose GPUs have different memory.
func TestPercentOnMixedNodes(t *testing.T) {
	s := bed.Scene(t)
	v100, h100 := memoryOf(t, s, "v100"), memoryOf(t, s, "h100")
	if v100 == h100 {
		t.Fatalf("both nodes have GPUs of %d MiB", v100)
	}
	for node, memory := range map[string]int64{"v100": v100, "h100": h100} {
		claim := place(t, s, on(node, pod("third-"+node, "gpu", "2", "gpumem-percentage", "33", "gpucores", "20")))
		want := mib(memory*33/100) + "/20"
		if got := consumed(claim); got != want+" "+want {
			t.Errorf("on %q it takes %s, want twice %s", node, got, want)
		}
		if got := gpus(s, claim).Count(); got != 2 {
			t.Errorf("it has %d GPUs", got)
		}
	}
	// Two halves fill a GPU to the last step, and there is no room for a third one there.
	uuid := ""
	for _, name := range []string{"half-1", "half-2"} {
		p := on("v100", pod(name, "gpumem-percentage", "50"))
		p.Annotations["nvidia.com/use-gpuuuid"] = gpuUUID(t, s, "v100", 7)
		claim := place(t, s, p)
		if got, want := consumed(claim), mib(v100/2)+"/0"; got != want {
			t.Errorf("it takes %s, want %s", got, want)
		}
		uuid = p.Annotations["nvidia.com/use-gpuuuid"]
	}
	third := on("v100", pod("half-3", "gpumem-percentage", "1"))
	third.Annotations["nvidia.com/use-gpuuuid"] = uuid
	create(t, s, third)
	s.WaitPending("half-3")
	// Where all of one kind are taken, it is the other kind with its own amount.
	s.Finish("half-1", "half-2", "half-3", "third-v100")
	for i := range 8 {
		create(t, s, on("v100", pod(fmt.Sprintf("whole-%d", i), "gpu", "1")))
	}
	for i := range 8 {
		s.WaitBound(fmt.Sprintf("whole-%d", i))
	}
	if got, want := consumed(place(t, s, pod("elsewhere", "gpumem-percentage", "33"))), mib(h100*33/100)+"/0"; got != want {
		t.Errorf("it takes %s, want %s", got, want)
	}
}

// gpuUUID returns the UUID of a GPU by its position.
func gpuUUID(t *testing.T, s *testbed.Scene, node string, position int64) string {
	t.Helper()
	slices, err := s.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	if err != nil {
		t.Fatal(err)
	}
	for i := range slices.Items {
		for _, device := range slices.Items[i].Spec.Devices {
			if index := device.Attributes[api.AttrIndex].IntValue; index != nil && *index == position {
				return *device.Attributes[api.AttrUUID].StringValue
			}
		}
	}
	t.Fatalf("node %q has no GPU %d", node, position)
	return ""
}

// TestUserClaimsStay converts a pod that has claims of its own.
func TestUserClaimsStay(t *testing.T) {
	s := bed.Scene(t)
	_, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: api.DeviceClassGPU},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := pod("both", "gpu", "1")
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "topodra-gpus", ResourceClaimName: new("mine")}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "topodra-gpus"}}
	created := create(t, s, p)
	want := []corev1.ResourceClaim{{Name: "topodra-gpus"}, {Name: "topodra-gpus-2", Request: "gpu-0"}}
	if diff := cmp.Diff(want, created.Spec.Containers[0].Resources.Claims); diff != "" {
		t.Error(diff)
	}
	s.WaitBound("both")
	if mine := s.Allocation("mine"); mine.GPUs.Count() != 1 {
		t.Errorf("the own claim has %s", mine)
	}
}

// TestPlacementAnnotations checks what annotations choose, by what was allocated.
func TestPlacementAnnotations(t *testing.T) {
	s := bed.Scene(t)
	annotated := func(name string, p *corev1.Pod, pairs ...string) *corev1.Pod {
		p.Name = name
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
		return p
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		node string
	}{
		{annotated("use-type", pod("", "gpu", "1"), "nvidia.com/use-gputype", "a100, H100"), "h100"},
		{annotated("avoid-type", pod("", "gpumem", "100"), "nvidia.com/nouse-gputype", "h100"), "v100"},
		{annotated("use-uuid", pod("", "gpu", "1"), "nvidia.com/use-gpuuuid", "GPU-nothing,"+gpuUUID(t, s, "v100", 3)), "v100"},
		{annotated("many-types", pod("", "gpu", "1"), "nvidia.com/use-gputype", strings.Repeat("nvidia-x,", 31)+"v100"), "v100"},
	} {
		place(t, s, c.pod)
		if node := s.WaitBound(c.pod.Name); node != c.node {
			t.Errorf("%q is on %q, want %q", c.pod.Name, node, c.node)
		}
	}
	if got := gpus(s, claimOf(t, s, "use-uuid")).String(); got != "{3}" {
		t.Errorf("by UUID it got %s", got)
	}
	// Four GPUs of one NUMA node of the machine that says which is which.
	claim := place(t, s, on("h100", annotated("numa", pod("", "gpu", "3"), "nvidia.com/numa-bind", "true")))
	if got := gpus(s, claim); !got.SubsetOf(0x0f) && !got.SubsetOf(0xf0) {
		t.Errorf("GPUs %s are not on one NUMA node", got)
	}
}

// TestMalformed shows what a user sees: the field, the value and what is allowed; warnings for what has no effect.
func TestMalformed(t *testing.T) {
	s := bed.Scene(t)
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{pod("a", "gpu", "1", "gpucores", "101"), `spec.containers[0].resources.limits[nvidia.com/gpucores]: Invalid value: "101": must be a whole number from 0 to 100`},
		{pod("b", "gpu", "1", "gpumem", "1.5"), `spec.containers[0].resources.limits[nvidia.com/gpumem]: Invalid value: "1500m": must be a whole number`},
		{on("h100", pod("c", "gpu", "33")), `spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "33": must be a whole number from 0 to 32`},
	} {
		if got := refused(t, s, c.pod); !strings.Contains(got, c.want) || !strings.Contains(got, "pods.gpu.topodra.dev") {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	config := s.Cluster.AdminConfig()
	heard := &listener{}
	config.WarningHandlerWithContext = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	p := pod("d", "gpu", "1")
	p.Annotations["nvidia.com/gpumem"] = "100"
	if _, err := client.CoreV1().Pods(s.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(heard.texts, "\n"); !strings.Contains(got, `annotation "nvidia.com/gpumem" has no effect: it is a resource`) {
		t.Errorf("warnings are %q", got)
	}
	if names := templateNames(t.Context(), s); len(names) != 1 {
		t.Errorf("templates are %q", names)
	}
}

// listener keeps warnings.
type listener struct{ texts []string }

func (l *listener) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	l.texts = append(l.texts, text)
}
