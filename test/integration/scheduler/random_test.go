// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// world is what brute force knows about the cluster: machines and idle GPUs.
type world struct {
	nodes      []string
	references map[string]*topotest.Reference
	idle       map[string]topology.Mask
}

func newWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	w := &world{nodes: nodes, references: map[string]*topotest.Reference{}, idle: map[string]topology.Mask{}}
	for _, node := range nodes {
		recorded, err := topotest.Load(machines[node])
		if err != nil {
			t.Fatal(err)
		}
		w.references[node] = topotest.NewReference(recorded.Machine)
		w.idle[node] = topology.FullMask(recorded.Machine.N())
	}
	return w
}

// best returns the best quality of k idle GPUs on any node, and false if no node has so many.
func (w *world) best(k int) (best topotest.Quality, ok bool) {
	for _, node := range w.nodes {
		if w.idle[node].Count() < k {
			continue
		}
		for _, set := range topotest.Subsets(w.idle[node], k) {
			q := w.references[node].Quality(set)
			if nvlink := q.Rings > 0; !ok || nvlink && best.Rings == 0 || nvlink == (best.Rings > 0) && q.MBps > best.MBps {
				best, ok = q, true
			}
		}
	}
	return best, ok
}

// A random stream of jobs comes and goes. Each gets a set of the best tier that the cluster has at its moment, and on its node
// the very set that brute force ranks first.
func TestRandomJobsAgainstBruteForce(t *testing.T) {
	const jobs = 60
	s := bed.Scene(t)
	random := rand.New(rand.NewPCG(20, 26)) // always the same stream
	w := newWorld(t, cube, pairs, weave, pcie, degraded)
	running := map[string]testbed.Allocation{}
	var names []string
	placed := 0
	for n := range jobs {
		for len(names) > 0 && random.IntN(100) < 45 {
			at := random.IntN(len(names))
			ended := names[at]
			names = append(names[:at], names[at+1:]...)
			s.Finish(ended)
			w.idle[running[ended].Node] |= running[ended].GPUs
		}
		k := []int{1, 1, 2, 2, 2, 3, 4, 4, 5, 8}[random.IntN(10)]
		best, ok := w.best(k)
		if !ok {
			continue
		}
		name := fmt.Sprintf("job-%02d", n)
		a := s.Place(job(name, int64(k), nil), w.nodes...)
		reference := w.references[a.Node]
		got := reference.Quality(a.GPUs)
		if k > 1 && ((got.Rings > 0) != (best.Rings > 0) || int64(got.MBps)*100 < int64(best.MBps)*90) {
			t.Errorf("%s (%d GPUs) got %s with %+v; the best of the cluster is %+v", name, k, a, got, best)
		}
		if first := reference.Rank(w.idle[a.Node], k, k > 1)[0].GPUs; a.GPUs != first {
			t.Errorf("%s (%d GPUs, idle %s) got %s; brute force ranks %s first", name, k, w.idle[a.Node], a, first)
		}
		w.idle[a.Node] &^= a.GPUs
		running[name] = a
		names = append(names, name)
		placed++
	}
	if placed < jobs/2 {
		t.Errorf("only %d of %d jobs found room: the stream tests little", placed, jobs)
	}
}
