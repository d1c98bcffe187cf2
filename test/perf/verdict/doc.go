// SPDX-License-Identifier: Apache-2.0

// Package verdict reads what runs of scheduler_perf measured, compares the two
// schedulers and says which targets are met.
//
// It compares runs in pairs, the one of in-tree with the one of ours that was next to
// it in time, since a shared machine is faster at one moment than at another. A ratio is
// the median over the pairs, and its spread is from the lowest to the highest. It is pure
// but for reading files, and has no state.
package verdict
