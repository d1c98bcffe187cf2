// SPDX-License-Identifier: Apache-2.0

// Package doctor looks once at a cluster for what keeps TopoDRA from working or from being safe, and says for each finding what
// is wrong, why it matters and the command that mends it.
//
// [Gather] takes a Snapshot: lists, the server's version and clock, and the answers to dry runs that show which fields the API
// server drops. It writes nothing. Every check is a pure function of the snapshot; one whose lists could not be read is reported
// as not checked, with the reason.
//
// Concurrency: functions without state. Allowed imports: api, internal/livestate, client-go, k8s.io/api, the packages gather and
// printable.
package doctor
