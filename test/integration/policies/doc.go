// SPDX-License-Identifier: Apache-2.0

// Package policies tests the admission policies for sharing against a real API
// server: what each refuses, with its words, and what it lets through.
package policies
