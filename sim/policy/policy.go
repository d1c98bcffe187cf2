// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// Policy decides where one pod goes.
type Policy interface {
	// Name identifies the policy in results.
	Name() string
	// Place chooses a node and GPUs for a pod; false when no node has room. It does
	// not change the cluster. An error is a fault of the policy.
	Place(c *model.Cluster, d model.Demand) (model.Place, bool, error)
	// Forget drops what was remembered about single nodes, so that the next Place
	// looks at every node again. Its answers do not change.
	Forget()
}

// Setup is what policies may know beforehand.
type Setup struct {
	// Seed of random choices.
	Seed uint64
	// Typical are the demands to expect, for policies that ask for them.
	Typical []model.Typical
}

// kind is an entry of the list of policies.
type kind struct {
	name, about string
	make        func(Setup) (Policy, error)
}

// kinds are the policies that [New] knows, in the order of reports.
var kinds = []kind{
	{"topodra", "tier of Q, then the fuller node, then what is left for others", func(Setup) (Policy, error) { return NewTopoDRA("topodra", TopoDRAOptions{}) }},
	{"hami", "HAMi topology-aware: largest sum of pair scores, on the fuller node", func(Setup) (Policy, error) { return newHAMi(), nil }},
	{"gpuallocator", "go-gpuallocator best effort: best partition of the free GPUs, on the fuller node", func(Setup) (Policy, error) { return newGPUAllocator(), nil }},
	{"koordinator", "Koordinator partitions with bin packing, on the fuller node", func(Setup) (Policy, error) { return newKoordinator(), nil }},
	{"mapa", "MAPA Preserve, on the fuller node", func(Setup) (Policy, error) { return newMAPA(), nil }},
	{"fgd", "FGD: least growth of fragmentation", func(s Setup) (Policy, error) { return newFGD(s.Typical), nil }},
	{"first-fit-most", "the lowest free GPUs, on the fuller node", func(Setup) (Policy, error) { return newFirstFit("first-fit-most", mostAllocated), nil }},
	{"first-fit", "in-tree: the lowest free GPUs, on the emptier node", func(Setup) (Policy, error) { return newFirstFit("first-fit", leastAllocated), nil }},
	{"random", "any GPUs of any node", func(s Setup) (Policy, error) { return newRandom(s.Seed), nil }},
}

