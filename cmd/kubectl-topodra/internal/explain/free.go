// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
)

// Release is claims of one node that would have to be freed for the pod.
type Release struct {
	Node string `json:"node"`
	// Claims in the order of namespaces and names.
	Claims []HeldClaim `json:"claims"`
	// Gives is the set that the pod could get then; null if it wants MIG devices only.
	Gives *Set `json:"gives"`
	// Smallest is false when the search was cut short: then no claim of the list can be left out, but another list may be shorter.
	Smallest bool `json:"smallest"`
}

// HeldClaim is a claim that holds GPUs.
type HeldClaim struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Pods      []string `json:"pods"`
	GPUs      []int    `json:"gpus"`

	memoryMiB int64
}

// freeRule says how the claims to free are chosen.
const freeRule = "the fewest claims of one node, then the fewest pods, then the least GPU memory, then the first names"

// Limits of the search, in questions to the planner.
const (
	questionsPerNode = 4000
	questionsInAll   = 20000
)

// search looks for the claims to free.
type search struct {
	x          *explainer
	candidates []candidate
	questions  int
	// perNode and inAll bound the questions.
	perNode, inAll int
}

// candidate is a node that could serve the pod.
type candidate struct {
	node    *livestate.Node
	demands []*fit.Demand
}

func newSearch(x *explainer) *search {
	return &search{x: x, perNode: questionsPerNode, inAll: questionsInAll}
}

func (s *search) add(n *livestate.Node, demands []*fit.Demand) {
	s.candidates = append(s.candidates, candidate{node: n, demands: demands})
}

// run fills in what would have to be freed.
func (s *search) run(ctx context.Context, p *Pending) error {
	if slices.ContainsFunc(p.Nodes, func(r Refusal) bool { return r.Fits }) {
		p.FreeText = "nothing has to be freed as far as can be seen here"
		return nil
	}
	possible, skipped := 0, 0
	for _, c := range s.candidates {
		claims := s.claimsOn(c.node)
		gives, ok, err := s.ask(ctx, &c, claims, all(len(claims)))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		possible++
		if s.questions >= s.inAll {
			skipped++
			continue
		}
		release, err := s.smallest(ctx, &c, claims, gives)
		if err != nil {
			return err
		}
		p.Free = append(p.Free, *release)
	}
	slices.SortStableFunc(p.Free, compareReleases)
	p.Free = p.Free[:min(len(p.Free), manyReleases)]
	if possible == 0 {
		p.FreeText = "freeing GPUs would not help: no node that may have the pod could serve it even if it were empty"
		return nil
	}
	p.FreeText = "chosen are " + freeRule
	if possible > len(p.Free) {
		p.FreeText += fmt.Sprintf("; %d of %d nodes are shown", len(p.Free), possible)
	}
	if skipped > 0 {
		p.FreeText += fmt.Sprintf("; %d nodes were not searched", skipped)
	}
	return nil
}

// subset is claims by index.
type subset []bool

func all(n int) subset {
	s := make(subset, n)
	for i := range s {
		s[i] = true
	}
	return s
}

