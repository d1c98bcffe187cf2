// SPDX-License-Identifier: Apache-2.0

// Package webhook admits pods: it turns classic GPU requests into claims, and sends pods with claims for our devices to our
// scheduler.
//
// The work is done in packages below: classic reads, convert plans, templates and certs keep objects, inventory knows the
// cluster. Here they are joined: [Handler] answers for one pod, [Straggler] tells of pods that came past it.
//
// # Invariants
//
//   - Nothing is written before everything about the pod has been decided, and nothing at all for a dry run.
//   - What the webhook did to a pod once, it does not do again: a converted pod has nothing left to convert.
//   - No annotation or label of a pod is trusted to say what was done before. What a pod holds is in its claims.
//   - There is no handler for the deletion of pods: Kubernetes removes the claims that it has made.
//
// # Concurrency
//
// A Handler may be used by several goroutines.
//
// # Allowed imports
//
// Packages below webhook, package api, Kubernetes' client libraries, sigs.k8s.io/controller-runtime/pkg/webhook/admission.
package webhook
