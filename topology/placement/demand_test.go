// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

const gpuMiB = 80 * 1024

// shared returns an inventory of GPUs with gpuMiB of memory, 100 % of compute and
// eight slots each; used gives what is taken, in MiB.
func shared(c *quality.Class, used map[int]int64) placement.Inventory {
	inv := placement.WholeGPUs(c, topology.FullMask(c.N()))
	for g := range inv.Total {
		inv.Total[g] = placement.Capacity{MemoryMiB: gpuMiB, CoresPercent: 100, Slots: 8}
		inv.Free[g] = inv.Total[g]
		if u := used[g]; u > 0 {
			inv.Free[g].MemoryMiB -= u
			inv.Free[g].Slots--
			inv.Idle = inv.Idle.Without(g)
		}
	}
	return inv
}

// share is a request for parts of count GPUs.
func share(count int, mib, cores int64) placement.Request {
	return placement.Request{
		Name: "claim/share", Count: count, Eligible: topology.FullMask(64),
		Use: placement.Capacity{MemoryMiB: mib, CoresPercent: cores, Slots: 1},
	}
}

func demand(requests ...placement.Request) placement.Demand {
	return placement.Demand{Requests: requests}
}

func TestSharesGoToTouchedGPUs(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "dgx1v_8xv100"))
	p := planner(t, placement.Options{})
	inv := shared(c, map[int]int64{5: 10_000, 6: 60_000})
	for _, tc := range []struct {
		name string
		d    placement.Demand
		want string
		cost bool
	}{
		{"the fuller card when it fits", demand(share(1, 20_000, 10)), "{6}", false},
		{"the other when it does not", demand(share(1, 30_000, 10)), "{5}", false},
		{"two requests stack", demand(share(1, 10_000, 10), share(1, 10_000, 10)), "{6}", false},
		{"two of one request do not", demand(share(2, 20_000, 10)), "{5,6}", false},
		{"slots are counted", demand(slices.Repeat([]placement.Request{share(1, 1, 0)}, 8)...), "{5,6}", false},
	} {
		r := plan(t, p, inv, tc.d)
		if len(r.Sets) == 0 || r.Sets[0].GPUs.String() != tc.want || (r.Sets[0].DeltaV != 0) != tc.cost {
			t.Errorf("%s: %v %+v, want %s", tc.name, r.Reason, r.Sets, tc.want)
		}
		if !r.Exact {
			t.Errorf("%s: not exact", tc.name)
		}
	}
}

// TestEightTinyShares: eight shares fit on one idle GPU by slots and memory.
func TestEightTinyShares(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "hgxh100_8x_numa2"))
	r := plan(t, planner(t, placement.Options{}), shared(c, nil),
		demand(slices.Repeat([]placement.Request{share(1, 1, 10)}, 8)...))
	if len(r.Sets) == 0 || r.Sets[0].GPUs.Count() != 1 || r.Communicates {
		t.Errorf("got %+v, want one GPU", r)
	}
}

// TestSingleTakesTheOddCard: a single whole GPU goes where a pair is broken already.
func TestSingleTakesTheOddCard(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	for _, tc := range []struct{ machine, idle, want string }{
		{"a100_8x_interleaved_pairs", "0,1,2,4,5", "{1}"},
		{"h100nvl_8x_pairs", "0-3,5-7", "{5}"},
		{"a6000_3x_pair_plus_one", "0-2", "{2}"},
		{"b200_8x_degraded_gpu2", "0-7", "{2}"},
		{"hgxh100_8x_numa2", "0-3,5-7", "{5}"}, // by socket: links are all alike
		{"rtx4090_8x_all_sys", "0-3,5-7", "{5}"},
	} {
		c := classOf(t, machine(t, tc.machine))
		r := plan(t, p, placement.WholeGPUs(c, mask(t, tc.idle)), wholes(1))
		if got := r.Sets[0].GPUs.String(); got != tc.want {
			t.Errorf("%s, one of %s: got %s, want %s", tc.machine, tc.idle, got, tc.want)
		}
	}
}

