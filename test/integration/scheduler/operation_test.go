// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"math"
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// The metrics say what the scheduler did.
func TestMetrics(t *testing.T) {
	s := bed.Scene(t)
	before := s.Metrics(t)
	delta := func(name string, labels ...string) float64 {
		return s.Metrics(t).Sum(name, labels...) - before.Sum(name, labels...)
	}
	s.Place(job("planned", 2, nil), weave)
	s.WantGPUs("planned", weave, "0,2")
	if got := delta("topodra_plans_total", `result="planned"`); got != 1 {
		t.Errorf("%v nodes were planned, want 1", got)
	}
	if got := delta("topodra_plan_duration_seconds_count"); got != 1 {
		t.Errorf("%v plans were timed, want 1", got)
	}
	for _, scope := range []string{"node", "cluster"} {
		// The only observation is 1, the best there was.
		if sum, count := delta("topodra_quality_ratio_sum", `scope="`+scope+`"`), delta("topodra_quality_ratio_count", `scope="`+scope+`"`); sum != 1 || count != 1 {
			t.Errorf("quality against the best of the %s: %v observations with sum %v, want 1 and 1", scope, count, sum)
		}
	}
	s.Submit(job("refused", 2, testbed.Required(api.LevelNVLink, 0)), pcie)
	s.WaitPending("refused", "topology:")
	if got := delta("topodra_plans_total", `result="refused"`); got < 1 {
		t.Errorf("%v nodes refused, want 1 or more", got)
	}
	// Hiding would change the meaning of "all", so a guarantee beside it is kept by order and verification alone.
	s.Place(testbed.Claim{Name: "all", Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(
		testbed.GPUs("gpus", 0, testbed.All, testbed.At(4, 5)),
	)}, weave)
	if got := delta("topodra_mask_fallbacks_total", `reason="allocation_mode_all"`); got != 1 {
		t.Errorf("%v fallbacks for allocation mode All, want 1", got)
	}
	s.Submit(job("too-many", 7, nil), weave)
	s.WaitPending("too-many", "cannot allocate all claims")
	if got := delta("topodra_plans_total", `result="ruled_out"`); got < 1 {
		t.Errorf("%v nodes were ruled out, want 1 or more: GPUs are missing", got)
	}
	if !s.Metrics(t).Has("topodra_plan_unsettled_total") || s.Metrics(t).Sum("topodra_plan_unsettled_total") != 0 {
		t.Error("answers of the allocator that did not hold have to be reported, as 0")
	}
	if !s.Metrics(t).Has("topodra_plan_mismatches_total") || s.Metrics(t).Sum("topodra_plan_mismatches_total") != 0 {
		t.Error("mismatches have to be reported, as 0")
	}
}

// Of two nodes in one tier the fuller one wins; what that costs is measured against the best of the cluster.
func TestQualityAgainstTheCluster(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 4, 5, 6, 7)
	before := s.Metrics(t)
	s.Place(job("job", 2, nil), weave, pairs)
	s.WantGPUs("job", weave, "0,2") // 12 links of 25.781 GB/s; the other node has 12 of 26.562
	after := s.Metrics(t)
	for scope, want := range map[string]float64{"node": 1, "cluster": 25.781 / 26.562} {
		label := fmt.Sprintf("scope=%q", scope)
		if count := after.Sum("topodra_quality_ratio_count", label) - before.Sum("topodra_quality_ratio_count", label); count != 1 {
			t.Errorf("scope %q has %v observations, want 1", scope, count)
		}
		got := after.Sum("topodra_quality_ratio_sum", label) - before.Sum("topodra_quality_ratio_sum", label)
		if math.Abs(got-want) > 0.0001 {
			t.Errorf("scope %q: quality is %.4f of the best, want %.4f", scope, got, want)
		}
	}
}
