// SPDX-License-Identifier: Apache-2.0

// Package gpu looks at the real GPUs of this machine as the driver does, without
// Kubernetes: discovery by NVML and sysfs, what would be published, and what
// containers would get. It writes down what it saw as a recording that tests on
// other machines can use, and checks that the recording says the same again.
//
// run.sh is the prepared script around it; the README says when to run it. All
// that needs hardware comes through two interfaces, so that the rest is tested
// everywhere.
//
// Concurrency: Run is called once. Allowed imports: the standard library, driver,
// topology, k8s.io/apimachinery; no Kubernetes code and no NVML of its own.
package gpu