// TestSocketsStayWhole: on machines whose links are all alike a pair comes from the
// broken socket.
func TestSocketsStayWhole(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	for _, name := range []string{"hgxh100_8x_numa2", "rtx4090_8x_all_sys"} {
		c := classOf(t, machine(t, name))
		r := plan(t, p, placement.WholeGPUs(c, mask(t, "0-5")), wholes(2))
		if got := r.Sets[0].GPUs.String(); got != "{4,5}" {
			t.Errorf("%s: got %s, want {4,5}", name, got)
		}
		if why := placement.Decides(r.Sets[0], r.Sets[1], true); why != placement.CriterionLocal {
			t.Errorf("%s: the runner-up %s lost because %q", name, r.Sets[1].GPUs, why)
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	required := func(level placement.Level, least topology.MBps) placement.Policy {
		return placement.Policy{Mode: placement.Required, Level: level, MinMBps: least}
	}
	for _, tc := range []struct {
		name, machine, idle string
		k                   int
		policy              placement.Policy
		want                string
		reason              placement.Reason
		now, free           string
	}{
		{"fits", "dgx1v_8xv100", "0-7", 4, required(placement.LevelNVLink, 0), "{0-3}", 0, "", ""},
		{"not now", "dgx1v_8xv100", "0,1,4,6", 3, required(placement.LevelNVLink, 0), "", placement.ReasonPolicyNow, "{0,1,4}", "{0,2,3}"},
		{"never", "h100nvl_8x_pairs", "0-7", 4, required(placement.LevelNVLink, 0), "", placement.ReasonPolicyNever, "{0-3}", "{0-3}"},
		{"NUMA is enough", "h100nvl_8x_pairs", "0-7", 4, required(placement.LevelNUMA, 0), "{0-3}", 0, "", ""},
		{"switch", "pcie_8x_pix_node_sys", "0-2", 2, required(placement.LevelPCIe, 0), "{0,1}", 0, "", ""},
		{"no switch", "pcie_8x_pix_node_sys", "0,2", 2, required(placement.LevelPCIe, 0), "", placement.ReasonPolicyNow, "{0,2}", "{0,1}"},
		{"fast enough", "dgx1v_8xv100", "0-7", 2, required(placement.LevelAny, 51_000), "{2,3}", 0, "", ""},
		{"too slow now", "dgx1v_8xv100", "0,1", 2, required(placement.LevelAny, 51_000), "", placement.ReasonPolicyNow, "{0,1}", "{2,3}"},
		{"single satisfies all", "pcie_8x_pix_node_sys", "3", 1, required(placement.LevelNVLink, 99_000), "{3}", 0, "", ""},
		{"too few free", "dgx1v_8xv100", "0,1", 3, placement.Policy{}, "", placement.ReasonTooFewFree, "", "{0,2,3}"},
		{"too few at all", "dgx1v_8xv100", "0-7", 9, placement.Policy{}, "", placement.ReasonTooFewEligible, "", ""},
		{"taken and never good", "h100nvl_8x_pairs", "0", 4, required(placement.LevelNVLink, 0), "", placement.ReasonPolicyNever, "", "{0-3}"},
	} {
		c := classOf(t, machine(t, tc.machine))
		d := wholes(tc.k)
		d.Policy = tc.policy
		r := plan(t, p, placement.WholeGPUs(c, mask(t, tc.idle)), d)
		got := []string{"", setText(r.BestNow), setText(r.BestWhenFree)}
		if len(r.Sets) > 0 {
			got[0] = r.Sets[0].GPUs.String()
		}
		if diff := cmp.Diff([]string{tc.want, tc.now, tc.free}, got); diff != "" || r.Reason != tc.reason {
			t.Errorf("%s: reason %q, want %q; set, now, when free (-want +got):\n%s", tc.name, r.Reason, tc.reason, diff)
		}
	}
}

func setText(s *placement.Set) string {
	if s == nil {
		return ""
	}
	return s.GPUs.String()
}

// TestPolicyNone takes the set that costs later claims least instead of the best.
func TestPolicyNone(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "a6000_3x_pair_plus_one"))
	d := wholes(2)
	d.Policy.Mode = placement.None
	inv := placement.WholeGPUs(c, mask(t, "0-2"))
	r := plan(t, planner(t, placement.Options{Mix: []placement.Typical{{GPUs: 2, Weight: 1}}}), inv, d)
	if r.Communicates {
		t.Error("policy None communicates")
	}
	c8 := classOf(t, machine(t, "h100nvl_8x_pairs"))
	p := planner(t, placement.Options{})
	d.Policy.Mode = placement.Preferred
	best := plan(t, p, placement.WholeGPUs(c8, mask(t, "0,1,2,4")), d).Sets[0].GPUs
	d.Policy.Mode = placement.None
	cheap := plan(t, p, placement.WholeGPUs(c8, mask(t, "0,1,2,4")), d).Sets[0].GPUs
	if best.String() != "{0,1}" || cheap.String() != "{2,4}" {
		t.Errorf("preferred %s, none %s; want {0,1} and {2,4}", best, cheap)
	}
}

