// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/topotest"
)

// TestMemoAndGoroutines: cold, warm and concurrent answers are the same, and a
// caller that changes its result changes nobody else's.
func TestMemoAndGoroutines(t *testing.T) {
	t.Parallel()
	warm := planner(t, placement.Options{MemoSize: 64})
	cold := planner(t, placement.Options{MemoSize: -1})
	type question struct {
		inv placement.Inventory
		d   placement.Demand
	}
	rng := rand.New(rand.NewPCG(5, 6))
	var questions []question
	var answers []placement.Result
	for round := range 60 {
		c := classOf(t, topotest.Random(topotest.Shape(round%int(topotest.Shapes)), 6, uint64(round)))
		q := question{shared(c, map[int]int64{round % 6: gpuMiB / 2}), randomDemand(rng, 6)}
		questions = append(questions, q)
		answers = append(answers, plan(t, cold, q.inv, q.d))
	}
	done := make(chan struct{})
	for w := range 6 {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 3 * len(questions) {
				at := (i*7 + w*11) % len(questions)
				got, err := warm.Plan(t.Context(), questions[at].inv, questions[at].d)
				if err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(answers[at], got); diff != "" {
					t.Errorf("question %d, goroutine %d (-cold +warm):\n%s", at, w, diff)
				}
				for j := range got.Sets {
					got.Sets[j].GPUs = 0
					clear(got.Sets[j].PerRequest)
				}
			}
		}()
	}
	for range 6 {
		<-done
	}
}

// TestMemoKeepsQuestionsApart asks pairs of questions that differ in one detail.
func TestMemoKeepsQuestionsApart(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "dgx1v_8xv100"))
	warm, cold := planner(t, placement.Options{}), planner(t, placement.Options{MemoSize: -1})
	base := func() (placement.Inventory, placement.Demand) {
		return shared(c, map[int]int64{0: gpuMiB / 2, 3: gpuMiB / 4}), demand(share(1, 1000, 10))
	}
	whole := func() (placement.Inventory, placement.Demand) {
		return placement.WholeGPUs(c, mask(t, "0,1,4,6")), wholes(3)
	}
	for name, tc := range map[string]struct {
		base   func() (placement.Inventory, placement.Demand)
		change func(inv *placement.Inventory, d *placement.Demand)
	}{
		"use":     {base, func(_ *placement.Inventory, d *placement.Demand) { d.Requests[0].Use.MemoryMiB = 30_000 }},
		"free":    {base, func(i *placement.Inventory, _ *placement.Demand) { i.Free[0].MemoryMiB = 79_000 }},
		"idle":    {whole, func(i *placement.Inventory, _ *placement.Demand) { i.Idle = i.Idle.With(2) }},
		"present": {whole, func(i *placement.Inventory, _ *placement.Demand) { i.Present = i.Idle }},
		"held":    {whole, func(_ *placement.Inventory, d *placement.Demand) { d.Held = mask(t, "7") }},
		"forced":  {whole, func(_ *placement.Inventory, d *placement.Demand) { d.Forced = mask(t, "6") }},
		"count":   {whole, func(_ *placement.Inventory, d *placement.Demand) { d.Requests[0].Count = 2 }},
		"policy": {whole, func(_ *placement.Inventory, d *placement.Demand) {
			d.Policy = placement.Policy{Mode: placement.Required, Level: placement.LevelNVLink}
		}},
		"eligible": {func() (placement.Inventory, placement.Demand) { i, d := whole(); d.Requests[0].Count = 5; return i, d }, func(_ *placement.Inventory, d *placement.Demand) { d.Requests[0].Eligible = mask(t, "0,1,4-7") }},
		"talks": {whole, func(_ *placement.Inventory, d *placement.Demand) {
			d.Communicates = placement.No
			d.Requests[0].Count = 2
		}},
		"match": {whole, func(_ *placement.Inventory, d *placement.Demand) {
			d.Constraints = []placement.Constraint{{Requests: []int{0}, Values: []int32{0, 1, 0, 0, 1, 0, 1, 0}}}
		}},
	} {
		inv, d := tc.base()
		before := plan(t, warm, inv, d)
		tc.change(&inv, &d)
		got, want := plan(t, warm, inv, d), plan(t, cold, inv, d)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-cold +warm):\n%s", name, diff)
		}
		if cmp.Equal(before, got) {
			t.Errorf("%s: the change does not change the answer, the case is weak", name)
		}
	}
}
