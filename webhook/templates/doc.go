// SPDX-License-Identifier: Apache-2.0

// Package templates keeps the ResourceClaimTemplates of converted pods: one per namespace and distinct demand.
//
// [Store.Ensure] makes a template before a pod that uses it is admitted; Kubernetes' own controller makes the pod's claim from
// it and removes the claim with the pod. [Collector] removes templates that nobody uses.
//
// # Invariants
//
//   - A template is named by its content. Two writers of the same demand write the same object, and the second one finds it.
//   - A template is ours if it has our label, a name of ours, and the content that the name stands for. Others are neither
//     used nor removed, whatever they are called or labelled.
//   - No pod loses its template. Each template says when it was last handed out. Ensure writes that time anew when half of the grace
//     period has passed, so a pod has at least the other half to be stored. The collector removes a template only when the
//     whole period has passed, when no pod that is still to end names it, and with the version that it looked at as a
//     precondition: a template that has been handed out in between is not removed. So the grace period must be longer than
//     twice the time that the admission of a pod takes after this webhook; a minute is ample.
//   - What a rejected pod has left is removed like any template without users.
//
// # Concurrency
//
// Any number of stores may work at the same time, in one process or in several. Of collectors one is enough, more do no harm.
//
// # Allowed imports
//
// The standard library, k8s.io/api, k8s.io/apimachinery, k8s.io/client-go, klog.
package templates
