// SPDX-License-Identifier: Apache-2.0

// Package watch looks from outside at what containers use of their GPUs, and
// whether they keep to their limits. It asks the GPU driver which process uses how
// much, finds the process's container by its cgroup, and compares the sum with
// what the container has. No program in a container can take part in that or get
// around it. The last look is kept for metrics.
//
// It notices and tells; it does not stop anything at the moment of the
// allocation. What is done about a violation is up to the Actions.
//
// Invariants: a process that belongs to no known container, or a GPU that a
// container has no limit on, is no violation. One GPU, process or file that
// cannot be read hinders no other. A source that hangs is given up after a while;
// what was seen before then stays as it is, with its time.
//
// Concurrency: a Watcher belongs to one goroutine but for Last and Failed; Sum and
// Compare are pure. Allowed imports: the standard library,
// driver/internal/owners, klog.
package watch
