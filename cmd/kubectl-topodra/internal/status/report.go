// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Sizes are the numbers of GPUs of the jobs that are asked about.
var Sizes = [...]int{2, 4, 8}

// Report is the state of a cluster.
type Report struct {
	Nodes []Node
	Total Total
	// Claims hold something, by namespace, name and node.
	Claims []Claim
}

// Node is the state of one node.
type Node struct {
	*livestate.Node
	Counts Counts
	// Offers are by Sizes.
	Offers [len(Sizes)]Offer
}

// Counts are numbers of GPUs. Each published GPU is one of idle, shared, taken and blocked; partitioned ones are MIG only.
type Counts struct {
	// GPUs are published as whole devices.
	GPUs int
	// Idle are usable and held by nobody.
	Idle int
	// Shared are held in part, Taken entirely.
	Shared, Taken int
	// Blocked are kept away from new claims by a taint, and held by nobody.
	Blocked int
	// Parts are MIG devices, HeldParts those of them that a claim holds.
	Parts, HeldParts int
}

// Offer is what a job of one size could get.
type Offer struct {
	// Now is on the idle GPUs, Empty if all usable GPUs were idle; nil where there are too few.
	Now, Empty *fit.Offer
	// Jobs is how many jobs of the size fit on the idle GPUs.
	Jobs int
}

// Total is the state of all nodes.
type Total struct {
	Counts Counts
	Offers [len(Sizes)]TotalOffer
}

// TotalOffer is what jobs of one size could get anywhere.
type TotalOffer struct {
	// Now and Empty are the best of all nodes; the zero value when no node has enough.
	Now, Empty quality.Quality
	// NowNode has the best set now; "" without one.
	NowNode string
	// Jobs is how many fit now, EmptyJobs how many would fit if all were idle.
	Jobs, EmptyJobs int
}

// Claim is what one claim holds on one node.
type Claim struct {
	Namespace, Name string
	Pods            []string
	Node            string
	Holds           []Hold
}

// Hold is what a claim holds alike of several GPUs.
type Hold struct {
	GPUs topology.Mask
	livestate.Holder
}

// New sums up the nodes.
func New(ctx context.Context, planner *fit.Planner, live []livestate.Node) (*Report, error) {
	r := &Report{}
	for i := range live {
		n := Node{Node: &live[i], Counts: count(&live[i])}
		usable := fit.Usable(n.Node)
		idle := n.Idle() & usable
		for s, size := range Sizes {
			var err error
			o := &n.Offers[s]
			if o.Now, err = planner.Best(ctx, n.Node, idle, size); err != nil {
				return nil, err
			}
			if o.Empty, err = planner.Best(ctx, n.Node, usable, size); err != nil {
				return nil, err
			}
			o.Jobs = idle.Count() / size
			r.Total.Offers[s].add(n.Name, o, usable.Count()/size)
		}
		r.Total.Counts.add(n.Counts)
		r.Nodes = append(r.Nodes, n)
		r.Claims = append(r.Claims, claimsOf(n.Node)...)
	}
	slices.SortStableFunc(r.Claims, func(a, b Claim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Node, b.Node))
	})
	return r, nil
}

// Idle are the node's GPUs that are usable and held by nobody. It narrows livestate's answer, which knows no taints.
func (n *Node) Idle() topology.Mask { return n.Node.Idle() & fit.Usable(n.Node) }

func count(n *livestate.Node) Counts {
	var c Counts
	for i := range n.GPUs {
		g := &n.GPUs[i]
		c.Parts += len(g.Parts)
		c.HeldParts += heldParts(g)
		if g.Device == "" {
			continue
		}
		c.GPUs++
		switch {
		case g.Idle() && g.Blocked:
			c.Blocked++
		case g.Idle():
			c.Idle++
		case slices.ContainsFunc(g.Holders, func(h livestate.Holder) bool { return fit.Holds(h) && h.Whole }):
			c.Taken++
		default:
			c.Shared++
		}
	}
	return c
}

func heldParts(g *livestate.GPU) int {
	held := map[string]bool{}
	for _, h := range g.Holders {
		if h.Device != "" && fit.Holds(h) {
			held[h.Device] = true
		}
	}
	return len(held)
}

func (c *Counts) add(o Counts) {
	c.GPUs += o.GPUs
	c.Idle += o.Idle
	c.Shared += o.Shared
	c.Taken += o.Taken
	c.Blocked += o.Blocked
	c.Parts += o.Parts
	c.HeldParts += o.HeldParts
}

func (t *TotalOffer) add(node string, o *Offer, emptyJobs int) {
	t.Jobs += o.Jobs
	t.EmptyJobs += emptyJobs
	if o.Now != nil && (t.NowNode == "" || quality.Compare(o.Now.Quality, t.Now) > 0) {
		t.Now, t.NowNode = o.Now.Quality, node
	}
	if o.Empty != nil && (t.Empty == quality.Quality{} || quality.Compare(o.Empty.Quality, t.Empty) > 0) {
		t.Empty = o.Empty.Quality
	}
}

// claimsOf turns holders by GPU into GPUs by claim.
func claimsOf(n *livestate.Node) []Claim {
	var claims []Claim
	for i := range n.GPUs {
		for _, h := range n.GPUs[i].Holders {
			at := slices.IndexFunc(claims, func(c Claim) bool { return c.Namespace == h.Namespace && c.Name == h.Claim })
			if at < 0 {
				at = len(claims)
				claims = append(claims, Claim{Namespace: h.Namespace, Name: h.Claim, Pods: h.Pods, Node: n.Name})
			}
			claims[at].hold(i, h)
		}
	}
	return claims
}

// hold adds a GPU to those of which the claim has as much.
func (c *Claim) hold(gpu int, h livestate.Holder) {
	alike := func(o Hold) bool {
		return h.Device == "" && o.Device == "" && o.Whole == h.Whole && o.Admin == h.Admin && (h.Whole || o.Uses == h.Uses) && !o.GPUs.Has(gpu)
	}
	if at := slices.IndexFunc(c.Holds, alike); at >= 0 {
		c.Holds[at].GPUs = c.Holds[at].GPUs.With(gpu)
		return
	}
	c.Holds = append(c.Holds, Hold{GPUs: topology.MaskOf(gpu), Holder: h})
}
