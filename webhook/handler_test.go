// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/convert"
)

// stock is a fixed inventory: classes of ours by name.
type stock struct {
	gpus    []convert.GPU
	classes []string
}

func (s stock) GPUs() []convert.GPU { return s.gpus }

func (s stock) Ours(_ context.Context, class string, _ []resourceapi.DeviceSelector) bool {
	return slices.Contains(s.classes, class)
}

func (s stock) OursByResource(_ context.Context, name string) bool { return name == "example.com/ours" }

// templateStore remembers specs by namespace and name.
type templateStore struct {
	specs map[string]*resourceapi.ResourceClaimSpec
	err   error
}

func (s *templateStore) Ensure(_ context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) (string, error) {
	if s.err != nil {
		return "", s.err
	}
	s.specs[namespace+"/made"] = spec
	return "made", nil
}

// newHandler knows class gpu.topodra.dev, claim "ours", template "theirs" and an allocated claim "held" in namespace ns.
func newHandler() (*Handler, *templateStore) {
	claim := func(name, class string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: claimSpec(class)}
	}
	held := claim("held", "other")
	held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: api.DriverName}}}}
	alternatives := claim("alternatives", "other")
	alternatives.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{FirstAvailable: []resourceapi.DeviceSubRequest{{DeviceClassName: "other"}, {DeviceClassName: api.DeviceClassGPU}}}
	template := func(name, class string) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(class)}}
	}
	store := &templateStore{specs: map[string]*resourceapi.ResourceClaimSpec{}}
	return &Handler{
		Config: DefaultConfig(), Templates: store,
		Client:    fake.NewClientset(claim("ours", api.DeviceClassGPU), claim("theirs", "other"), held, alternatives, template("ours", api.DeviceClassGPU), template("theirs", "other"), template("made", api.DeviceClassGPU)),
		Inventory: stock{classes: []string{api.DeviceClassGPU}, gpus: []convert.GPU{{UUID: "GPU-1", ProductName: "V100", MemoryBytes: 32 << 30}}},
	}, store
}

func claimSpec(class string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}}}
}

// podOf makes a pod for the default scheduler whose container has the limits.
func podOf(limits ...string) *corev1.Pod {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers:    []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Limits: list, Requests: maps.Clone(list)}}},
		},
	}
}

// request asks for a pod; raw replaces its JSON.
func request(t *testing.T, pod *corev1.Pod, dryRun bool) admission.Request {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns", Object: runtime.RawExtension{Raw: raw}, DryRun: &dryRun}}
}

// admit returns the pod after the answer, which must allow it.
func admit(t *testing.T, h *Handler, pod *corev1.Pod) (*corev1.Pod, admission.Response) {
	t.Helper()
	req := request(t, pod, false)
	response := h.Handle(t.Context(), req)
	if !response.Allowed {
		t.Fatalf("refused: %+v", response.Result)
	}
	return patched(t, req.Object.Raw, &response), response
}

func patched(t *testing.T, raw []byte, response *admission.Response) *corev1.Pod {
	t.Helper()
	operations, err := json.Marshal(response.Patches)
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Patches) > 0 {
		patch, err := jsonpatch.DecodePatch(operations)
		if err != nil {
			t.Fatal(err)
		}
		if raw, err = patch.Apply(raw); err != nil {
			t.Fatalf("applying %s: %v", operations, err)
		}
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// refuse returns why a pod is refused.
func refuse(t *testing.T, h *Handler, pod *corev1.Pod) string {
	t.Helper()
	response := h.Handle(t.Context(), request(t, pod, false))
	if response.Allowed {
		t.Fatalf("allowed: %+v", response)
	}
	return response.Result.Message
}

func TestConvert(t *testing.T) {
	t.Parallel()
	h, store := newHandler()
	var outcomes []Outcome
	h.Count = func(outcome Outcome) { outcomes = append(outcomes, outcome) }
	pod := podOf("nvidia.com/gpu", "2", "nvidia.com/gpumem", "8000", "cpu", "1")
	got, _ := admit(t, h, pod)
	want := podOf("cpu", "1")
	want.Spec.SchedulerName = api.SchedulerName
	want.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: convert.ClaimName, ResourceClaimTemplateName: new("made")}}
	want.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: convert.ClaimName, Request: "gpu-0"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	request := store.specs["ns/made"].Devices.Requests[0]
	memory := request.Exactly.Capacity.Requests[api.CapacityMemory]
	if request.Exactly.Count != 2 || memory.String() != "8000Mi" {
		t.Errorf("the template has %+v", request)
	}
	again, response := admit(t, h, got)
	if len(response.Patches) > 0 || !cmp.Equal(got, again) {
		t.Errorf("the second invocation changes the pod: %v", response.Patches)
	}
	if diff := cmp.Diff([]Outcome{OutcomeConverted, OutcomeUnchanged}, outcomes); diff != "" {
		t.Error(diff)
	}
}