func TestForcedAndHeld(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "dgx1v_8xv100"))
	p := planner(t, placement.Options{})
	inv := placement.WholeGPUs(c, mask(t, "0-7"))
	d := wholes(2)
	d.Forced = mask(t, "5")
	if got := plan(t, p, inv, d).Sets[0].GPUs.String(); got != "{5,6}" {
		t.Errorf("forced 5: got %s, want its NV2 partner on the same socket, {5,6}", got)
	}
	d = wholes(1)
	d.Held = mask(t, "6")
	inv = placement.WholeGPUs(c, mask(t, "0-5,7"))
	r := plan(t, p, inv, d)
	if got := r.Sets[0]; !r.Communicates || c.Of(got.GPUs|d.Held).Rings != 2 || got.Quality.Rings != 2 {
		t.Errorf("held 6: got %+v, want a partner over NV2", got)
	}
	d = demand(placement.WholeRequest("a", 1))
	d.Requests[0].Eligible = mask(t, "0-3")
	d.Forced = mask(t, "4")
	if r := plan(t, p, inv, d); r.Reason != placement.ReasonForcedNotEligible {
		t.Errorf("forced 4 of 0-3: reason %q", r.Reason)
	}
}

// TestEligibilityByRequest: two whole requests with different selectors.
func TestEligibilityByRequest(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "dgx1v_8xv100"))
	a, b := placement.WholeRequest("a", 1), placement.WholeRequest("b", 2)
	a.Eligible, b.Eligible = mask(t, "4-7"), mask(t, "0-4")
	r := plan(t, planner(t, placement.Options{}), placement.WholeGPUs(c, mask(t, "0-7")), demand(a, b))
	s := r.Sets[0]
	if !s.PerRequest[0].SubsetOf(a.Eligible) || !s.PerRequest[1].SubsetOf(b.Eligible) ||
		s.PerRequest[0]&s.PerRequest[1] != 0 || s.PerRequest[0]|s.PerRequest[1] != s.GPUs || s.GPUs.Count() != 3 {
		t.Errorf("got %+v", s)
	}
}

