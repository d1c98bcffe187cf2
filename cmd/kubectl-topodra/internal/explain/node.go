// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// nodeProblems are what speaks against a node besides its GPUs: what a scheduler checks that needs nothing but the node, the
// pod, and the pods on the node.
func (x *explainer) nodeProblems(node *corev1.Node) []string {
	var why []string
	taint, tainted := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, x.Pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, true)
	switch {
	case node.Spec.Unschedulable:
		why = append(why, "is cordoned: kubectl uncordon "+node.Name)
	case tainted:
		why = append(why, fmt.Sprintf("has the taint %s, which the pod does not tolerate", taint.ToString()))
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(x.Pod).Match(node); err != nil {
		why = append(why, fmt.Sprintf("the pod's node affinity cannot be read: %v", err))
	} else if !match {
		why = append(why, "does not match the pod's node selector or affinity")
	}
	why = append(why, x.claimsElsewhere(node)...)
	for _, name := range x.extendedResources() {
		if q := node.Status.Allocatable[corev1.ResourceName(name)]; !q.IsZero() {
			why = append(why, fmt.Sprintf("advertises %s by a device plugin, so the pod would get those instead of claimed GPUs", name))
		}
	}
	return append(why, x.shortages(node)...)
}

// claimsElsewhere is about claims that have devices already, which bind the pod to where these are.
func (x *explainer) claimsElsewhere(node *corev1.Node) []string {
	var why []string
	for i := range x.claims {
		c := x.claims[i].Object
		if c == nil || c.Status.Allocation == nil || c.Status.Allocation.NodeSelector == nil {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(c.Status.Allocation.NodeSelector)
		if err == nil && !selector.Match(node) {
			why = append(why, fmt.Sprintf("claim %q has devices on another node", c.Name))
		}
	}
	return why
}

func (x *explainer) extendedResources() []string {
	for i := range x.claims {
		if len(x.claims[i].Resources) > 0 {
			return x.claims[i].Resources
		}
	}
	return nil
}

// shortages compares requests for CPU, memory and room for pods with what the node has left. Without the pods it says nothing.
func (x *explainer) shortages(node *corev1.Node) []string {
	if x.Pods == nil {
		return nil
	}
	used := map[corev1.ResourceName]*resource.Quantity{}
	pods := 0
	for i := range x.Pods {
		other := &x.Pods[i]
		if other.Spec.NodeName != node.Name || other.Status.Phase == corev1.PodSucceeded || other.Status.Phase == corev1.PodFailed {
			continue
		}
		pods++
		for name, q := range resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{}) {
			if used[name] == nil {
				used[name] = &resource.Quantity{}
			}
			used[name].Add(q)
		}
	}
	var why []string
	if room := node.Status.Allocatable[corev1.ResourcePods]; !room.IsZero() && room.CmpInt64(int64(pods)) <= 0 {
		why = append(why, fmt.Sprintf("is full with %d pods", pods))
	}
	wanted := resourcehelper.PodRequests(x.Pod, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		want, ok := wanted[name]
		if !ok || want.IsZero() {
			continue
		}
		left := node.Status.Allocatable[name].DeepCopy()
		if used[name] != nil {
			left.Sub(*used[name])
		}
		if want.Cmp(left) > 0 {
			why = append(why, fmt.Sprintf("has too little %s: %s of %s wanted", name, left.String(), want.String()))
		}
	}
	return slices.Clip(why)
}
