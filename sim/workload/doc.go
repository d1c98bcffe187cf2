// SPDX-License-Identifier: Apache-2.0

// Package workload makes the jobs of a simulation: generated ones with stated
// distributions ([Mix]), those of a CSV file ([ReadCSV]), and the openb lists of pods of a
// production cluster, which are part of the package (see openb/README.md).
//
// Everything follows from its input and a seed. Concurrency: functions keep no state. Allowed imports: the standard
// library and sim/model.
package workload
