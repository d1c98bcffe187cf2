// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/convert"
	"github.com/topodra/topodra/webhook/templates"
)

// The tests in this file are named after faults of other webhooks, see docs/migration.md.

// realTemplates gives a handler the real store on its fake server, and returns a collector with a clock.
func realTemplates(h *Handler) (*templates.Collector, *time.Time) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	client := fake.NewClientset()
	clock := func() time.Time { return now }
	h.Client, h.Templates = client, &templates.Store{Client: client, Grace: time.Minute, Now: clock}
	return &templates.Collector{Client: client, Grace: time.Minute, Now: clock}, &now
}

// templateNames are those in the namespace of the requests.
func templateNames(t *testing.T, h *Handler) []string {
	t.Helper()
	list, err := h.Client.ResourceV1().ResourceClaimTemplates("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// planned converts a pod and returns it with the spec of its claim.
func planned(t *testing.T, pod *corev1.Pod) (*corev1.Pod, *resourceapi.ResourceClaimSpec) {
	t.Helper()
	h, store := newHandler()
	got, _ := admit(t, h, pod)
	return got, store.specs["ns/made"]
}

func TestW01_NothingLeaks(t *testing.T) {
	t.Parallel()
	h, _ := newHandler()
	collector, now := realTemplates(h)
	if response := h.Handle(t.Context(), request(t, podOf("nvidia.com/gpu", "1"), true)); !response.Allowed || len(templateNames(t, h)) > 0 {
		t.Errorf("a dry run leaves %q", templateNames(t, h))
	}
	got, _ := admit(t, h, podOf("nvidia.com/gpu", "1")) // and then somebody else refuses it
	if claim := got.Spec.ResourceClaims[0]; claim.ResourceClaimTemplateName == nil || claim.ResourceClaimName != nil {
		t.Errorf("the pod has claim %+v, which nobody owns", claim)
	}
	*now = now.Add(time.Minute)
	if err := collector.Collect(t.Context()); err != nil || len(templateNames(t, h)) > 0 {
		t.Errorf("a rejected pod leaves %q (%v)", templateNames(t, h), err)
	}
}

func TestW02_PodsWithoutNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	h, _ := newHandler()
	realTemplates(h)
	var used []string
	for range 3 { // as a controller makes them: no name yet, no namespace in the object
		got, _ := admit(t, h, podOf("nvidia.com/gpu", "1"))
		used = append(used, *got.Spec.ResourceClaims[0].ResourceClaimTemplateName)
	}
	if used[0] != used[1] || used[0] != used[2] || len(templateNames(t, h)) != 1 {
		t.Errorf("the pods use %q of %q", used, templateNames(t, h))
	}
}

// shipped reads documents of a manifest; the last of each kind counts.
func shipped[T any](t *testing.T, file, kind string) T {
	t.Helper()
	data, err := os.ReadFile("../manifests/webhook/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var found T
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		if strings.Contains(document, "\nkind: "+kind+"\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &found); err != nil {
				t.Fatal(err)
			}
		}
	}
	return found
}

func TestW03_ClaimsAreNotDeletedEarly(t *testing.T) {
	t.Parallel()
	hooks := shipped[admissionregistrationv1.MutatingWebhookConfiguration](t, "configuration.yaml", "MutatingWebhookConfiguration").Webhooks
	if len(hooks) != 1 || len(hooks[0].Rules) != 1 || !cmp.Equal(hooks[0].Rules[0].Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Create}) {
		t.Errorf("the webhook hears of more than new pods: %+v", hooks)
	}
	for _, rule := range shipped[rbacv1.ClusterRole](t, "rbac.yaml", "ClusterRole").Rules {
		if slices.Contains(rule.Resources, "resourceclaims") && !cmp.Equal(rule.Verbs, []string{"get"}) {
			t.Errorf("the webhook may do more with claims than look: %q", rule.Verbs)
		}
	}
}

func TestW04_EveryContainerIsConverted(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := podOf("nvidia.com/gpumem", "100") // no count
	resources := func(limits ...string) corev1.ResourceRequirements {
		return podOf(limits...).Spec.Containers[0].Resources
	}
	onlyRequests := resources("nvidia.com/gpu", "1")
	onlyRequests.Limits = nil
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "init", Resources: resources("nvidia.com/gpu", "1", "nvidia.com/gpumem", "7")}, {Name: "sidecar", RestartPolicy: &always, Resources: resources("nvidia.com/gpu", "2")},
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "requests", Resources: onlyRequests})
	got, spec := planned(t, pod)
	for _, list := range [][]corev1.Container{got.Spec.InitContainers, got.Spec.Containers} {
		for _, c := range list {
			if len(c.Resources.Claims) != 1 || len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
				t.Errorf("container %q has %+v", c.Name, c.Resources)
			}
		}
	}
	if n := len(spec.Devices.Requests); n != 4 {
		t.Errorf("there are %d requests", n)
	}
}

