// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"
	"time"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// job is a claim for a number of GPUs with a policy.
func job(name string, count int64, topology *api.TopologyConfig) testbed.Claim {
	return testbed.Claim{Name: name, Topology: topology, Requests: testbed.Requests(testbed.GPUs("gpus", count))}
}

// Guarantees that can be kept are kept.
func TestRequiredThatFits(t *testing.T) {
	for _, c := range []struct {
		name, node string
		busy       []int
		count      int64
		topology   *api.TopologyConfig
		want       string
	}{
		{"nvlink", weave, []int{0}, 2, testbed.Required(api.LevelNVLink, 0), "1,3"},
		{"bandwidth", cube, []int{1}, 4, testbed.Required(api.LevelAny, 40), "4-7"}, // two rings; one would be 25 GB/s
		{"both", weave, []int{0}, 2, testbed.Required(api.LevelNVLink, 300), "1,3"}, // 12 links of 25.8 GB/s
		{"pcie", pcie, []int{0, 2, 5}, 2, testbed.Required(api.LevelPCIe, 10), "6,7"},
		{"numa", pcie, []int{0}, 4, testbed.Required(api.LevelNUMA, 0), "4-7"},
		{"numa-with-nvlink", pairs, []int{0}, 3, testbed.Required(api.LevelNUMA, 0), "1-3"},
		{"single", pcie, nil, 1, testbed.Required(api.LevelNVLink, 100), "0"}, // one GPU satisfies every level
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bed.Scene(t)
			s.Occupy(c.node, c.busy...)
			s.Place(job("job", c.count, c.topology), c.node)
			s.WantGPUs("job", c.node, c.want)
		})
	}
}

// A guarantee is never broken: the pod waits and its event says what there is and what there could be.
func TestRequiredThatNeverFits(t *testing.T) {
	for _, c := range []struct {
		name, node string
		busy       []int
		count      int64
		topology   *api.TopologyConfig
		message    []string
	}{
		{
			"nvlink-on-pcie", pcie, []int{0}, 2, testbed.Required(api.LevelNVLink, 0),
			[]string{`topology: required are 2 GPUs over NVLink; best now: PCIe 12 GB/s on node "pcie" (GPUs 2,3); best if GPUs were freed: PCIe 12 GB/s on node "pcie" (GPUs 0,1)`},
		},
		{
			"too-fast", cube, nil, 4, testbed.Required(api.LevelAny, 60),
			[]string{`topology: required are 4 GPUs at 60 GB/s; best now: NVLink 52 GB/s on node "cube" (GPUs 0-3); best if GPUs were freed: NVLink 52 GB/s on node "cube" (GPUs 0-3)`},
		},
		{
			"eight-with-nvlink-on-degraded", degraded, nil, 8, testbed.Required(api.LevelNVLink, 0),
			[]string{`topology: required are 8 GPUs over NVLink; best now: NUMA 32 GB/s on node "degraded" (GPUs 0-7)`, `on node "degraded" (GPUs 0-7)`},
		},
		{
			"quad-in-one-pcie-switch", pcie, nil, 4, testbed.Required(api.LevelPCIe, 0),
			[]string{`topology: required are 4 GPUs below one PCIe host bridge; best now: NUMA 8 GB/s on node "pcie" (GPUs 0-3)`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bed.Scene(t)
			s.Occupy(c.node, c.busy...)
			s.Submit(job("job", c.count, c.topology), c.node)
			s.WaitPending("job", c.message...)
			s.WaitEvent("job", append([]string{"FailedScheduling"}, c.message...)...)
			// A later pod gets what the first may not have, which shows that the first is not just late.
			s.Place(job("later", c.count, testbed.Policy(api.PolicyPreferred)), c.node)
			s.StillPending("job")
		})
	}
}

// A guarantee that cannot be kept now waits, says so, and is kept as soon as GPUs are freed.
func TestRequiredThatHasToWait(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0, 1, 4, 6) // one of each pair
	s.Submit(job("job", 2, testbed.Required(api.LevelNVLink, 0)), weave)
	message := []string{`topology: required are 2 GPUs over NVLink; best now: SYS 12 GB/s on node "weave" (GPUs 2,3)`, `best if GPUs were freed: NVLink 309 GB/s on node "weave" (GPUs 0,2)`}
	s.WaitPending("job", message...)
	s.WaitEvent("job", append([]string{"FailedScheduling"}, message...)...)
	start := time.Now()
	s.Vacate(weave, 4)
	s.WaitBound("job")
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the pod was bound %s after its GPU was freed", took)
	}
	s.WantGPUs("job", weave, "4,5")
}

// Of several nodes the message names the best.
func TestRefusalNamesTheBestNode(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(cube, 0, 5, 7) // no ring of NVLinks through four GPUs is left
	s.Submit(job("job", 4, testbed.Required(api.LevelNVLink, 0)), cube, pcie, pairs)
	s.WaitPending("job",
		`topology: required are 4 GPUs over NVLink; best now: NUMA 32 GB/s on node "pairs" (GPUs 0-3)`,
		`best if GPUs were freed: NVLink 52 GB/s on node "cube" (GPUs 0-3)`)
}

// A preference takes what there is.
func TestPreferredFallsBack(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0, 1, 2, 4, 6)
	wantBest(t, weave, "0,1,2,4,6", "5,7") // no NVLink is left; 3 and 5, the first two, are on different sockets
	s.Place(job("job", 2, testbed.Policy(api.PolicyPreferred)), weave)
	s.WantGPUs("job", weave, "5,7")
	s.Finish("job")
	s.Place(job("next", 2, nil), weave) // the default policy is the same
	s.WantGPUs("next", weave, "5,7")
}

// Policy None leaves the choice to the allocator, which takes the first that fit.
func TestPolicyNone(t *testing.T) {
	s := bed.Scene(t)
	s.Place(job("pair", 2, testbed.Policy(api.PolicyNone)), weave)
	s.WantGPUs("pair", weave, "0,1")
	s.Place(job("next", 3, testbed.Policy(api.PolicyNone)), weave)
	s.WantGPUs("next", weave, "2-4")
}

// GPUs that do not talk to each other go where they do the least harm, not where the links are.
func TestCommunicatesFalse(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0, 1) // breaks two pairs
	quiet := &api.TopologyConfig{Policy: api.PolicyPreferred, Communicates: new(false)}
	s.Place(job("quiet", 2, quiet), weave)
	s.WantGPUs("quiet", weave, "2,3") // leaves both pairs
	s.Finish("quiet")
	s.Place(job("talks", 2, nil), weave)
	if got := s.Allocation("talks").GPUs.String(); got != "{4,5}" && got != "{6,7}" {
		t.Errorf("a claim that communicates got %s, want an NVLink pair", got)
	}
}

// Requests of one claim may have policies of their own.
func TestPoliciesByRequest(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0, 4)
	s.Place(testbed.Claim{
		Name: "job", Config: `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","topology":{"policy":"Required","level":"NVLink"}}`,
		ConfigRequests: []string{"ring"},
		Requests:       testbed.Requests(testbed.GPUs("any", 2), testbed.GPUs("ring", 2)),
	}, weave)
	ring := s.Allocation("job").ByRequest["ring"].String()
	if ring != "{1,3}" && ring != "{6,7}" {
		t.Errorf("request with a guarantee got %s, want an NVLink pair", ring)
	}
}
