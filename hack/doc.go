// SPDX-License-Identifier: Apache-2.0

// Package hack holds no code, only the tests of the scripts beside it.
package hack
