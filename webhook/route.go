// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
)

// foreign says whether the pod names a scheduler that is neither ours nor one that is replaced.
func (h *Handler) foreign(pod *corev1.Pod) bool {
	name := pod.Spec.SchedulerName
	return name != "" && name != h.Config.SchedulerName && !slices.Contains(h.Config.ReplacedSchedulers, name)
}

// leftAlone says whether a pod with a foreign scheduler is not touched.
func (h *Handler) leftAlone(pod *corev1.Pod) bool {
	return h.Config.Foreign == ForeignIgnore && h.foreign(pod)
}

// route sends a pod that wants our devices to our scheduler.
func (h *Handler) route(pod *corev1.Pod) (changed bool, errs field.ErrorList) {
	if h.foreign(pod) {
		return false, field.ErrorList{field.NotSupported(field.NewPath("spec", "schedulerName"), pod.Spec.SchedulerName, []string{h.Config.SchedulerName})}
	}
	changed = pod.Spec.SchedulerName != h.Config.SchedulerName
	pod.Spec.SchedulerName = h.Config.SchedulerName
	return changed, nil
}

// wantsOurs says whether the pod's claims or extended resources can be met by our devices.
func (h *Handler) wantsOurs(ctx context.Context, namespace string, pod *corev1.Pod) (bool, []string, error) {
	var warnings []string
	for i := range pod.Spec.ResourceClaims {
		ours, warning, err := h.claimIsOurs(ctx, namespace, &pod.Spec.ResourceClaims[i])
		if err != nil || ours {
			return ours, warnings, err
		}
		if warning != "" && !h.foreign(pod) && pod.Spec.SchedulerName != h.Config.SchedulerName {
			warnings = append(warnings, warning)
		}
	}
	return slices.ContainsFunc(h.extendedResources(pod), func(name string) bool { return h.Inventory.OursByResource(ctx, name) }), warnings, nil
}

// extendedResources are those that the pod asks for and that are not about to be converted, sorted.
func (h *Handler) extendedResources(pod *corev1.Pod) []string {
	names := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, amounts := range []corev1.ResourceList{list[i].Resources.Limits, list[i].Resources.Requests} {
				for name, amount := range amounts {
					if strings.Contains(string(name), "/") && !amount.IsZero() && !h.classicName(name) {
						names[string(name)] = true
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// classicName says whether a resource is about to be converted.
func (h *Handler) classicName(name corev1.ResourceName) bool {
	return h.Config.Convert && h.Config.Vocabulary.Resources.Has(name)
}

// claimIsOurs looks at one claim of a pod. A claim or template that does not exist yet comes with a warning.
func (h *Handler) claimIsOurs(ctx context.Context, namespace string, claim *corev1.PodResourceClaim) (ours bool, warning string, err error) {
	missing := func(kind, name string) string {
		return fmt.Sprintf("%s %q does not exist yet, so nobody knows which scheduler it needs: if it asks for devices of %s, set spec.schedulerName to %s, or create the pod after it",
			kind, name, api.DriverName, h.Config.SchedulerName)
	}
	switch {
	case claim.ResourceClaimName != nil:
		found, err := h.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, *claim.ResourceClaimName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, missing("ResourceClaim", *claim.ResourceClaimName), nil
		}
		if err != nil {
			return false, "", fmt.Errorf("reading ResourceClaim %q: %w", *claim.ResourceClaimName, err)
		}
		return h.specIsOurs(ctx, &found.Spec) || holdsOurs(found), "", nil
	case claim.ResourceClaimTemplateName != nil:
		found, err := h.Client.ResourceV1().ResourceClaimTemplates(namespace).Get(ctx, *claim.ResourceClaimTemplateName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, missing("ResourceClaimTemplate", *claim.ResourceClaimTemplateName), nil
		}
		if err != nil {
			return false, "", fmt.Errorf("reading ResourceClaimTemplate %q: %w", *claim.ResourceClaimTemplateName, err)
		}
		return h.specIsOurs(ctx, &found.Spec.Spec), "", nil
	}
	return false, "", nil
}

// holdsOurs says whether a claim has got devices of ours already.
func holdsOurs(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(result resourceapi.DeviceRequestAllocationResult) bool { return result.Driver == api.DriverName })
}

// specIsOurs says whether any request, or alternative of one, can be met by our devices.
func (h *Handler) specIsOurs(ctx context.Context, spec *resourceapi.ResourceClaimSpec) bool {
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if request.Exactly != nil && h.Inventory.Ours(ctx, request.Exactly.DeviceClassName, request.Exactly.Selectors) {
			return true
		}
		for _, sub := range request.FirstAvailable {
			if h.Inventory.Ours(ctx, sub.DeviceClassName, sub.Selectors) {
				return true
			}
		}
	}
	return false
}