func TestConstraints(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "pcie_8x_pix_node_sys"))
	p := planner(t, placement.Options{})
	inv := placement.WholeGPUs(c, mask(t, "1-6"))
	sockets := []int32{0, 0, 0, 0, 1, 1, 1, -1}
	two := func(kind placement.ConstraintKind, values []int32, requests ...placement.Request) placement.Demand {
		d := demand(requests...)
		all := make([]int, len(requests))
		for i := range all {
			all[i] = i
		}
		d.Constraints = []placement.Constraint{{Requests: all, Kind: kind, Values: values}}
		return d
	}
	one := placement.WholeRequest("a", 1)
	for _, tc := range []struct {
		name   string
		d      placement.Demand
		want   string
		reason placement.Reason
	}{
		{"match within one request", two(placement.Match, sockets, placement.WholeRequest("a", 3)), "{1-3}", 0},
		{"match over two requests", two(placement.Match, []int32{0, 1, 0, 1, 0, 1, 0, 1}, one, one), "{1,3}", 0},
		{"distinct", two(placement.Distinct, sockets, one, one), "{1,6}", 0},
		{"distinct needs more values", two(placement.Distinct, sockets, placement.WholeRequest("a", 3)), "", placement.ReasonConstraint},
		{"match too many", two(placement.Match, sockets, placement.WholeRequest("a", 4)), "", placement.ReasonTooFewFree},
		{"missing attribute", two(placement.Match, []int32{-1, -1, -1, -1, -1, -1, -1, -1}, one), "", placement.ReasonConstraint},
		{"distinct forbids stacking, so the shares talk to each other over a switch", two(placement.Distinct, []int32{0, 1, 2, 3, 4, 5, 6, 7}, share(1, 0, 10), share(1, 0, 10)), "{2,3}", 0},
	} {
		r := plan(t, p, inv, tc.d)
		got := ""
		if len(r.Sets) > 0 {
			got = r.Sets[0].GPUs.String()
		}
		if got != tc.want || r.Reason != tc.reason {
			t.Errorf("%s: got %q, reason %q; want %q, reason %q", tc.name, got, r.Reason, tc.want, tc.reason)
		}
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "gb200_4x"))
	good := placement.WholeGPUs(c, 15)
	for name, tc := range map[string]struct {
		change func(inv *placement.Inventory, d *placement.Demand)
		want   string
	}{
		"no class":       {func(i *placement.Inventory, _ *placement.Demand) { i.Class = nil }, "no topology class"},
		"short free":     {func(i *placement.Inventory, _ *placement.Demand) { i.Free = i.Free[:2] }, "4 GPUs, but 2 free"},
		"idle not there": {func(i *placement.Inventory, _ *placement.Demand) { i.Present = 1 }, "idle GPUs must be present"},
		"present beyond": {func(i *placement.Inventory, _ *placement.Demand) { i.Present = 31 }, "present {0-4}"},
		"no requests":    {func(_ *placement.Inventory, d *placement.Demand) { d.Requests = nil }, "0 requests"},
		"count":          {func(_ *placement.Inventory, d *placement.Demand) { d.Requests[0].Count = 0 }, `request 0 ("r") asks for 0`},
		"negative":       {func(_ *placement.Inventory, d *placement.Demand) { d.Requests[0].Use.Slots = -1 }, "negative"},
		"values":         {func(_ *placement.Inventory, d *placement.Demand) { d.Constraints = []placement.Constraint{{}} }, "0 values for 4"},
		"kind": {func(_ *placement.Inventory, d *placement.Demand) {
			d.Constraints = []placement.Constraint{{Kind: 9, Values: make([]int32, 4)}}
		}, "unknown kind 9"},
		"request": {func(_ *placement.Inventory, d *placement.Demand) {
			d.Constraints = []placement.Constraint{{Requests: []int{3}, Values: make([]int32, 4)}}
		}, "names request 3 of 1"},
		"held": {func(_ *placement.Inventory, d *placement.Demand) { d.Held = 32 }, "held GPUs {5}"},
	} {
		inv, d := good, demand(placement.WholeRequest("r", 1))
		tc.change(&inv, &d)
		_, err := planner(t, placement.Options{}).Plan(t.Context(), inv, d)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

func TestOptionErrors(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]placement.Options{
		"tier percent":      {TierPercent: 100},
		"max sets":          {MaxSets: -1},
		"max search":        {MaxSearch: -1},
		"entry 0: 0 GPUs":   {Mix: []placement.Typical{{Weight: 1}}},
		"entry 1: weight":   {Mix: []placement.Typical{{GPUs: 1, Weight: 1}, {GPUs: 1}}},
		"use of a GPU":      {Mix: []placement.Typical{{GPUs: 1, Weight: 1, Use: placement.Capacity{Slots: -1}}}},
		"65 typical claims": {Mix: slices.Repeat([]placement.Typical{{GPUs: 1, Weight: 1}}, 65)},
	} {
		if _, err := placement.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v", want, err)
		}
	}
}

