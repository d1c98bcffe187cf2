// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// Two requests of two GPUs are one job of four: together they get a quad.
func TestSeveralRequestsInAClaim(t *testing.T) {
	s := bed.Scene(t)
	// GPU 1 breaks the first quad, so that the lowest free GPUs are not the best.
	s.Occupy(cube, 1)
	s.Place(testbed.Claim{Name: "job", Requests: testbed.Requests(
		testbed.GPUs("workers", 2),
		testbed.GPUs("others", 2),
	)}, cube)
	wantBest(t, cube, "1", "4-7")
	s.WantGPUs("job", cube, "4-7")
	a := s.Allocation("job")
	if workers, others := a.ByRequest["workers"], a.ByRequest["others"]; workers.Count() != 2 || others.Count() != 2 {
		t.Errorf("requests got %s, want two GPUs each", a)
	}
}

// Claims of one pod are placed together. With 2 and 5 busy, the only ring of NVLinks through four GPUs is 0-3-7-4-0.
func TestSeveralClaimsInAPod(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 2, 5)
	s.CreateClaim(testbed.Claim{Name: "first", Requests: testbed.Requests(testbed.GPUs("gpus", 3))})
	s.CreateClaim(testbed.Claim{Name: "second", Requests: testbed.Requests(testbed.GPUs("gpus", 1))})
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{cube}, Claims: []string{"first", "second"}})
	s.WaitBound("job")
	wantBest(t, cube, "2,5", "0,3,4,7")
	first, second := s.Allocation("first").GPUs, s.Allocation("second").GPUs
	if first.Count() != 3 || second.Count() != 1 || (first|second).String() != "{0,3,4,7}" {
		t.Errorf("claims got %s and %s, want three and one of {0,3,4,7}", first, second)
	}
}

// Several GPUs with shares are distinct GPUs, on the best links, and pack onto GPUs that are shared already as long as there
// is room.
func TestSeveralGPUsWithShares(t *testing.T) {
	s := bed.Scene(t)
	share := func(name string, count, cores int64) testbed.Claim {
		return testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpus", count, testbed.Share("20Gi", cores)))}
	}
	s.Occupy(pairs, 0) // so that the lowest two GPUs are no pair
	s.Place(share("first", 2, 30), pairs)
	s.WantGPUs("first", pairs, "2,3")
	s.Place(share("second", 2, 30), pairs)
	s.WantGPUs("second", pairs, "2,3")
	// 30 + 30 + 50 percent do not fit: the next pair on this socket is 0-1, which is broken, so the other socket has the next.
	third := s.Place(share("third", 2, 50), pairs)
	if got := third.GPUs.String(); got != "{4,5}" && got != "{6,7}" {
		t.Errorf("third claim got %s, want an untouched NVLink pair", got)
	}
	// A single share costs later jobs nothing where GPUs are touched; of those, the fullest with room leaves the smallest rest.
	s.Place(share("single", 1, 40), pairs)
	s.WantGPUs("single", pairs, "2")
}

// Eight GPUs with shares need eight GPUs with room: seven are not enough, however large the room.
func TestSharesNeedDistinctGPUs(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(pairs, 5)
	eight := testbed.Claim{Name: "eight", Requests: testbed.Requests(testbed.GPUs("gpus", 8, testbed.Share("1Gi", 1)))}
	s.Submit(eight, pairs)
	s.WaitPending("eight", "0/")
	s.Vacate(pairs, 5)
	s.WaitBound("eight")
	s.WantGPUs("eight", pairs, "0-7")
}

// Requests that could share one GPU stay together on one, and a constraint separates them onto a pair.
func TestSharesOfTwoRequests(t *testing.T) {
	s := bed.Scene(t)
	requests := testbed.Requests(
		testbed.GPUs("left", 1, testbed.Share("10Gi", 20)),
		testbed.GPUs("right", 1, testbed.Share("10Gi", 20)),
	)
	s.Occupy(weave, 0, 1) // 2 and 3 are broken now
	s.Place(testbed.Claim{Name: "apart", Requests: requests, Constraints: []resourceapi.DeviceConstraint{
		testbed.Distinct(api.DriverName + "/uuid"),
	}}, weave)
	a := s.Allocation("apart")
	if gpus := a.GPUs.String(); gpus != "{4,5}" && gpus != "{6,7}" || a.ByRequest["left"] == a.ByRequest["right"] {
		t.Errorf("claim with distinct GPUs got %s, want one NVLink pair", a)
	}
	s.Place(testbed.Claim{Name: "together", Requests: requests}, weave)
	a = s.Allocation("together")
	if a.GPUs.Count() != 1 || a.ByRequest["left"] != a.ByRequest["right"] {
		t.Errorf("claim that may stack got %s, want one GPU", a)
	}
}

