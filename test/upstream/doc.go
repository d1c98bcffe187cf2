// SPDX-License-Identifier: Apache-2.0

// Package upstream runs Kubernetes' own integration tests for dynamic resource
// allocation with our scheduler plugin in place of the in-tree one.
//
// Nothing of Kubernetes is committed here: run.sh copies the suite from the
// module cache into .suite, which git ignores, rewrites three places, compiles it
// once and runs the configurations GA, default and all. See README.md.
package upstream