// TestCancelled: a search that would look at many sets stops with the context.
func TestCancelled(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "derived_dgx2_16xv100"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := planner(t, placement.Options{}).Plan(ctx, placement.WholeGPUs(c, 65535), wholes(8))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// TestSearchBudget: a demand that exhausts the budget is not called exact. Two of the
// 17 shares fit on each of eight GPUs, which only trying them all shows.
func TestSearchBudget(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "hgxh100_8x_numa2"))
	inv := shared(c, nil)
	var d placement.Demand
	for i := range 17 {
		d.Requests = append(d.Requests, share(1, gpuMiB*34/100+int64(i), 0))
	}
	r := plan(t, planner(t, placement.Options{MaxSearch: 20}), inv, d)
	if r.Exact || len(r.Sets) > 0 {
		t.Errorf("got %d sets, exact %v", len(r.Sets), r.Exact)
	}
	d.Requests = d.Requests[:16]
	if r := plan(t, planner(t, placement.Options{MaxSearch: 200}), inv, d); len(r.Sets) != 1 || r.Sets[0].GPUs != topology.FullMask(8) {
		t.Errorf("16 shares: %+v", r)
	}
}

// TestSharedTypicalClaims: with shares in the mix V counts the shares that still
// fit, and a share prefers the GPU that is touched already.
func TestSharedTypicalClaims(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "pcie_8x_pix_node_sys"))
	half := placement.Capacity{MemoryMiB: gpuMiB / 2}
	p := planner(t, placement.Options{Mix: []placement.Typical{{GPUs: 1, Use: half, Weight: 3}, {GPUs: 1, Weight: 1}}})
	inv := shared(c, map[int]int64{6: gpuMiB / 2})
	r := plan(t, p, inv, demand(share(1, gpuMiB/2, 0)))
	single := int64(6000) // the slowest link of the machine
	if got, want := r.VMax, single*(3*16+8); got != want {
		t.Errorf("VMax %d, want %d", got, want)
	}
	if s := r.Sets[0]; s.GPUs != topology.MaskOf(6) || s.DeltaV != 3*single {
		t.Errorf("got %+v, want GPU 6 at the price of one half", s)
	}
	if s := r.Sets[1]; s.DeltaV != 4*single {
		t.Errorf("runner-up %+v, want the price of a half and a whole", s)
	}
}

// TestStranded: the rest that no typical claim can use decides between touched GPUs,
// before the tighter fit does.
func TestStranded(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "pcie_8x_pix_node_sys"))
	quarter := placement.Capacity{MemoryMiB: gpuMiB / 4}
	p := planner(t, placement.Options{Mix: []placement.Typical{{GPUs: 4, Use: quarter, Weight: 1}}})
	inv := shared(c, nil)
	inv.Idle = 0
	for g := range inv.Free {
		inv.Free[g].MemoryMiB = 0
	}
	inv.Free[2].MemoryMiB = gpuMiB / 4     // would be left with an eighth nobody can use
	inv.Free[5].MemoryMiB = gpuMiB * 3 / 8 // would be left with a quarter
	r := plan(t, p, inv, demand(share(1, gpuMiB/8, 0)))
	if got := r.Sets[0].GPUs; got != topology.MaskOf(5) {
		t.Errorf("got %s, want {5}: %+v", got, r.Sets)
	}
	if why := placement.Decides(r.Sets[0], r.Sets[1], r.Communicates); why != placement.CriterionStranded {
		t.Errorf("decided by %q", why)
	}
}

// TestStackingBacktracks: which GPUs are taken does not say what is left of them, so a
// dead end with the first two requests one way round must not rule out the other.
func TestStackingBacktracks(t *testing.T) {
	t.Parallel()
	c := classOf(t, topology.New("two", 2))
	inv := shared(c, nil)
	inv.Free[0].MemoryMiB, inv.Free[1].MemoryMiB = 700, 900
	last := share(1, 500, 0)
	last.Eligible = mask(t, "1")
	r := plan(t, planner(t, placement.Options{}), inv, demand(share(1, 300, 0), share(1, 500, 1), last))
	want := []topology.Mask{mask(t, "1"), mask(t, "0"), mask(t, "1")}
	if len(r.Sets) != 1 || !slices.Equal(r.Sets[0].PerRequest, want) {
		t.Errorf("got %+v, want %v", r.Sets, want)
	}
}
