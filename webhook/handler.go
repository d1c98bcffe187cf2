// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/topodra/topodra/webhook/classic"
	"github.com/topodra/topodra/webhook/convert"
	"github.com/topodra/topodra/webhook/templates"
)

// Path is where the handler is served.
const Path = "/mutate-pods"

// Templates makes templates.
type Templates interface {
	// Ensure returns the name of a template for the spec in the namespace, which it makes if there is none.
	Ensure(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) (string, error)
}

// Inventory knows the cluster.
type Inventory interface {
	// GPUs are those that are published.
	GPUs() []convert.GPU
	// Ours says whether a request of the class with these selectors can be met by one of our devices.
	Ours(ctx context.Context, className string, selectors []resourceapi.DeviceSelector) bool
	// OursByResource says whether an extended resource stands for a class of ours.
	OursByResource(ctx context.Context, resource string) bool
}

// Handler answers admission requests for new pods.
type Handler struct {
	Config    Config
	Client    kubernetes.Interface
	Templates Templates
	Inventory Inventory
	// Count is called with the outcome of each request; nil is nobody.
	Count func(outcome Outcome)
}

// Outcome is what became of a pod.
type Outcome string

// The outcomes.
const (
	// OutcomeUnchanged pods are none of our business.
	OutcomeUnchanged Outcome = "unchanged"
	// OutcomeConverted pods have got a claim.
	OutcomeConverted Outcome = "converted"
	// OutcomeRouted pods have got our scheduler.
	OutcomeRouted Outcome = "routed"
	// OutcomeRejected pods were refused because of what they say.
	OutcomeRejected Outcome = "rejected"
	// OutcomeFailed requests could not be answered.
	OutcomeFailed Outcome = "failed"
)

// Handle implements admission.Handler.
func (h *Handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	response, outcome := h.answer(ctx, &req)
	if h.Count != nil {
		h.Count(outcome)
	}
	return response
}

// answer decides about one request.
func (h *Handler) answer(ctx context.Context, req *admission.Request) (admission.Response, Outcome) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("reading the pod: %w", err)), OutcomeFailed
	}
	if h.ignored(pod) {
		return admission.Allowed(""), OutcomeUnchanged
	}
	// What a newer API server knows and this program does not is in neither text, and therefore not in the patch.
	before, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("writing the pod: %w", err)), OutcomeFailed
	}
	dryRun := req.DryRun != nil && *req.DryRun
	outcome, warnings, errs, err := h.mutate(ctx, req.Namespace, dryRun, pod)
	switch {
	case err != nil:
		return admission.Errored(http.StatusInternalServerError, err).WithWarnings(warnings...), OutcomeFailed
	case len(errs) > 0:
		return invalid(errs).WithWarnings(warnings...), OutcomeRejected
	case outcome == OutcomeUnchanged:
		return admission.Allowed("").WithWarnings(warnings...), outcome
	}
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("writing the pod: %w", err)), OutcomeFailed
	}
	return admission.PatchResponseFromRaw(before, changed).WithWarnings(warnings...), outcome
}

// ignored says whether the pod wants to be left alone. The API server makes mirror pods from what runs already.
func (h *Handler) ignored(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || pod.Labels[LabelIgnore] == labelIgnoreValue || pod.Labels[LabelClassicIgnore] == labelIgnoreValue
}

// invalid refuses a pod with all reasons.
func invalid(errs field.ErrorList) admission.Response {
	texts := make([]string, len(errs))
	causes := make([]metav1.StatusCause, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
		causes[i] = metav1.StatusCause{Type: metav1.CauseType(err.Type), Message: err.ErrorBody(), Field: err.Field}
	}
	response := admission.Denied("")
	response.Result = &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: strings.Join(texts, "; "), Details: &metav1.StatusDetails{Kind: "Pod", Causes: causes},
	}
	return response
}

