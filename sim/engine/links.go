// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// links are the links of a job: those of its slowest pod, relative to the best its
// node could give.
type links struct {
	// got is the bandwidth of the pod; 0 for pods of fewer than two GPUs.
	got topology.MBps
	// bestNode is the best of the same node when it is empty, bestCluster that of
	// the best node for the demand.
	bestNode, bestCluster topology.MBps
	// all says that the pod took all GPUs of its node, so that there was no choice
	// on the node.
	all bool
}

// node and cluster are the qualities relative to the two optima, 0 to 1.
func (l links) node() float64    { return ratio(l.got, l.bestNode) }
func (l links) cluster() float64 { return ratio(l.got, l.bestCluster) }

func ratio(got, best topology.MBps) float64 {
	if best == 0 {
		return 1
	}
	return float64(got) / float64(best)
}

// linkMeter measures links.
type linkMeter struct {
	cluster *model.Cluster
	best    *model.Best
	known   map[model.Demand]topology.MBps
}

func newLinkMeter(c *model.Cluster, best *model.Best) *linkMeter {
	return &linkMeter{c, best, map[model.Demand]topology.MBps{}}
}

// measure returns the links of the pod that has the least of what its node could
// give, the first one among equals.
func (m *linkMeter) measure(j *model.Job, places []model.Place) links {
	if j.Demand.GPUs < 2 {
		return links{}
	}
	best, ok := m.known[j.Demand]
	if !ok {
		best = m.best.InCluster(m.cluster, j.Demand).MBps
		m.known[j.Demand] = best
	}
	var worst links
	for i, p := range places {
		class := m.cluster.Nodes[p.Node].Class
		l := links{
			got: class.Of(p.GPUs).MBps, bestNode: m.best.Of(class, j.Demand.GPUs).MBps, bestCluster: best,
			all: j.Demand.GPUs == class.N(),
		}
		if i == 0 || l.node() < worst.node() {
			worst = l
		}
	}
	return worst
}
