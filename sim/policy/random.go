// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// random takes any node with room, and any of its GPUs that fit, all alike.
type random struct {
	chooser
	rng *rand.Rand
}

// newRandom makes a policy whose choices follow from the seed.
func newRandom(seed uint64) *random {
	all := func(n *model.Node, d model.Demand) (offer, bool, error) { return offer{gpus: n.Fitting(d)}, true, nil }
	return &random{newChooser(all), rand.New(rand.NewPCG(seed, 0x72616e646f6d))}
}

// Name returns "random".
func (p *random) Name() string { return "random" }

// Place draws a node and then GPUs.
func (p *random) Place(c *model.Cluster, d model.Demand) (model.Place, bool, error) {
	offers, err := p.offers(c, d)
	if err != nil || len(offers) == 0 {
		return model.Place{}, false, err
	}
	o := offers[p.rng.IntN(len(offers))]
	fitting := o.gpus.Positions()
	var gpus topology.Mask
	for k := range d.GPUs {
		i := k + p.rng.IntN(len(fitting)-k)
		fitting[k], fitting[i] = fitting[i], fitting[k]
		gpus = gpus.With(fitting[k])
	}
	return model.Place{Node: o.node, GPUs: gpus}, true, nil
}
