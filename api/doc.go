// SPDX-License-Identifier: Apache-2.0

// Package api holds everything that the parts of TopoDRA agree on by name: the
// driver, its device classes, the attributes and capacities of its devices,
// the configuration that travels with a claim, the annotation that does the
// same for claims on other drivers, and the arguments of the scheduler
// plugins.
//
// Decoding is strict everywhere: an unknown field, a duplicate field, a wrong
// kind or a value out of range is an error that names the field. A user who
// mistypes "Required" must not get a claim without a guarantee. The order is
// always decode, default, validate; the exported Decode functions do all three.
//
// Invariants: decoded values are complete (every optional field that has a
// default is set) and valid. Nothing here keeps state, so all functions are
// safe for concurrent use.
//
// Allowed imports: the standard library, k8s.io/api and k8s.io/apimachinery.
package api
