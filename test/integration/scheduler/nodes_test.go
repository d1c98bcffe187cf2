// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// The node with better links wins, whether it is fuller or emptier.
func TestBetterLinkedNodeWins(t *testing.T) {
	for _, c := range []struct {
		name   string
		busy   string // node
		gpus   []int
		count  int64
		nodes  []string
		node   string
		placed string
	}{
		{"emptier", pcie, []int{0, 1, 2, 3}, 2, []string{pcie, weave}, weave, "0,2"},
		{"fuller", weave, []int{0, 1, 4, 5}, 2, []string{pcie, weave}, weave, "6,7"},
		{"quad", pairs, []int{0, 1}, 4, []string{pairs, cube, pcie}, cube, "0-3"},
		{"nvswitch-over-direct-links", degraded, []int{0}, 4, []string{cube, degraded, pairs}, degraded, "4-7"},
		{"eight", cube, nil, 8, []string{cube, pcie, pairs}, cube, "0-7"},
		{"sixteen", cube, nil, 16, []string{cube, wide, bare}, wide, "0-15"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bed.Scene(t)
			s.Occupy(c.busy, c.gpus...)
			s.Place(job("job", c.count, nil), c.nodes...)
			s.WantGPUs("job", c.node, c.placed)
		})
	}
}

// Between nodes that offer equally good sets, the fuller one wins, so that the emptier one stays whole.
func TestFullerNodeWinsAmongEquals(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube2, 0, 1, 2, 3)
	s.Place(job("pair", 2, nil), cube, cube2)
	if a := s.Allocation("pair"); a.Node != cube2 || !a.GPUs.SubsetOf(0xf0) {
		t.Errorf("pair got %s, want two of {4-7} on %q", a, cube2)
	}
	s.Place(job("quad", 4, nil), cube, cube2)
	s.WantGPUs("quad", cube, "0-3")
}

// A node whose rest is worse loses, although it is fuller.
func TestBrokenRestLoses(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube2, 1, 2, 4, 7) // 0-3 and 5-6 are left, both with two NVLinks, but no quad
	s.Place(job("quad", 4, nil), cube, cube2)
	s.WantGPUs("quad", cube, "0-3")
}

// Single GPUs and shares go to pairs that are broken and GPUs that are touched.
func TestSinglesGoToBrokenPairs(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 4)
	s.Place(job("single", 1, nil), weave)
	s.WantGPUs("single", weave, "5")
	share := func(name string) testbed.Claim {
		return testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("4Gi", 25)))}
	}
	s.Finish("single")
	for _, name := range []string{"share-1", "share-2", "share-3", "share-4"} {
		s.Place(share(name), weave)
		s.WantGPUs(name, weave, "5") // the broken pair's rest, until it is full
	}
	fifth := s.Place(share("share-5"), weave)
	if fifth.GPUs.Has(5) || fifth.GPUs.Has(4) {
		t.Errorf("fifth share of 25 %% got %s, GPUs 4 and 5 are full", fifth)
	}
	// The pair that the fifth share has broken is now the place for singles.
	partner := map[string]string{"{0}": "2", "{1}": "3", "{2}": "0", "{3}": "1", "{6}": "7", "{7}": "6"}
	s.Place(job("last", 1, nil), weave)
	s.WantGPUs("last", weave, partner[fifth.GPUs.String()])
}

// The same across nodes: the share goes to the node and the GPU that is touched.
func TestSinglesGoToFullerNodes(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(pcie, 0, 1, 2)
	s.Place(job("single", 1, nil), cube, pcie, pairs, bare)
	s.WantGPUs("single", pcie, "3")
	s.Finish("single")
	s.Place(testbed.Claim{Name: "share", Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("1Gi", 10)))}, cube, pcie, pairs)
	s.WantGPUs("share", pcie, "3")
}

// The rest of a broken pair comes before an untouched GPU of a slower machine.
func TestBrokenPairBeforeUntouchedNode(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(pairs, 4)
	for _, name := range []string{"share-1", "share-2", "share-3"} {
		s.Place(testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("8Gi", 25)))}, cube, pairs, pcie)
		s.WantGPUs(name, pairs, "5")
	}
}

// On a machine whose GPU 2 has lost the fabric, jobs avoid it and singles take it.
func TestDegradedMachine(t *testing.T) {
	s := bed.Scene(t)
	s.Place(job("seven", 7, testbed.Required(api.LevelNVLink, 900)), degraded)
	s.WantGPUs("seven", degraded, "0,1,3-7")
	s.Finish("seven")
	s.Place(job("single", 1, nil), degraded)
	s.WantGPUs("single", degraded, "2")
	s.Finish("single")
	s.Place(job("eight", 8, nil), degraded)
	s.WantGPUs("eight", degraded, "0-7")
}

// A machine with sixteen GPUs: halves, guarantees, and single GPUs beside what is taken.
func TestSixteenGPUs(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(wide, 3)
	eight := s.Place(job("eight", 8, testbed.Required(api.LevelNVLink, 100)), wide)
	if eight.GPUs.String() != "{8-15}" {
		t.Errorf("eight GPUs are %s, want the half that is whole", eight)
	}
	s.Place(job("seven", 7, nil), wide)
	s.WantGPUs("seven", wide, "0-2,4-7")
	s.Submit(job("none", 1, nil), wide)
	s.WaitPending("none", "cannot allocate all claims")
}

// Nodes without GPUs do no harm among the candidates, and none for pods without claims.
func TestNodesWithoutGPUs(t *testing.T) {
	s := bed.Scene(t)
	s.Place(job("pair", 2, testbed.Required(api.LevelNVLink, 0)), bare, weave)
	s.WantGPUs("pair", weave, "0,2")
	s.Submit(job("nowhere", 2, nil), bare)
	s.WaitPending("nowhere", "cannot allocate all claims")
	s.Submit(job("nowhere-required", 2, testbed.Required(api.LevelNVLink, 0)), bare)
	s.WaitPending("nowhere-required", "0/")
	s.CreatePod(testbed.Pod{Name: "plain", Nodes: []string{bare}})
	s.WaitBound("plain")
}