func TestW05_GPUsOfAContainerAreDistinct(t *testing.T) {
	t.Parallel()
	_, spec := planned(t, podOf("nvidia.com/gpu", "2", "nvidia.com/gpumem", "100"))
	if len(spec.Devices.Requests) != 1 || spec.Devices.Requests[0].Exactly.Count != 2 { // devices of one request are distinct
		t.Errorf("got %+v", spec.Devices)
	}
	pod := podOf("nvidia.com/gpu", "2", "nvidia.com/gpumem", "100")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: podOf("nvidia.com/gpu", "1", "nvidia.com/gpumem", "100").Spec.Containers[0].Resources}}
	_, spec = planned(t, pod)
	want := []resourceapi.DeviceConstraint{{Requests: []string{"gpu-0", "gpu-1"}, DistinctAttribute: new(resourceapi.FullyQualifiedName("gpu.topodra.dev/uuid"))}}
	if diff := cmp.Diff(want, spec.Devices.Constraints); diff != "" {
		t.Error(diff)
	}
}

func TestW06_ContainersHaveOneClaim(t *testing.T) {
	t.Parallel()
	pod := podOf("nvidia.com/gpu", "2")
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "second", Resources: podOf("nvidia.com/gpu", "2").Spec.Containers[0].Resources})
	got, spec := planned(t, pod)
	if len(got.Spec.ResourceClaims) != 1 || len(spec.Devices.Requests) != 2 {
		t.Errorf("the pod has claims %+v with requests %+v", got.Spec.ResourceClaims, spec.Devices.Requests)
	}
}

func TestW07_NotInTheWay(t *testing.T) {
	t.Parallel()
	hook := shipped[admissionregistrationv1.MutatingWebhookConfiguration](t, "configuration.yaml", "MutatingWebhookConfiguration").Webhooks[0]
	selects := func(selector *metav1.LabelSelector, labels map[string]string) bool {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Matches(set(labels))
	}
	for namespace, want := range map[string]bool{"default": true, "kube-system": false, "topodra-system": false} {
		if got := selects(hook.NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": namespace}); got != want {
			t.Errorf("pods of namespace %q are sent: %t", namespace, got)
		}
	}
	for _, label := range []string{LabelIgnore, LabelClassicIgnore} {
		if selects(hook.ObjectSelector, map[string]string{label: "ignore"}) || selects(hook.NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": "x", label: "ignore"}) {
			t.Errorf("what has label %q is sent", label)
		}
	}
	if !selects(hook.ObjectSelector, nil) || *hook.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *hook.TimeoutSeconds > 10 {
		t.Errorf("got %+v", hook)
	}
}

// set is labels for a selector.
type set map[string]string

func (s set) Has(key string) bool { _, found := s[key]; return found }

func (s set) Get(key string) string { return s[key] }

func (s set) Lookup(key string) (string, bool) { value, found := s[key]; return value, found }

// TestW08_TextIsQuoted is the admission's part; FuzzSelectors in package convert is the other one.
func TestW08_TextIsQuoted(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`GPU-1"] || true || device.driver in ["x`, `x\`, "x\ny", `"`} {
		for _, key := range []string{"nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"} {
			h, store := newHandler()
			pod := podOf("nvidia.com/gpu", "1")
			pod.Annotations = map[string]string{key: value}
			if got := refuse(t, h, pod); !strings.Contains(got, "metadata.annotations["+key+"]: Invalid value") || len(store.specs) > 0 {
				t.Errorf("%s=%q: got %q", key, value, got)
			}
		}
	}
}