// mutate changes the pod if it has to be. Errors in the list are the pod's, err is ours.
func (h *Handler) mutate(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod) (outcome Outcome, warnings []string, errs field.ErrorList, err error) {
	outcome = OutcomeUnchanged
	var demand *classic.Demand
	if h.Config.Convert {
		demand, warnings, errs = h.Config.Vocabulary.Parse(pod)
	}
	if len(errs) > 0 {
		if h.leftAlone(pod) {
			return outcome, nil, nil, nil
		}
		return outcome, warnings, errs, nil
	}
	ours, more, err := h.wantsOurs(ctx, namespace, pod)
	warnings = append(warnings, more...)
	if err != nil {
		return outcome, warnings, nil, err
	}
	if demand != nil || ours {
		if h.leftAlone(pod) {
			return outcome, warnings, nil, nil
		}
		changed, errs := h.route(pod)
		if demand != nil {
			errs = append(errs, h.forbidden(pod)...)
		}
		if len(errs) > 0 {
			return outcome, warnings, errs, nil
		}
		if changed {
			outcome = OutcomeRouted
		}
	}
	if demand != nil {
		more, errs, err := h.convert(ctx, namespace, dryRun, pod, demand)
		return OutcomeConverted, append(warnings, more...), errs, err
	}
	if h.Config.Convert && h.Config.Vocabulary.Strip(pod) { // amounts of no GPUs
		outcome = OutcomeConverted
	}
	return outcome, warnings, nil, nil
}

// convert gives the pod a claim for its demand.
func (h *Handler) convert(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod, demand *classic.Demand) (warnings []string, errs field.ErrorList, err error) {
	options := convert.Options{
		Resources: h.Config.Vocabulary.Resources, ClassGPU: h.Config.ClassGPU, ClassMIG: h.Config.ClassMIG,
		MemorySizesMiB: h.Config.MemorySizesMiB, ShareInitContainers: h.Config.ShareInitContainers,
	}
	if slices.ContainsFunc(demand.Needs, func(n classic.Need) bool { return n.PerGPU.MemoryPercent > 0 }) {
		options.GPUs = h.Inventory.GPUs()
	}
	plan, errs := convert.New(demand, options)
	if len(errs) > 0 {
		return nil, errs, nil
	}
	var template string
	if dryRun {
		template, err = templates.Name(&plan.Spec)
	} else {
		template, err = h.Templates.Ensure(ctx, namespace, &plan.Spec)
	}
	if err != nil {
		return plan.Warnings, nil, err
	}
	h.Config.Vocabulary.Strip(pod)
	plan.Apply(pod, template)
	return append(plan.Warnings, dropHandOver(pod)...), nil, nil
}

// forbidden returns what a pod with classic requests may not have.
func (h *Handler) forbidden(pod *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if pod.Spec.NodeName != "" {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"), "a pod that names its node passes the scheduler, which hands out the GPUs; use nodeSelector or affinity"))
	}
	if h.Config.Privileged == PrivilegedAllow {
		return errs
	}
	for name, list := range map[string][]corev1.Container{"initContainers": pod.Spec.InitContainers, "containers": pod.Spec.Containers} {
		for i := range list {
			if security := list[i].SecurityContext; security != nil && security.Privileged != nil && *security.Privileged {
				errs = append(errs, field.Forbidden(spec.Child(name).Index(i).Child("securityContext", "privileged"),
					"a privileged container sees every GPU of its node, whatever its pod has asked for"))
			}
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// handOver are annotations by which the parts of the classic software told each other which GPUs a pod has.
var handOver = []string{
	"hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated", "hami.io/vgpu-node", "hami.io/vgpu-time",
	"hami.io/bind-time", "hami.io/bind-phase", "hami.io/vgpu-mig-allocations",
}

// dropHandOver removes them from a pod: it was copied from a running one, or somebody wants to be given GPUs by writing them
// down. They mean nothing here, but a classic device plugin on the node might believe them.
func dropHandOver(pod *corev1.Pod) []string {
	var warnings []string
	for _, key := range handOver {
		if _, found := pod.Annotations[key]; found {
			delete(pod.Annotations, key)
			warnings = append(warnings, fmt.Sprintf("annotation %q was removed: GPUs are assigned in claims only", key))
		}
	}
	return warnings
}
