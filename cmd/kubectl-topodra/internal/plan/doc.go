// SPDX-License-Identifier: Apache-2.0

// Package plan answers offline which GPUs of a recorded machine a job would get, and why not others.
//
// It describes the machine and the job to the planner that the scheduler uses, and puts the answer into words. What a recording
// does not say is assumed, and said in the answer: GPUs that are not free belong to other jobs entirely; free ones are
// idle, with all of their memory and cores.
//
// Invariants: bad input is an error that names the flag; the answer depends on the input alone.
// Concurrency: pure functions. Allowed imports: the topology packages except topotest, the package printable.
package plan
