// SPDX-License-Identifier: Apache-2.0

package model

import (
	"sync"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Best remembers the best quality that sets of GPUs can have on empty nodes, found
// by looking at every set. It may be used from any number of goroutines.
type Best struct {
	mu    sync.Mutex
	known map[bestKey]quality.Quality
}

type bestKey struct {
	class *quality.Class
	gpus  int
}

// NewBest returns an empty memory.
func NewBest() *Best { return &Best{known: map[bestKey]quality.Quality{}} }

// Of returns the best quality of k GPUs of an empty node of the class; zero when it
// has fewer, or more than topology.MaxExactGPUs GPUs.
func (b *Best) Of(class *quality.Class, k int) quality.Quality {
	if k < 2 || k > class.N() || class.N() > topology.MaxExactGPUs {
		return quality.Quality{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := bestKey{class, k}
	if q, ok := b.known[key]; ok {
		return q
	}
	var best quality.Quality
	for set := topology.Mask(1); set <= topology.FullMask(class.N()); set++ {
		if set.Count() != k {
			continue
		}
		if q := class.Of(set); quality.Compare(q, best) > 0 {
			best = q
		}
	}
	b.known[key] = best
	return best
}

// InCluster returns the best quality that a pod could have on any empty node of the
// cluster that suits its demand.
func (b *Best) InCluster(c *Cluster, d Demand) quality.Quality {
	var best quality.Quality
	seen := map[*quality.Class]bool{}
	for _, n := range c.Nodes {
		if seen[n.Class] || !n.Suits(d) {
			continue
		}
		seen[n.Class] = true
		if q := b.Of(n.Class, d.GPUs); quality.Compare(q, best) > 0 {
			best = q
		}
	}
	return best
}
