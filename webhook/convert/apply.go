// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClaimName is how a converted pod calls its claim; if the pod has a claim of that name already, a number follows.
const ClaimName = "topodra-gpus"

// Apply makes the pod use a claim from the template, in addition to whatever claims it has.
func (p *Plan) Apply(pod *corev1.Pod, template string) {
	name := freeName(pod.Spec.ResourceClaims)
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template})
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			at := slices.IndexFunc(p.Uses, func(use Use) bool { return use.Container == list[i].Name })
			if at < 0 {
				continue
			}
			for _, request := range p.Uses[at].Requests {
				list[i].Resources.Claims = append(list[i].Resources.Claims, corev1.ResourceClaim{Name: name, Request: request})
			}
		}
	}
}

// freeName returns the first name that no claim has.
func freeName(claims []corev1.PodResourceClaim) string {
	name := ClaimName
	for n := 2; slices.ContainsFunc(claims, func(c corev1.PodResourceClaim) bool { return c.Name == name }); n++ {
		name = fmt.Sprintf("%s-%d", ClaimName, n)
	}
	return name
}