// TestUnknownFields keeps what a newer API server has put into the pod.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	h, _ := newHandler()
	req := request(t, podOf("nvidia.com/gpu", "1"), false)
	req.Object.Raw = []byte(strings.Replace(string(req.Object.Raw), `"spec":{`, `"spec":{"fieldOfTomorrow":{"a":1},`, 1))
	response := h.Handle(t.Context(), req)
	for _, operation := range response.Patches {
		if strings.Contains(operation.Path, "fieldOfTomorrow") {
			t.Errorf("it is touched: %v", operation)
		}
	}
	if patched(t, req.Object.Raw, &response).Spec.ResourceClaims == nil {
		t.Error("the pod is not converted")
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	h, store := newHandler()
	store.err = errors.New("somebody writes")
	req := request(t, podOf("nvidia.com/gpu", "1"), true)
	response := h.Handle(t.Context(), req)
	pod := patched(t, req.Object.Raw, &response)
	if !response.Allowed || !strings.HasPrefix(*pod.Spec.ResourceClaims[0].ResourceClaimTemplateName, "topodra-") {
		t.Errorf("got %+v, %+v", response, pod.Spec.ResourceClaims)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	change := func(f func(*corev1.Pod)) *corev1.Pod {
		pod := podOf("nvidia.com/gpu", "1")
		f(pod)
		return pod
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{podOf("nvidia.com/gpu", "1", "nvidia.com/gpucores", "101", "nvidia.com/priority", "7"), `spec.containers[0].resources.limits[nvidia.com/gpucores]: Invalid value: "101": must be a whole number from 0 to 100; spec.containers[0].resources.limits[nvidia.com/priority]`},
		{change(func(p *corev1.Pod) { p.Spec.NodeName = "node" }), "spec.nodeName: Forbidden: a pod that names its node passes the scheduler"},
		{change(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }), `spec.schedulerName: Unsupported value: "volcano": supported values: "topodra-scheduler"`},
		{change(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}), "spec.containers[0].securityContext.privileged: Forbidden: a privileged container sees every GPU"},
		{change(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "setup", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
		}), "spec.initContainers[0].securityContext.privileged: Forbidden"},
		{change(func(p *corev1.Pod) { p.Annotations = map[string]string{"nvidia.com/vgpu-mode": "mps"} }), "metadata.annotations[nvidia.com/vgpu-mode]"},
	} {
		h, store := newHandler()
		if got := refuse(t, h, c.pod); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if len(store.specs) > 0 {
			t.Errorf("%q has left a template", c.want)
		}
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	withClaim := func(name, template, scheduler string) *corev1.Pod {
		pod := podOf()
		claim := corev1.PodResourceClaim{Name: "x", ResourceClaimName: &name}
		if template != "" {
			claim = corev1.PodResourceClaim{Name: "x", ResourceClaimTemplateName: &template}
		}
		pod.Spec.ResourceClaims, pod.Spec.SchedulerName = []corev1.PodResourceClaim{{Name: "none"}, claim}, scheduler
		return pod
	}
	withResource := func(name, amount, scheduler string) *corev1.Pod {
		pod := podOf(name, amount)
		pod.Spec.SchedulerName = scheduler
		return pod
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		foreign ForeignScheduler
		want    string // schedulerName, or part of the refusal
		warning string
	}{
		"claim":                             {withClaim("ours", "", "default-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"claim, no scheduler":               {withClaim("ours", "", ""), ForeignReject, "topodra-scheduler", ""},
		"claim, classic scheduler":          {withClaim("ours", "", "hami-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"claim, our scheduler":              {withClaim("ours", "", "topodra-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"claim, foreign scheduler":          {withClaim("ours", "", "volcano"), ForeignReject, "spec.schedulerName: Unsupported value", ""},
		"claim, foreign scheduler, ignored": {withClaim("ours", "", "volcano"), ForeignIgnore, "volcano", ""},
		"template":                          {withClaim("", "ours", "default-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"alternatives":                      {withClaim("alternatives", "", "default-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"held":                              {withClaim("held", "", "default-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"others' claim":                     {withClaim("theirs", "", "default-scheduler"), ForeignReject, "default-scheduler", ""},
		"others' template":                  {withClaim("", "theirs", "volcano"), ForeignReject, "volcano", ""},
		"missing claim":                     {withClaim("missing", "", "default-scheduler"), ForeignReject, "default-scheduler", `ResourceClaim "missing" does not exist yet`},
		"missing template":                  {withClaim("", "missing", "default-scheduler"), ForeignReject, "default-scheduler", `ResourceClaimTemplate "missing" does not exist yet`},
		"missing claim, our scheduler":      {withClaim("missing", "", "topodra-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"extended resource":                 {withResource("example.com/ours", "1", "default-scheduler"), ForeignReject, "topodra-scheduler", ""},
		"extended resource of zero":         {withResource("example.com/ours", "0", "default-scheduler"), ForeignReject, "default-scheduler", ""},
		"others' extended resource":         {withResource("example.com/theirs", "1", "default-scheduler"), ForeignReject, "default-scheduler", ""},
		"classic, foreign, ignored":         {withResource("nvidia.com/gpu", "1", "volcano"), ForeignIgnore, "volcano", ""},
		"malformed, foreign, ignored":       {withResource("nvidia.com/gpu", "99", "volcano"), ForeignIgnore, "volcano", ""},
		"nothing":                           {podOf("cpu", "1"), ForeignReject, "default-scheduler", ""},
	} {
		h, store := newHandler()
		h.Config.Foreign = c.foreign
		req := request(t, c.pod, false)
		response := h.Handle(t.Context(), req)
		got := ""
		if response.Allowed {
			got = patched(t, req.Object.Raw, &response).Spec.SchedulerName
		} else {
			got = response.Result.Message
		}
		if got != c.want && (response.Allowed || !strings.Contains(got, c.want)) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if text := strings.Join(response.Warnings, "\n"); !strings.Contains(text, c.warning) || (c.warning == "") != (text == "") {
			t.Errorf("%s: warnings are %q, want %q", name, response.Warnings, c.warning)
		}
		if len(store.specs) > 0 || response.Allowed && got == c.pod.Spec.SchedulerName && len(response.Patches) > 0 {
			t.Errorf("%s: it was changed: %v", name, response.Patches)
		}
	}
}

func TestLeftAlone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Pod, *Config){
		"our label":     func(p *corev1.Pod, _ *Config) { p.Labels = map[string]string{LabelIgnore: "ignore"} },
		"their label":   func(p *corev1.Pod, _ *Config) { p.Labels = map[string]string{LabelClassicIgnore: "ignore"} },
		"mirror pod":    func(p *corev1.Pod, _ *Config) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
		"no conversion": func(_ *corev1.Pod, c *Config) { c.Convert = false },
	} {
		h, store := newHandler()
		pod := podOf("nvidia.com/gpu", "1")
		change(pod, &h.Config)
		got, response := admit(t, h, pod)
		if len(response.Patches) > 0 || !cmp.Equal(pod, got) || len(store.specs) > 0 {
			t.Errorf("%s: it was changed: %v", name, response.Patches)
		}
	}
}

func TestOurFaultIsNotThePods(t *testing.T) {
	t.Parallel()
	h, store := newHandler()
	store.err = errors.New("no answer")
	response := h.Handle(t.Context(), request(t, podOf("nvidia.com/gpu", "1"), false))
	if response.Allowed || response.Result.Code != 500 || !strings.Contains(response.Result.Message, "no answer") {
		t.Errorf("got %+v", response.Result)
	}
	if response := h.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte("{")}}}); response.Allowed || response.Result.Code != 400 {
		t.Errorf("got %+v", response.Result)
	}
}

func TestW10_StragglersAreTold(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	named := func(pod *corev1.Pod, name string, age time.Duration) *corev1.Pod {
		pod.Namespace, pod.Name, pod.UID = "ns", name, types.UID(name)
		pod.CreationTimestamp = metav1.NewTime(now.Add(-age))
		pod.Status.Phase = corev1.PodPending
		return pod
	}
	ignored, foreign, bound := podOf("nvidia.com/gpu", "1"), podOf("nvidia.com/gpu", "1"), podOf("nvidia.com/gpu", "1")
	ignored.Labels, foreign.Spec.SchedulerName, bound.Spec.NodeName = map[string]string{LabelIgnore: "ignore"}, "volcano", "node"
	recorder := events.NewFakeRecorder(10)
	config := DefaultConfig()
	s := Straggler{Config: &config, Events: recorder, Client: fake.NewClientset(
		named(podOf("nvidia.com/gpu", "1"), "missed", time.Minute), named(podOf("nvidia.com/gpu", "1"), "young", time.Second), named(podOf("cpu", "1"), "plain", time.Minute),
		named(ignored, "ignored", time.Minute), named(foreign, "foreign", time.Minute), named(bound, "bound", time.Minute),
	)}
	for range 2 { // it tells once
		if err := s.Look(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	close(recorder.Events)
	var got []string
	for event := range recorder.Events {
		got = append(got, event)
	}
	if len(got) != 1 || !strings.Contains(got[0], "Warning NotConverted This pod asks for nvidia.com/gpu") {
		t.Errorf("got %q", got)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	if errs := c.Validate(); len(errs) > 0 {
		t.Errorf("the defaults are invalid: %v", errs)
	}
	c.SchedulerName, c.Foreign, c.Privileged, c.ClassGPU, c.MemorySizesMiB = "", "Maybe", "Perhaps", "a b", make([]int64, 9)
	c.Vocabulary.DefaultGPUs = 0
	var fields []string
	for _, err := range c.Validate() {
		if !slices.Contains(fields, err.Field) {
			fields = append(fields, err.Field)
		}
	}
	for _, want := range []string{"classGPU", "defaultGPUs", "foreignScheduler", "memorySizesMiB", "memorySizesMiB[8]", "privileged", "schedulerName"} {
		if !slices.Contains(fields, want) {
			t.Errorf("nothing about %q in %q", want, fields)
		}
	}
}
