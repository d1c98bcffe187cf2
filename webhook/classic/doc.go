// SPDX-License-Identifier: Apache-2.0

// Package classic reads what pods ask for in the vocabulary that was in use before claims: extended resources such as
// nvidia.com/gpu and nvidia.com/gpumem in the resources of containers, and annotations such as nvidia.com/use-gputype.
//
// [Vocabulary.Parse] turns a pod into a [Demand]; it says nothing about how the demand is met. [Vocabulary.Strip] takes the
// resources away from the pod, so that nobody else counts them.
//
// # Invariants
//
//   - Every value has a stated answer: it is understood, or it is an error with the path of the field and what is allowed
//     there. Nothing is ignored silently: what has no counterpart becomes a warning, and so do keys that look like a
//     misspelled word of the vocabulary.
//   - Pure: the same pod gives the same demand, errors and warnings in the same order. The pod is not changed by Parse.
//   - What a demand holds has passed validation: counts and amounts are within the documented ranges, and texts consist of
//     the documented characters.
//
// # Concurrency
//
// A Vocabulary is read-only once it is in use, and may be used by several goroutines.
//
// # Allowed imports
//
// The standard library, k8s.io/api, k8s.io/apimachinery and package api.
package classic