func TestW09_NothingIsIgnored(t *testing.T) {
	t.Parallel()
	pod := podOf("nvidia.com/gpu", "2", "nvidia.com/gpumem-percentage", "25", "nvidia.com/priority", "0")
	pod.Annotations = map[string]string{
		"nvidia.com/numa-bind": "true", "nvidia.com/vgpu-mode": "hami-core", "hami.io/gpu-scheduler-policy": "binpack", "hami.io/node-scheduler-policy": "spread",
	}
	h, store := newHandler()
	_, response := admit(t, h, pod)
	devices := store.specs["ns/made"].Devices
	memory := devices.Requests[0].FirstAvailable[0].Capacity.Requests[api.CapacityMemory]
	if memory.String() != "8Gi" {
		t.Errorf("a quarter of 32Gi is %s", memory.String())
	}
	if len(devices.Constraints) != 1 || *devices.Constraints[0].MatchAttribute != resourceapi.FullyQualifiedName(api.AttrNUMANode) {
		t.Errorf("numa-bind became %+v", devices.Constraints)
	}
	var configs []string
	for _, config := range devices.Config {
		configs = append(configs, string(config.Opaque.Parameters.Raw))
	}
	if got := strings.Join(configs, ""); !strings.Contains(got, `"communicates":false`) || !strings.Contains(got, `"taskPriority":"High"`) {
		t.Errorf("the configuration is %s", got)
	}
	if len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], "node-scheduler-policy") {
		t.Errorf("warnings are %q", response.Warnings)
	}
}

func TestW11_AllOrNothing(t *testing.T) {
	t.Parallel()
	h, _ := newHandler()
	realTemplates(h)
	pod := podOf("nvidia.com/gpu", "1")
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "bad", Resources: podOf("nvidia.com/gpu", "1", "nvidia.com/gpumem-percentage", "200").Spec.Containers[0].Resources})
	if refuse(t, h, pod); len(templateNames(t, h)) > 0 {
		t.Errorf("a pod that is refused has left %q", templateNames(t, h))
	}
	got, _ := admit(t, h, podOf("nvidia.com/gpu", "0", "cpu", "1"))
	if len(got.Spec.ResourceClaims) > 0 || len(templateNames(t, h)) > 0 || len(got.Spec.Containers[0].Resources.Limits) != 1 {
		t.Errorf("no GPU is %+v", got.Spec)
	}
}

func TestV06_AnnotationsDeleteNothing(t *testing.T) {
	t.Parallel()
	h, _ := newHandler()
	collector, now := realTemplates(h)
	mine := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "mine", Labels: map[string]string{templates.LabelManagedBy: templates.ManagedBy},
	}}
	if _, err := h.Client.ResourceV1().ResourceClaimTemplates("ns").Create(t.Context(), mine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := podOf("cpu", "1")
	pod.Annotations = map[string]string{"original-resources": `{"app":{"claims":["mine"]}}`, templates.AnnotationLastUsed: "2000-01-01T00:00:00Z"}
	if got, response := admit(t, h, pod); len(response.Patches) > 0 || !cmp.Equal(pod, got) {
		t.Errorf("the annotation has an effect: %v", response.Patches)
	}
	*now = now.Add(time.Hour)
	if err := collector.Collect(t.Context()); err != nil || !slices.Equal(templateNames(t, h), []string{"mine"}) {
		t.Errorf("what only looks like ours is gone: %q (%v)", templateNames(t, h), err)
	}
}

func TestV07_ForgedAssignmentIsRemoved(t *testing.T) {
	t.Parallel()
	h, store := newHandler()
	forged := map[string]string{"hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,0,0:;", "hami.io/vgpu-node": "node", "hami.io/bind-phase": "success"}
	pod := podOf("nvidia.com/gpu", "1")
	pod.Annotations = map[string]string{"keep": "me"}
	pod.Labels = map[string]string{"hami.io/vgpu-node": "label"}
	maps.Copy(pod.Annotations, forged)
	got, response := admit(t, h, pod)
	if diff := cmp.Diff(map[string]string{"keep": "me"}, got.Annotations); diff != "" || len(response.Warnings) != len(forged) {
		t.Errorf("annotations: %s; warnings: %q", diff, response.Warnings)
	}
	if diff := cmp.Diff(pod.Labels, got.Labels); diff != "" {
		t.Errorf("labels: %s", diff)
	}
	for _, request := range store.specs["ns/made"].Devices.Requests {
		if len(request.Exactly.Selectors) > 0 {
			t.Errorf("the forged assignment chooses: %+v", request.Exactly.Selectors)
		}
	}
	if got.Spec.ResourceClaims[0].Name != convert.ClaimName {
		t.Errorf("the pod is not converted: %+v", got.Spec.ResourceClaims)
	}
}