// claimsOn are the claims of others that hold something on a node, by namespace and name.
func (s *search) claimsOn(n *livestate.Node) []HeldClaim {
	var claims []HeldClaim
	for i := range n.GPUs {
		for _, h := range n.GPUs[i].Holders {
			if h.Admin || s.x.own(h) {
				continue
			}
			at := slices.IndexFunc(claims, func(c HeldClaim) bool { return c.Namespace == h.Namespace && c.Name == h.Claim })
			if at < 0 {
				at = len(claims)
				claims = append(claims, HeldClaim{Namespace: h.Namespace, Name: h.Claim, Pods: append([]string{}, h.Pods...), GPUs: []int{}})
			}
			claims[at].memoryMiB += h.Uses.MemoryMiB
			if !slices.Contains(claims[at].GPUs, i) {
				claims[at].GPUs = append(claims[at].GPUs, i)
			}
		}
	}
	slices.SortFunc(claims, func(a, b HeldClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return claims
}

// ask says whether the node serves the pod when the claims of the subset are gone, and with what.
func (s *search) ask(ctx context.Context, c *candidate, claims []HeldClaim, gone subset) (*Set, bool, error) {
	counts := func(h livestate.Holder) bool {
		at := slices.IndexFunc(claims, func(c HeldClaim) bool { return c.Namespace == h.Namespace && c.Name == h.Claim })
		return at < 0 || !gone[at]
	}
	for _, d := range c.demands {
		s.questions++
		answer, err := d.Serve(ctx, counts)
		if err != nil {
			return nil, false, err
		}
		if answer.Served {
			return setOfOffer(c.node.Name, answer.Offer), true, nil
		}
	}
	return nil, false, nil
}

// smallest finds the smallest subset whose absence lets the node serve the pod. Freeing more never hurts, so sizes are tried from
// below; when that takes too long, claims are kept one after the other, those with the most memory first, as long as it works.
func (s *search) smallest(ctx context.Context, c *candidate, claims []HeldClaim, gives *Set) (*Release, error) {
	limit := min(s.questions+s.perNode, s.inAll)
	for size := 1; size < len(claims); size++ {
		var best *Release
		err := eachSubset(len(claims), size, func(gone subset) (bool, error) {
			if s.questions >= limit {
				return false, nil
			}
			set, ok, err := s.ask(ctx, c, claims, gone)
			if err != nil || !ok {
				return true, err
			}
			r := release(c.node.Name, claims, gone, set, true)
			if best == nil || compareReleases(*r, *best) < 0 {
				best = r
			}
			return true, nil
		})
		switch {
		case err != nil:
			return nil, err
		case s.questions >= limit:
			return s.shrink(ctx, c, claims, gives)
		case best != nil:
			return best, nil
		}
	}
	return release(c.node.Name, claims, all(len(claims)), gives, true), nil
}

// shrink keeps claims one after the other as long as the pod still fits.
func (s *search) shrink(ctx context.Context, c *candidate, claims []HeldClaim, gives *Set) (*Release, error) {
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(claims[b].Pods), len(claims[a].Pods)), cmp.Compare(claims[b].memoryMiB, claims[a].memoryMiB))
	})
	gone := all(len(claims))
	for _, i := range order {
		gone[i] = false
		set, ok, err := s.ask(ctx, c, claims, gone)
		if err != nil {
			return nil, err
		}
		if gone[i] = !ok; ok {
			gives = set
		}
	}
	return release(c.node.Name, claims, gone, gives, false), nil
}

func release(node string, claims []HeldClaim, gone subset, gives *Set, smallest bool) *Release {
	r := &Release{Node: node, Gives: gives, Smallest: smallest, Claims: []HeldClaim{}}
	for i := range claims {
		if gone[i] {
			r.Claims = append(r.Claims, claims[i])
		}
	}
	return r
}

// eachSubset visits the subsets of one size in lexical order until visit says no.
func eachSubset(n, size int, visit func(subset) (bool, error)) error {
	index := make([]int, size)
	for i := range index {
		index[i] = i
	}
	for {
		gone := make(subset, n)
		for _, i := range index {
			gone[i] = true
		}
		if more, err := visit(gone); err != nil || !more {
			return err
		}
		i := size - 1
		for i >= 0 && index[i] == n-size+i {
			i--
		}
		if i < 0 {
			return nil
		}
		index[i]++
		for k := i + 1; k < size; k++ {
			index[k] = index[k-1] + 1
		}
	}
}

// compareReleases orders by what is given up.
func compareReleases(a, b Release) int {
	pods := func(r Release) (n int) {
		for i := range r.Claims {
			n += len(r.Claims[i].Pods)
		}
		return n
	}
	memory := func(r Release) (n int64) {
		for i := range r.Claims {
			n += r.Claims[i].memoryMiB
		}
		return n
	}
	return cmp.Or(
		cmp.Compare(len(a.Claims), len(b.Claims)), cmp.Compare(pods(a), pods(b)), cmp.Compare(memory(a), memory(b)),
		slices.CompareFunc(a.Claims, b.Claims, func(a, b HeldClaim) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		}),
		strings.Compare(a.Node, b.Node),
	)
}

// gpuList prints GPUs of a claim.
func gpuList(gpus []int) string { return strings.Trim(topology.MaskOf(gpus...).String(), "{}") }
