// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the tests of the whole way of a claim on a real node: our scheduler allocates it, the kubelet asks our
// driver to prepare it, containerd applies what the driver wrote, and the tests look from inside the containers. GPUs are
// those of a recorded machine, and HAMi-core's library is a test double; everything else is real.
//
// The tests need root and the build tag "e2e": run `make e2e`. They share one node (test/node) and one control plane
// (test/cluster), which are started once; each test has a namespace of its own, and checks at its end that nothing of its
// pods is left on the node. Two environment variables help to find out what went wrong:
//
//	TOPODRA_E2E_LOGS      directory that keeps the logs of all processes
//	TOPODRA_E2E_SOAK_PODS number of pods of the soak test, 200 by default
//
// # What is tested where
//
//	the harness itself, without our driver    TestHarness
//	env and mounts, whole GPUs, distinct      TestWholeGPUs, TestFillAndRefill, TestNoClaim
//	two pods share a GPU                      TestTwoPodsShareOneGPU
//	several GPUs, mixed, in PCI order         TestSharesOfSeveralGPUs
//	two claims in one container               TestTwoClaimsInOneContainer, TestTwoSharesOfOneGPUInOneContainer
//	one claim in several containers           TestRequestsForContainers, TestWholeGPUSharedByContainers, TestRefusedShares
//	one claim in several pods                 TestWholeGPUSharedByContainers, TestShareOfTwoPods
//	init and sidecar containers               TestShareOfInitAndAppContainer, TestSidecarWithOwnRequest, TestRefusedShares
//	claims from templates, status, settings   TestClaimTemplate, TestClaimStatus, TestSharingConfig
//	what a tenant tries                       TestTenantCannotLift
//	a container that restarts                 TestContainerRestart
//	without NRI                               TestWithoutNRI
//	without anything to limit with            TestNoLibrary
//	pod deleted                               every test, and TestDriverKilled, TestKubeletRestart while somebody is away
//	driver away when a container is created   TestDriverAwayAtCreation, TestGuardMount, TestOtherProcessIDs
//	driver killed                             TestDriverKilled; between every two steps: TestDriverKilledBetweenSteps
//	kubelet and containerd restarted          TestKubeletRestart, TestContainerdRestart, TestForgottenByKubelet
//	rolling update of the driver              TestRollingUpdate
//	reboot                                    TestReboot
//	slices deleted by hand                    TestSlicesDeletedByHand
//	API server away for a minute              TestAPIServerAway
//	disk full on the state directory          TestDiskFull
//	checkpoint damaged, orphans on disk       TestCorruptCheckpoint, TestOrphans
//	the double shows preload, limits, region  every test with a share; blocks on disk and records: TestTwoPodsShareOneGPU
//	200 pods, restarts, capacity, leftovers   TestSoak
//	nothing left behind on the machine        TestMain; after a panic, Ctrl-C or kill -9: TestCrash in test/node
//
// # Invariants
//
// What a container should see is computed from the API alone, by code of its own (expect_test.go), which shares nothing with
// the driver but names. No test is skipped; none depends on the order of tests.
//
// # Allowed imports
//
// Tests may import everything.
package e2e