// The alternatives of a prioritised list keep their order; the one that is taken is placed well.
func TestFirstAvailable(t *testing.T) {
	s := bed.Scene(t)
	list := testbed.Requests(testbed.FirstAvailable("gpus",
		testbed.GPUs("eight", 8),
		testbed.GPUs("four", 4),
		testbed.GPUs("two", 2),
	))
	s.Occupy(cube, 3)
	s.Place(testbed.Claim{Name: "four", Requests: list}, cube)
	s.WantRequest("four", "gpus/four", "4-7")
	// Three are left: the second pair of NVLinks among 0, 1 and 2 is 1-2.
	s.Place(testbed.Claim{Name: "two", Requests: list}, cube)
	wantBest(t, cube, "3-7", "1,2")
	s.WantRequest("two", "gpus/two", "1,2")
	s.Submit(testbed.Claim{Name: "none", Requests: list}, cube)
	s.WaitPending("none", "cannot allocate all claims")
}

// A node that offers a better alternative wins over one with better links for a worse one.
func TestFirstAvailableAcrossNodes(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 0)
	s.Place(testbed.Claim{Name: "job", Requests: testbed.Requests(testbed.FirstAvailable("gpus",
		testbed.GPUs("eight", 8),
		testbed.GPUs("two", 2),
	))}, cube, pcie)
	s.WantRequest("job", "gpus/eight", "0-7")
	s.WantGPUs("job", pcie, "0-7")
}

// A guarantee holds for the alternative that is taken: eight GPUs of this machine are not linked by NVLink alone, four are.
func TestFirstAvailableWithGuarantee(t *testing.T) {
	s := bed.Scene(t)
	s.Place(testbed.Claim{Name: "job", Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(testbed.FirstAvailable("gpus",
		testbed.GPUs("four", 4),
		testbed.GPUs("two", 2),
	))}, pairs)
	a := s.Allocation("job")
	if got := a.ByRequest["gpus/two"].String(); got != "{0,1}" || len(a.ByRequest) != 1 {
		t.Errorf("claim got %s, want the NVLink pair {0,1} by gpus/two: four GPUs are not linked by NVLink", a)
	}
}

// "All" means all that match, and they must all be free.
func TestAllocationModeAll(t *testing.T) {
	s := bed.Scene(t)
	all := testbed.Claim{Name: "all", Requests: testbed.Requests(testbed.GPUs("gpus", 0, testbed.All, testbed.At(2, 3, 4, 5)))}
	s.Occupy(cube, 4)
	s.Submit(all, cube)
	s.WaitPending("all", "0/")
	s.Vacate(cube, 4)
	s.WaitBound("all")
	s.WantGPUs("all", cube, "2-5")
	// All of cube is no longer possible, all of cube2 is.
	s.Place(testbed.Claim{Name: "machine", Requests: testbed.Requests(testbed.GPUs("gpus", 0, testbed.All))}, cube, cube2)
	s.WantGPUs("machine", cube2, "0-7")
}

// What is asked for beside "all" joins it as well as it can.
func TestAllocationModeAllBesideOthers(t *testing.T) {
	s := bed.Scene(t)
	s.Place(testbed.Claim{Name: "job", Requests: testbed.Requests(
		testbed.GPUs("all", 0, testbed.All, testbed.At(4, 7)),
		testbed.GPUs("more", 2),
	)}, cube)
	want := bestAround(t, cube, "4,7", 2)
	if want.String() != "{5,6}" { // together they are the second quad
		t.Fatalf("brute force adds %s to 4 and 7, the test expects {5,6}", want)
	}
	s.WantRequest("job", "all", "4,7")
	s.WantRequest("job", "more", "5,6")
}

// bestAround returns by brute force which k idle GPUs make the best set with those that a pod has anyway.
func bestAround(t *testing.T, node, have string, k int) topology.Mask {
	t.Helper()
	recorded, err := topotest.Load(machines[node])
	if err != nil {
		t.Fatal(err)
	}
	held, err := topology.ParseMask(have, recorded.Machine.N())
	if err != nil {
		t.Fatal(err)
	}
	for _, ranked := range topotest.NewReference(recorded.Machine).Rank(topology.FullMask(recorded.Machine.N()), held.Count()+k, true) {
		if held.SubsetOf(ranked.GPUs) {
			return ranked.GPUs &^ held
		}
	}
	t.Fatalf("no set of %q holds %s", node, held)
	return 0
}

