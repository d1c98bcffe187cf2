// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/test/cluster"
)

// namespace of all claims and pods.
const namespace = "tenants"

// patience bounds every wait.
const patience = 2 * time.Minute

// policyFiles are what is under test.
var policyFiles = []string{"manifests/policies/sharing.yaml", "manifests/policies/optional/one-pod-per-share.yaml"}

// server starts a control plane with the policies in force.
func server(t *testing.T) kubernetes.Interface {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	// The controller of claims would take pods off the list that do not exist.
	controllers := slices.DeleteFunc(cluster.DefaultControllers(), func(name string) bool {
		return strings.Contains(name, "resourceclaim") || strings.Contains(name, "resource-claim")
	})
	c, err := cluster.Start(t.Context(), cluster.Options{Controllers: controllers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	paths := make([]string, len(policyFiles))
	for i, file := range policyFiles {
		paths[i] = filepath.Join(root, file)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Apply(ctx, paths); err != nil {
		t.Fatal(err)
	}
	// Claims with admin access need a namespace that says so.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}}
	if _, err := c.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c.Client()
}

// consumer is an entry of reservedFor: "kind:name".
func consumer(text string) resourceapi.ResourceClaimConsumerReference {
	kind, name, _ := strings.Cut(text, ":")
	out := resourceapi.ResourceClaimConsumerReference{Resource: kind, Name: name, UID: types.UID(text)}
	if kind != "pods" {
		out.APIGroup = "scheduling.k8s.io"
	}
	return out
}

// scene is a claim that is reserved for some and then for others. Requests are
// "name" for a whole GPU, "name=10Gi" for a share, "name!" for admin access,
// "name/sub=10Gi" for an alternative; those that begin with "nic" are another
// driver's.
type scene struct {
	requests      []string
	class         string // configuration of the class, as JSON
	before, after []string
	want          string // part of the refusal; "" lets it through
}

// claimOf makes the claim and the status that a scheduler writes.
func (s *scene) claimOf(name string) (*resourceapi.ResourceClaim, *resourceapi.AllocationResult) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	allocation := &resourceapi.AllocationResult{}
	for i, text := range s.requests {
		text, admin := strings.CutSuffix(text, "!")
		path, memory, _ := strings.Cut(text, "=")
		request, sub, _ := strings.Cut(path, "/")
		var capacity *resourceapi.CapacityRequirements
		if memory != "" {
			capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
		}
		entry := resourceapi.DeviceRequest{Name: request}
		if sub == "" {
			entry.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", Capacity: capacity, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
			if admin {
				entry.Exactly.AdminAccess = new(true)
			}
		} else {
			entry.FirstAvailable = []resourceapi.DeviceSubRequest{{Name: sub, DeviceClassName: "gpu", Capacity: capacity, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, entry)
		result := resourceapi.DeviceRequestAllocationResult{Request: path, Driver: "gpu.topodra.dev", Pool: "node", Device: fmt.Sprintf("gpu-%d", i)}
		if strings.HasPrefix(request, "nic") {
			result.Driver = "nic.example.com"
		}
		if admin {
			result.AdminAccess = new(true)
		}
		allocation.Devices.Results = append(allocation.Devices.Results, result)
	}
	if s.class != "" {
		allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.topodra.dev", Parameters: runtime.RawExtension{Raw: []byte(s.class)}}}}}
	}
	return claim, allocation
}

// reserve sets up the scene and returns the answer to the change of reservedFor,
// and to what must always work afterwards.
func (s *scene) reserve(t *testing.T, client kubernetes.Interface, name string) error {
	t.Helper()
	ctx := t.Context()
	spec, allocation := s.claimOf(name)
	claims := client.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Create(ctx, spec, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := func(consumers []string) error {
		claim.Status.Allocation, claim.Status.ReservedFor = allocation, nil
		for _, text := range consumers {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, consumer(text))
		}
		updated, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		if err == nil {
			claim = updated
		}
		return err
	}
	if err := status(s.before); err != nil {
		return err
	}
	answer := status(s.after)
	// What is reserved already can always be changed elsewhere, and released.
	reserved := s.before
	if answer == nil {
		reserved = s.after
	}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: allocation.Devices.Results[0].Driver, Pool: "node", Device: "gpu-0"}}
	if err := status(reserved); err != nil {
		t.Errorf("%s: a status of its devices: %v", name, err)
	}
	for len(reserved) > 0 {
		reserved = reserved[1:]
		if err := status(reserved); err != nil {
			t.Errorf("%s: released down to %q: %v", name, reserved, err)
		}
	}
	return answer
}

// inForce waits until the policies refuse what they should.
func inForce(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	for i, s := range []scene{
		{requests: []string{"a=1Gi"}, before: []string{"pods:x"}, after: []string{"pods:x", "pods:y"}},
		{requests: []string{"a"}, after: []string{"podgroups:x"}},
	} {
		for attempt, deadline := 0, time.Now().Add(patience); ; attempt++ {
			if err := s.reserve(t, client, fmt.Sprintf("probe-%d-%d", i, attempt)); err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the policies do not come into force")
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), annotated("probe", "cdi.k8s.io/x", "k8s.gpu.topodra.dev/claim=x"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the policies do not come into force")
		}
	}
}

// annotated is a pod.
func annotated(name string, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

// requireAnswer compares an answer with what is wanted.
func requireAnswer(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: refused: %v", what, err)
	case want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: got %v, want it forbidden with %q", what, err, want)
	}
}

func TestPolicies(t *testing.T) {
	client := server(t)
	inForce(t, client)
	t.Run("claims", func(t *testing.T) { claims(t, client) })
	t.Run("annotations", func(t *testing.T) { annotations(t, client) })
	t.Run("with NRI", func(t *testing.T) { withNRI(t, client) })
}

// withNRI has the policies of clusters whose runtimes offer NRI: there the driver
// decides who may share, from all that it takes.
func withNRI(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	if err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "topodra-one-pod-per-share", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	two := []string{"pods:a", "pods:b"}
	scenes := map[string]scene{
		"14-left-to-the-driver": {requests: []string{"one=10Gi"}, before: two[:1], after: two},
		"15-own-requests":       {requests: []string{"one=10Gi", "two=10Gi"}, before: two[:1], after: two},
	}
	for name, s := range scenes {
		for attempt, deadline := 0, time.Now().Add(patience); ; attempt++ {
			err := s.reserve(t, client, fmt.Sprintf("%s-%d", name, attempt))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", name, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	group := scene{requests: []string{"one"}, after: []string{"podgroups:g"}}
	requireAnswer(t, "group", group.reserve(t, client, "group-still"), "which are for pods only")
}

// claims is named as in docs/node.md where a row of the table there is meant.
func claims(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	const forOne, forPods = `has a share of a GPU (request "one") and is for one pod at a time, so "b" cannot have it beside "a"`, "which are for pods only"
	two, group := []string{"pods:a", "pods:b"}, []string{"podgroups:g"}
	share := []string{"one=10Gi"}
	off := `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"enforcement":"None"}}`
	on := strings.Replace(off, "None", "Enforced", 1)
	for name, s := range map[string]scene{
		"14-two-pods-one-share":       {requests: share, before: two[:1], after: two, want: forOne},
		"14-both-at-once":             {requests: share, after: two, want: forOne},
		"14-of-an-alternative":        {requests: []string{"one/sub=10Gi"}, before: two[:1], after: two, want: `(request "one/sub")`},
		"14-beside-a-whole-one":       {requests: []string{"two", "one=10Gi"}, before: two[:1], after: two, want: forOne},
		"14-class-that-enforces":      {requests: share, class: on, before: two[:1], after: two, want: forOne},
		"15-own-requests":             {requests: []string{"one=10Gi", "two=10Gi"}, before: two[:1], after: two, want: forOne},
		"a-third-pod":                 {requests: []string{"one"}, before: two, after: []string{"pods:a", "pods:b", "pods:c"}},
		"17-whole-gpus":               {requests: []string{"one", "two"}, before: two[:1], after: two},
		"17-whole-alternative":        {requests: []string{"one/sub"}, before: two[:1], after: two},
		"22-admin-access":             {requests: []string{"one=10Gi!"}, before: two[:1], after: two},
		"class-without-enforcement":   {requests: share, class: off, before: two[:1], after: two},
		"shares-of-another-driver":    {requests: []string{"nic=10Gi"}, before: two[:1], after: two},
		"one-pod":                     {requests: share, after: two[:1]},
		"one-pod-after-another":       {requests: share, before: two[:1], after: two[1:]},
		"group":                       {requests: []string{"one"}, after: group, want: forPods},
		"group-in-place-of-a-pod":     {requests: []string{"one"}, before: two[:1], after: group, want: `for podgroups "g"`},
		"group-beside-a-pod":          {requests: []string{"one"}, before: two[:1], after: []string{"pods:a", "podgroups:g"}},
		"group-with-another-driver":   {requests: []string{"nic"}, after: group},
		"group-with-both-drivers":     {requests: []string{"nic", "one"}, after: group, want: forPods},
		"pod-taken-from-beside-group": {requests: []string{"one"}, before: []string{"podgroups:g", "pods:a"}, after: group},
	} {
		requireAnswer(t, name, s.reserve(t, client, name), s.want)
	}
}

// annotations of pods that name CDI devices.
func annotations(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods := client.CoreV1().Pods(namespace)
	ours, others := "k8s.gpu.topodra.dev/claim=uid_r_gpu-1", "nvidia.com/gpu=0"
	for name, test := range map[string]struct {
		annotations []string
		want        string
	}{
		"ours":        {[]string{"cdi.k8s.io/mine", ours}, `annotation "cdi.k8s.io/mine" names a CDI device of a claim`},
		"among-other": {[]string{"cdi.k8s.io/mine", others + "," + ours}, "by spec.resourceClaims and resources.claims only"},
		"second":      {[]string{"cdi.k8s.io/a", others, "cdi.k8s.io/b", ours}, `"cdi.k8s.io/b"`},
		"others":      {[]string{"cdi.k8s.io/mine", others}, ""},
		"no-cdi":      {[]string{"example.com/note", ours}, ""},
		"none":        {nil, ""},
	} {
		pod, err := pods.Create(t.Context(), annotated(name, test.annotations...), metav1.CreateOptions{})
		requireAnswer(t, name, err, test.want)
		if err != nil {
			continue
		}
		pod.Annotations = map[string]string{"cdi.k8s.io/later": ours}
		_, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{})
		requireAnswer(t, name+", later", err, `annotation "cdi.k8s.io/later"`)
	}
}
