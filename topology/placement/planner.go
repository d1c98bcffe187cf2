// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/topodra/topodra/topology"
)

// maxRequests bounds the requests of one demand; a claim has at most 32 results.
const maxRequests = 256

// Planner ranks sets of GPUs. Create one with [New] and share it: it remembers
// answers.
type Planner struct {
	opts Options
	memo *memo
}

// New returns a planner, or an error that says which option is wrong.
func New(opts Options) (*Planner, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Planner{opts: opts, memo: newMemo(opts.MemoSize)}, nil
}

// TierPercent returns the width of a tier, for [ScoreNodes].
func (p *Planner) TierPercent() int { return p.opts.TierPercent }

// Plan ranks the sets of GPUs of one machine that serve the demand. A demand that
// cannot be served is no error: Result.Reason says why. Errors are malformed
// arguments and the error of ctx.
func (p *Planner) Plan(ctx context.Context, inv Inventory, d Demand) (Result, error) {
	if err := validate(inv, d); err != nil {
		return Result{}, fmt.Errorf("planning GPUs: %w", err)
	}
	pr := newProblem(&p.opts, inv, d)
	key := pr.key()
	if r, ok := p.memo.get(key); ok {
		return r.clone(), nil
	}
	r, err := pr.solve(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("planning GPUs: %w", err)
	}
	p.memo.put(key, r)
	return r.clone(), nil
}

// clone returns a copy that shares nothing with r.
func (r Result) clone() Result {
	sets := make([]Set, len(r.Sets))
	for i := range r.Sets {
		sets[i] = r.Sets[i].clone()
	}
	if len(sets) == 0 {
		sets = nil
	}
	r.Sets = sets
	if r.BestNow != nil {
		s := r.BestNow.clone()
		r.BestNow = &s
	}
	if r.BestWhenFree != nil {
		s := r.BestWhenFree.clone()
		r.BestWhenFree = &s
	}
	return r
}

func (s Set) clone() Set {
	s.PerRequest = slices.Clone(s.PerRequest)
	return s
}

func validate(inv Inventory, d Demand) error {
	if inv.Class == nil {
		return errors.New("the inventory has no topology class")
	}
	n := inv.Class.N()
	all := topology.FullMask(n)
	if len(inv.Free) != n || len(inv.Total) != n {
		return fmt.Errorf("inventory: %d GPUs, but %d free and %d total capacities", n, len(inv.Free), len(inv.Total))
	}
	if !inv.Present.SubsetOf(all) || !inv.Idle.SubsetOf(inv.Present) {
		return fmt.Errorf("inventory: %d GPUs, present %s, idle %s: idle GPUs must be present ones", n, inv.Present, inv.Idle)
	}
	if len(d.Requests) == 0 || len(d.Requests) > maxRequests {
		return fmt.Errorf("demand: %d requests, expected 1 to %d", len(d.Requests), maxRequests)
	}
	if !d.Held.SubsetOf(all) {
		return fmt.Errorf("demand: held GPUs %s are not all on a machine with %d GPUs", d.Held, n)
	}
	for i, r := range d.Requests {
		if err := r.validate(); err != nil {
			return fmt.Errorf("demand: request %d (%q) %w", i, r.Name, err)
		}
	}
	for i, c := range d.Constraints {
		if err := c.validate(n, len(d.Requests)); err != nil {
			return fmt.Errorf("demand: constraint %d %w", i, err)
		}
	}
	return nil
}

func (r Request) validate() error {
	if r.Count < 1 {
		return fmt.Errorf("asks for %d GPUs", r.Count)
	}
	if r.Use.MemoryMiB < 0 || r.Use.CoresPercent < 0 || r.Use.Slots < 0 {
		return errors.New("asks for a negative part of a GPU")
	}
	return nil
}

func (c Constraint) validate(gpus, requests int) error {
	if len(c.Values) != gpus {
		return fmt.Errorf("has %d values for %d GPUs", len(c.Values), gpus)
	}
	if c.Kind != Match && c.Kind != Distinct {
		return fmt.Errorf("has the unknown kind %d", c.Kind)
	}
	for _, r := range c.Requests {
		if r < 0 || r >= requests {
			return fmt.Errorf("names request %d of %d", r, requests)
		}
	}
	return nil
}
