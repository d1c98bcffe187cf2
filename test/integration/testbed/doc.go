// SPDX-License-Identifier: Apache-2.0

// Package testbed is what the integration tests of the scheduler stand on: one control plane per test binary with
// simulated nodes, our driver on each of them and our scheduler, and a [Scene] per test that makes claims and pods, waits
// for what becomes of them and says exactly which GPUs they got.
//
// # Use
//
//	var bed *testbed.Bed
//
//	func TestMain(m *testing.M) { os.Exit(testbed.Run(m, &bed, testbed.Options{Nodes: …})) }
//
//	func TestQuad(t *testing.T) {
//		s := bed.Scene(t)
//		s.Place(testbed.Claim{Name: "quad", Requests: testbed.Requests(testbed.GPUs("gpus", 4))}, "cube")
//		s.WantGPUs("quad", "cube", "0-3")
//	}
//
// # Invariants
//
//   - A Scene has a namespace of its own. When its test ends, its pods and claims are gone before the next test starts,
//     and no device of the cluster is booked twice.
//   - Nothing sleeps for a fixed time. A test that creates a claim after others were released needs no pause either: the
//     scheduler sees both in the order of one watch, and looks at no pod before it knows the pod's claims.
//   - A scheduler that is stopped, at the latest by the end of the tests, has not panicked, and has never reserved other
//     devices than it had planned.
//   - When a test fails, its pods, events, claims and the end of the scheduler's log are printed.
//
// # Concurrency
//
// Scenes of one Bed may be used one after the other only.
//
// # Allowed imports
//
// The standard library, k8s.io/api, apimachinery, client-go, sigs.k8s.io/yaml, test/cluster, and of this module's own code
// nothing but names and formats: api and topology.
package testbed