// Admin access sees GPUs that others use, takes nothing of them, and does not disturb what is placed beside it. The in-tree
// allocator wants room on a GPU for what the request names, also for admin access: hence the smallest share.
func TestAdminAccess(t *testing.T) {
	s := bed.Scene(t, resourceapi.DRAAdminNamespaceLabelKey, "true")
	look := testbed.Share("1Mi", 0)
	for _, gpu := range []int{1, 2} {
		s.Place(testbed.Claim{Name: fmt.Sprintf("share-%d", gpu), Requests: testbed.Requests(
			testbed.GPUs("gpu", 1, testbed.At(gpu), testbed.Share("15Gi", 100)),
		)}, cube)
	}
	s.Place(testbed.Claim{Name: "watch", Requests: testbed.Requests(testbed.GPUs("gpus", 0, testbed.All, testbed.Admin, look))}, cube)
	s.WantGPUs("watch", cube, "0-7")
	s.Place(testbed.Claim{Name: "mixed", Requests: testbed.Requests(
		testbed.GPUs("watch", 0, testbed.All, testbed.Admin, look, testbed.At(1, 2)),
		testbed.GPUs("work", 4),
	)}, cube)
	s.WantRequest("mixed", "watch", "1,2")
	s.WantRequest("mixed", "work", "4-7")
	s.Place(testbed.Claim{Name: "guaranteed", Topology: testbed.Required(api.LevelNVLink, 40), Requests: testbed.Requests(
		testbed.GPUs("watch", 1, testbed.Admin, look, testbed.At(2)),
		testbed.GPUs("work", 2),
	)}, cube)
	s.WantRequest("guaranteed", "watch", "2")
	s.WantRequest("guaranteed", "work", "0,3") // the only pair with two NVLinks that is left
}

// Two pods share a claim: the second one goes where the first is. What a third asks for beside the shared GPUs completes
// them.
func TestClaimSharedByPods(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 0)  // 4-7 is whole
	s.Occupy(cube2, 7) // 0-3 is whole
	s.CreateClaim(testbed.Claim{Name: "shared", Requests: testbed.Requests(testbed.GPUs("gpus", 2, testbed.At(4, 7)))})
	s.CreateClaim(testbed.Claim{Name: "more", Requests: testbed.Requests(testbed.GPUs("gpus", 2))})
	s.CreatePod(testbed.Pod{Name: "one", Nodes: []string{cube, cube2}, Claims: []string{"shared"}})
	if node := s.WaitBound("one"); node != cube {
		t.Fatalf("first pod is on %q, want %q: GPU 7 of %q is busy", node, cube, cube2)
	}
	s.CreatePod(testbed.Pod{Name: "two", Nodes: []string{cube, cube2}, Claims: []string{"shared"}})
	if node := s.WaitBound("two"); node != cube {
		t.Errorf("second pod is on %q, its claim on %q", node, cube)
	}
	s.CreatePod(testbed.Pod{Name: "three", Nodes: []string{cube, cube2}, Claims: []string{"more", "shared"}})
	s.WaitBound("three")
	s.WantGPUs("shared", cube, "4,7")
	// 5-6 has two NVLinks, as 1-2 has; only 5 and 6 make a quad with 4 and 7.
	s.WantGPUs("more", cube, "5,6")
	s.CreatePod(testbed.Pod{Name: "elsewhere", Nodes: []string{cube2}, Claims: []string{"shared"}})
	s.WaitPending("elsewhere", "0/")
}

// A guarantee counts the GPUs that the pod shares already.
func TestGuaranteeWithSharedClaim(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 3)
	s.Place(testbed.Claim{Name: "shared", Requests: testbed.Requests(testbed.GPUs("gpus", 1, testbed.At(1)))}, weave)
	// One GPU alone satisfies every level, one that joins GPU 1 does not: its only NVLink goes to GPU 3.
	s.CreateClaim(testbed.Claim{Name: "more", Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(testbed.GPUs("gpus", 1))})
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{weave}, Claims: []string{"shared", "more"}})
	s.WaitPending("job", "topology:")
	s.Vacate(weave, 3)
	s.WaitBound("job")
	s.WantGPUs("more", weave, "3")
}

// Claims from templates are placed as others are.
func TestClaimTemplate(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 2)
	s.CreateTemplate(testbed.Claim{Name: "quad", Requests: testbed.Requests(testbed.GPUs("gpus", 4))})
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{cube}, Templates: []string{"quad"}})
	s.WaitBound("job")
	s.WantGPUs(s.GeneratedClaim("job", "quad"), cube, "4-7")
}

// A pod with claims of another driver goes to a node that has both, and its GPUs are chosen there.
func TestClaimsOfOtherDriversInThePod(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("nics", "nic.example.com")
	s.Publish("nic.example.com", weave, []resourceapi.Device{testbed.Device("nic-0", nil)})
	s.CreateClaim(testbed.Claim{Name: "nic", Requests: testbed.Requests(testbed.GPUs("nic", 1, testbed.Class("nics")))})
	s.CreateClaim(testbed.Claim{Name: "gpus", Requests: testbed.Requests(testbed.GPUs("gpus", 2))})
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{cube, weave, degraded}, Claims: []string{"nic", "gpus"}})
	s.WaitBound("job")
	s.WantDevices("nic", weave, "nic-0")
	s.WantGPUs("gpus", weave, "0,2")
	// One claim with requests to both drivers.
	s.Finish("job", "nic", "gpus")
	s.Place(testbed.Claim{Name: "both", Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(
		testbed.GPUs("nic", 1, testbed.Class("nics")),
		testbed.GPUs("gpus", 2),
	)}, cube, weave, degraded)
	s.WantRequest("both", "gpus", "0,2")
}
