// SPDX-License-Identifier: Apache-2.0

// Package report writes the results of simulations: CSV for programs, Markdown tables
// for docs/results.md, an HTML page with plots that needs nothing else, and the plots as
// SVG files.
//
// The text depends on the results alone, apart from times of decisions, which have
// files and tables of their own.
//
// Concurrency: functions keep no state. Allowed imports: the standard library, sim/study, sim/policy.
package report
