// SPDX-License-Identifier: Apache-2.0

// Package ask says what a pod asks for: the claims that it names, those made of templates, and the one that stands for its
// extended resources, with requests, alternatives, constraints and topology policies resolved.
//
// Invariants: pure; what cannot be resolved is a Problem in words for the pod's owner, never an error or a panic. The policy of
// claims that name none is Preferred, the scheduler's default, which its arguments can change: the API server does not know.
//
// Concurrency: results are immutable. Allowed imports: api, topology/placement, k8s.io/api.
package ask