// Names returns the names of all policies, in the order of reports.
func Names() []string {
	out := make([]string, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return out
}

// About says in a few words what a policy does; "" for unknown names.
func About(name string) string {
	for _, k := range kinds {
		if k.name == name {
			return k.about
		}
	}
	return ""
}

// New makes a policy by its name.
func New(name string, setup Setup) (Policy, error) {
	for _, k := range kinds {
		if k.name == name {
			return k.make(setup)
		}
	}
	return nil, fmt.Errorf("making policy %q: there is none, known are %s", name, strings.Join(Names(), ", "))
}

// offer is what a policy would take of one node.
type offer struct {
	node int
	gpus topology.Mask
	// allocated is how full the node is with the pod, in per mille.
	allocated int64
	// score is for policies that rank nodes by a number of their own.
	score int64
	// quality and deltaV are for TopoDRA.
	quality quality.Quality
	deltaV  int64
}

// picker chooses GPUs of a node for a demand that needs some; false when it has no
// room. Its answer depends on the node's state and the demand alone.
type picker func(n *model.Node, d model.Demand) (offer, bool, error)

// chooser asks a picker about every node and remembers its answers until a node
// changes.
type chooser struct {
	pick  picker
	cache map[model.Demand][]answer
	out   []offer
}

type answer struct {
	version uint64 // of the node, plus 1; 0 is nothing known
	ok      bool
	offer   offer
}

func newChooser(pick picker) chooser {
	return chooser{pick: pick, cache: map[model.Demand][]answer{}}
}

// Forget drops what is remembered.
func (f *chooser) Forget() { clear(f.cache) }

// offers returns what the nodes have for the demand, in their order. The slice is
// valid until the next call.
func (f *chooser) offers(c *model.Cluster, d model.Demand) ([]offer, error) {
	known := f.cache[d]
	if known == nil {
		known = make([]answer, len(c.Nodes))
		f.cache[d] = known
	}
	f.out = f.out[:0]
	for i, n := range c.Nodes {
		a := &known[i]
		if a.version != n.Version+1 {
			a.version = n.Version + 1
			a.ok = false
			if n.Admits(d) && n.Fitting(d).Count() >= d.GPUs {
				var err error
				if a.offer, a.ok, err = f.pick(n, d); err != nil {
					return nil, fmt.Errorf("choosing GPUs of node %q: %w", n.Name, err)
				}
				a.offer.node = i
			}
		}
		if a.ok {
			f.out = append(f.out, a.offer)
		}
	}
	return f.out, nil
}

// hostOffer is the offer for a pod without GPUs: how full the node's CPU gets.
func hostOffer(n *model.Node, d model.Demand) offer {
	free, limited := n.FreeCPU()
	if !limited {
		return offer{}
	}
	return offer{allocated: 1000 * (n.CPUMilli - free + d.CPUMilli) / n.CPUMilli}
}

// withAllocated completes an offer of GPUs.
func withAllocated(n *model.Node, d model.Demand, gpus topology.Mask) offer {
	return offer{gpus: gpus, allocated: placement.AllocatedPermille(
		n.Inventory(), d.Placement(), placement.Set{GPUs: gpus, PerRequest: []topology.Mask{gpus}})}
}

// setRule chooses GPUs among those that fit; fitting holds at least d.GPUs.
type setRule func(n *model.Node, d model.Demand, fitting topology.Mask) topology.Mask

// pickBy makes a picker of a rule for sets.
func pickBy(rule setRule) picker {
	return func(n *model.Node, d model.Demand) (offer, bool, error) {
		if d.GPUs == 0 {
			return hostOffer(n, d), true, nil
		}
		return withAllocated(n, d, rule(n, d, n.Fitting(d))), true, nil
	}
}

// nodeRule compares two offers, the better one smaller.
type nodeRule func(a, b offer) int

// mostAllocated prefers the fuller node: Kubernetes' scoring strategy of that name,
// on GPUs.
func mostAllocated(a, b offer) int { return cmp.Compare(b.allocated, a.allocated) }

// leastAllocated prefers the emptier node: Kubernetes' default.
func leastAllocated(a, b offer) int { return cmp.Compare(a.allocated, b.allocated) }

// twoStep is a policy that chooses GPUs on each node by itself and then the node.
type twoStep struct {
	chooser
	name string
	node nodeRule
}

func newTwoStep(name string, pick picker, node nodeRule) *twoStep {
	return &twoStep{newChooser(pick), name, node}
}

// Name returns the name.
func (p *twoStep) Name() string { return p.name }

// Place takes the best offer.
func (p *twoStep) Place(c *model.Cluster, d model.Demand) (model.Place, bool, error) {
	offers, err := p.offers(c, d)
	if err != nil || len(offers) == 0 {
		return model.Place{}, false, err
	}
	best := slices.MinFunc(offers, p.node) // the first one among equals
	return model.Place{Node: best.node, GPUs: best.gpus}, true, nil
}

// lowest returns the count lowest positions of a set.
func lowest(of topology.Mask, count int) topology.Mask {
	var out topology.Mask
	for g := range of.All() {
		if count--; count < 0 {
			break
		}
		out = out.With(g)
	}
	return out
}

// eachSet yields all sets of count members in lexicographic order of the members,
// until yield says stop.
func eachSet(of topology.Mask, count int, yield func(topology.Mask) bool) {
	members := of.Positions()
	var walk func(from, missing int, chosen topology.Mask) bool
	walk = func(from, missing int, chosen topology.Mask) bool {
		if missing == 0 {
			return yield(chosen)
		}
		for i := from; i+missing <= len(members); i++ {
			if !walk(i+1, missing-1, chosen.With(members[i])) {
				return false
			}
		}
		return true
	}
	walk(0, count, 0)
}
