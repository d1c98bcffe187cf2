// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
)

// gauge integrates the state of the cluster over a window of virtual time.
type gauge struct {
	cluster  *model.Cluster
	typical  []model.Typical
	from, to model.Millis

	at       model.Millis
	taken    float64 // GPU-seconds in per mille, within the window
	stranded float64
	byNode   []float64 // fragmentation
	stale    []bool
}

func newGauge(c *model.Cluster, typical []model.Typical, from, to model.Millis) *gauge {
	g := &gauge{cluster: c, typical: typical, from: from, to: to, byNode: make([]float64, len(c.Nodes)), stale: make([]bool, len(c.Nodes))}
	for i := range g.stale {
		g.stale[i] = true
	}
	return g
}

// touch notes that the nodes have changed.
func (g *gauge) touch(places []model.Place) {
	for _, p := range places {
		g.stale[p.Node] = true
	}
}

// advance adds the time up to now, during which nothing has changed.
func (g *gauge) advance(now model.Millis) {
	from, to := max(g.at, g.from), min(now, g.to)
	g.at = now
	if to <= from {
		return
	}
	span := (to - from).Seconds()
	g.taken += span * float64(g.cluster.GPUs()*model.WholeMilli-g.cluster.FreeMilli())
	if len(g.typical) > 0 {
		g.stranded += span * g.fragmentation()
	}
}

// fragmentation returns that of the whole cluster, in per mille of a GPU. It is
// summed up anew each time, in the order of the nodes, so that rounding does not
// depend on what happened before.
func (g *gauge) fragmentation() float64 {
	sum := 0.0
	for i, n := range g.cluster.Nodes {
		if g.stale[i] {
			r := n.Remains()
			g.byNode[i] = r.Fragmentation(g.typical)
			g.stale[i] = false
		}
		sum += g.byNode[i]
	}
	return sum
}

// rates returns the means over the window, as parts of all GPUs.
func (g *gauge) rates() (taken, stranded float64) {
	whole := (g.to - g.from).Seconds() * float64(g.cluster.GPUs()*model.WholeMilli)
	if whole <= 0 {
		return 0, 0
	}
	return g.taken / whole, g.stranded / whole
}

// sampleEvery is how many decisions pass between two that are timed.
const sampleEvery = 64

// timer measures how long decisions that find room take when nothing is remembered
// about single nodes. Only some are measured, because forgetting makes a run slow.
type timer struct {
	calls, samples int
	spent          time.Duration
}

// place asks the policy.
func (t *timer) place(p policy.Policy, c *model.Cluster, d model.Demand) (model.Place, bool, error) {
	t.calls++
	if t.calls%sampleEvery != 0 {
		return p.Place(c, d)
	}
	p.Forget()
	start := time.Now()
	place, ok, err := p.Place(c, d)
	if spent := time.Since(start); ok {
		t.spent += spent
		t.samples++
	}
	return place, ok, err
}

// mean returns the mean time of a decision in microseconds, and over how many.
func (t *timer) mean() (micros float64, decisions int) {
	if t.samples == 0 {
		return 0, 0
	}
	return float64(t.spent.Nanoseconds()) / 1000 / float64(t.samples), t.samples
}
