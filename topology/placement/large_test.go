// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

// islands returns a machine of fully linked groups of eight GPUs.
func islands(groups int) *topology.Machine {
	m := topology.New("islands", 8*groups)
	for i := range m.GPUs {
		m.GPUs[i].NUMA = i / 8
		for j := range m.GPUs {
			if i != j && i/8 == j/8 {
				m.NVLinks[i][j], m.PCIe[i][j] = 2, topology.NODE
			}
		}
	}
	return m
}

// TestLargeMachines: above 16 GPUs the answer says that it is not exact, stays in
// one NVLink domain where it can, and joins domains where it must.
func TestLargeMachines(t *testing.T) {
	t.Parallel()
	c := classOf(t, islands(8)) // 64 GPUs
	p := planner(t, placement.Options{})
	for _, tc := range []struct {
		idle, want string
		k          int
	}{
		{"0-2,8-15,16-20", "{16-19}", 4},
		{"0-2,8-15,16-20", "{8-15}", 8},
		{"5-12,20-23,31", "{20-23}", 4},
		{"0-63", "{0-63}", 64},
		{"3", "{3}", 1},
	} {
		r := plan(t, p, placement.WholeGPUs(c, mask(t, tc.idle)), wholes(tc.k))
		if len(r.Sets) == 0 || r.Sets[0].GPUs.String() != tc.want || r.Exact {
			t.Errorf("%d of %s: exact %v, %+v, want %s", tc.k, tc.idle, r.Exact, r.Sets, tc.want)
		}
	}
	r := plan(t, p, placement.WholeGPUs(c, mask(t, "0-63")), wholes(12))
	if s := r.Sets[0]; s.GPUs.Count() != 12 || s.Keys.NUMANodes != 2 || s.Quality.Bottleneck != quality.SYS {
		t.Errorf("12 of 64: %+v, want two domains", s)
	}
	d := wholes(4)
	d.Policy = placement.Policy{Mode: placement.Required, Level: placement.LevelNVLink}
	r = plan(t, p, placement.WholeGPUs(c, mask(t, "0-2,8-10,16-18")), d)
	if r.Reason != placement.ReasonPolicyNow || r.BestWhenFree == nil || !r.BestWhenFree.Quality.HasNVLink() {
		t.Errorf("three free in each domain: %+v", r)
	}
}

// TestLargeEqualsSmall: on a machine of 18 GPUs of which 8 are present, the ranking
// of the best set agrees with the exact planner on those eight as a machine.
func TestLargeEqualsSmall(t *testing.T) {
	t.Parallel()
	p := planner(t, placement.Options{})
	for shape := range topotest.Shapes {
		m := topotest.Random(shape, 18, 4)
		m.Switched = false
		part := mask(t, "1,2,4,7,8,11,13,16")
		big, small := classOf(t, m), classOf(t, m.Sub(part))
		for k := 2; k <= 8; k++ {
			inv := placement.WholeGPUs(big, part)
			inv.Present = part
			got := plan(t, p, inv, wholes(k))
			want := plan(t, p, placement.WholeGPUs(small, 255), wholes(k))
			if got.Sets[0].Quality.MBps*100 < want.Sets[0].Quality.MBps*90 {
				t.Errorf("shape %d, %d GPUs: %+v, exact %+v", shape, k, got.Sets[0], want.Sets[0])
			}
		}
	}
}

// countdown is a context that is done after a number of looks at it.
type countdown struct {
	context.Context
	left, looks int
}

func (c *countdown) Err() error {
	c.looks++
	if c.looks > c.left {
		return context.Canceled
	}
	return nil
}

// TestPlanStops: whenever the context is done, the planner stops, also while it
// ranks, and what it ranked until then is no answer.
func TestPlanStops(t *testing.T) {
	t.Parallel()
	m := topotest.Random(topotest.AnyLinks, 20, 3)
	m.Switched = false
	inv := placement.WholeGPUs(classOf(t, m), topology.FullMask(20))
	for _, mode := range []placement.Mode{placement.Preferred, placement.Required} {
		d := wholes(4) // 4845 unions
		d.Policy.Mode = mode
		p := planner(t, placement.Options{MemoSize: -1})
		all := &countdown{Context: t.Context(), left: 1 << 30}
		if _, err := p.Plan(all, inv, d); err != nil {
			t.Fatal(err)
		}
		if all.looks < 4845/32 {
			t.Errorf("only %d looks at the context for 4845 sets", all.looks)
		}
		for left := 0; left < all.looks; left += 1 + all.looks/16 {
			_, err := p.Plan(&countdown{Context: t.Context(), left: left}, inv, d)
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("mode %d, canceled at look %d of %d: error %v", mode, left, all.looks, err)
			}
		}
	}
}

// TestPlanLargeInTime: 15 of 20 GPUs are as many sets as are ever looked at one by
// one, each with thousands of possible rings.
func TestPlanLargeInTime(t *testing.T) {
	t.Parallel()
	m := topotest.Random(topotest.AnyLinks, 20, 4)
	m.Switched = false
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	inv := placement.WholeGPUs(classOf(t, m), topology.FullMask(20))
	r, err := planner(t, placement.Options{}).Plan(ctx, inv, wholes(15))
	if err != nil || r.Exact || r.Feasible != 15_504 {
		t.Errorf("%d sets, exact %v, error %v", r.Feasible, r.Exact, err)
	}
}
