// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

func classOf(t *testing.T, name string) *quality.Class {
	t.Helper()
	r, err := topotest.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := quality.NewClass(r.Machine, quality.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func cluster(t *testing.T, specs ...model.Spec) *model.Cluster {
	t.Helper()
	c, err := model.NewCluster(specs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func whole(gpus int) model.Demand {
	return model.Demand{GPUs: gpus, MemoryMilli: model.WholeMilli, CoresPercent: model.WholeCores}
}

func TestTakeAndRelease(t *testing.T) {
	t.Parallel()
	c := cluster(t, model.Spec{Name: "a", Model: "V100", Class: classOf(t, "dgx1v_8xv100"), CPUMilli: 10_000, HostMiB: 1000})
	n := c.Nodes[0]
	share := model.Demand{GPUs: 1, MemoryMilli: 300, CoresPercent: 50, CPUMilli: 4000}
	held := []model.Held{}
	take := func(d model.Demand, gpus ...int) error {
		p := model.Place{Node: 0, GPUs: topology.MaskOf(gpus...)}
		err := c.Take(d, p)
		if err == nil {
			held = append(held, model.Held{Demand: d, Place: p})
		}
		if err := c.Check(held); err != nil {
			t.Fatal(err)
		}
		return err
	}
	for _, step := range []struct {
		demand model.Demand
		gpus   []int
		want   string
	}{
		{share, []int{2}, ""},
		{share, []int{2}, ""},
		{share, []int{2}, "do not suit"}, // the CPU is used up first
		{model.Demand{GPUs: 1, MemoryMilli: 300, CoresPercent: 1}, []int{2}, "only {0,1,3-7} have room"},
		{model.Demand{GPUs: 1, MemoryMilli: 400}, []int{2}, ""},
		{whole(2), []int{2, 3}, "only {0,1,3-7} have room"},
		{whole(2), []int{3}, "the demand is for 2"},
		{whole(2), []int{3, 9}, "have room"},
		{model.Demand{GPUs: 1, MemoryMilli: 1000, CoresPercent: 100, Models: "T4|P100"}, []int{0}, "do not suit"},
		{model.Demand{GPUs: 1, MemoryMilli: 1000, CoresPercent: 100, Models: "T4|V100"}, []int{0}, ""},
		{model.Demand{HostMiB: 1001}, nil, "do not suit"},
	} {
		err := take(step.demand, step.gpus...)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("taking %v for %+v: %v, want %q", step.gpus, step.demand, err, step.want)
		}
	}
	if n.FreeMilli(2) != 0 || n.Idle() != topology.MaskOf(1, 3, 4, 5, 6, 7) || c.FreeMilli() != 6000 {
		t.Errorf("GPU 2 has %d left, idle %s, free %d", n.FreeMilli(2), n.Idle(), c.FreeMilli())
	}
	for _, h := range held {
		c.Release(h.Demand, h.Place)
	}
	if err := c.Check(nil); err != nil {
		t.Error(err)
	}
	if err := c.Take(whole(1), model.Place{Node: 7, GPUs: 1}); err == nil {
		t.Error("a node that does not exist gave a GPU")
	}
}

// TestCheckNotices shows that the audit sees each kind of mistake.
func TestCheckNotices(t *testing.T) {
	t.Parallel()
	at := model.Place{Node: 0, GPUs: topology.MaskOf(0)}
	held := model.Held{Demand: whole(1), Place: at}
	for name, spoil := range map[string]func(*model.Cluster) []model.Held{
		"taken twice":    func(*model.Cluster) []model.Held { return []model.Held{held, held} },
		"never taken":    func(*model.Cluster) []model.Held { return []model.Held{held} },
		"never released": func(c *model.Cluster) []model.Held { _ = c.Take(whole(1), at); return nil },
		"released twice": func(c *model.Cluster) []model.Held { c.Release(whole(1), at); return nil },
		"host": func(c *model.Cluster) []model.Held {
			c.Release(model.Demand{CPUMilli: 1}, model.Place{})
			return nil
		},
	} {
		c := cluster(t, model.Spec{Name: "a", Class: classOf(t, "dgx1v_8xv100"), CPUMilli: 1})
		if err := c.Check(spoil(c)); err == nil {
			t.Errorf("%s: nothing was noticed", name)
		}
	}
}

func TestNewClusterRefuses(t *testing.T) {
	t.Parallel()
	class := classOf(t, "dgx1v_8xv100")
	for _, specs := range [][]model.Spec{nil, {{Name: "a"}}, {{Name: "a", Class: class}, {Name: "a", Class: class}}} {
		if _, err := model.NewCluster(specs); err == nil {
			t.Errorf("%d nodes were accepted", len(specs))
		}
	}
}

// TestRandomTraffic takes and releases at random and audits each step.
func TestRandomTraffic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	c := cluster(t, model.Spec{Name: "a", Class: classOf(t, "dgx1v_8xv100"), CPUMilli: 50}, model.Spec{Name: "b", Class: classOf(t, "a30_4x_pairs")})
	var held []model.Held
	refused := 0
	for range 3000 {
		if len(held) > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(len(held))
			c.Release(held[i].Demand, held[i].Place)
			held = append(held[:i], held[i+1:]...)
		} else {
			d := model.Demand{GPUs: 1 + rng.IntN(3), MemoryMilli: int64(1 + rng.IntN(1000)), CoresPercent: int64(rng.IntN(101)), CPUMilli: int64(rng.IntN(9))}
			h := model.Held{Demand: d, Place: model.Place{Node: rng.IntN(2), GPUs: topology.Mask(rng.Uint64N(256))}}
			if c.Take(d, h.Place) == nil {
				held = append(held, h)
			} else {
				refused++
			}
		}
		if err := c.Check(held); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 || refused == 3000 {
		t.Errorf("%d of 3000 steps were refused: the test tests little", refused)
	}
}

func TestDemandAsThePlannerTakesIt(t *testing.T) {
	t.Parallel()
	all := topology.FullMask(topology.MaxGPUs)
	d := model.Demand{GPUs: 2, MemoryMilli: 250, CoresPercent: 10, Communicates: true}
	want := placement.Demand{Communicates: placement.Yes, Requests: []placement.Request{
		{Name: "gpus", Count: 2, Use: placement.Capacity{MemoryMiB: 250, CoresPercent: 10}, Eligible: all}}}
	if diff := cmp.Diff(want, d.Placement()); diff != "" {
		t.Errorf("share (-want +got):\n%s", diff)
	}
	d = model.Demand{GPUs: 4, MemoryMilli: 1000}
	want = placement.Demand{Communicates: placement.No, Requests: []placement.Request{
		{Name: "gpus", Count: 4, Use: placement.Capacity{MemoryMiB: 1000, CoresPercent: 100}, Exclusive: true, Eligible: all}}}
	if diff := cmp.Diff(want, d.Placement()); diff != "" {
		t.Errorf("whole (-want +got):\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := model.Job{Name: "a", Pods: 1, Demand: whole(1)}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*model.Job){
		"arrival":  func(j *model.Job) { j.Arrival = -1 },
		"duration": func(j *model.Job) { j.Duration = -1 },
		"pods":     func(j *model.Job) { j.Pods = 0 },
		"slow":     func(j *model.Job) { j.SlowPermille = -1 },
		"gpus":     func(j *model.Job) { j.Demand.GPUs = 65 },
		"no gpus":  func(j *model.Job) { j.Demand.GPUs = 0 },
		"memory":   func(j *model.Job) { j.Demand.MemoryMilli = 1001 },
		"cores":    func(j *model.Job) { j.Demand.CoresPercent = 101 },
		"host":     func(j *model.Job) { j.Demand.HostMiB = -1 },
	} {
		j := good
		spoil(&j)
		if err := j.Validate(); err == nil || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%s: %v, want an error that names the job", name, err)
		}
	}
}

func TestRunTime(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		slow      int64
		best, got topology.MBps
		want      model.Millis
	}{
		{249, 40_000, 40_000, 10_000},
		{249, 40_000, 6_000, 12_490}, // the measurement itself
		{230, 40_000, 20_000, 10_406},
		{249, 40_000, 60_000, 10_000},
		{249, 40_000, 0, 10_000},
		{0, 40_000, 6_000, 10_000},
	} {
		if got := model.RunTime(10_000, tc.slow, tc.best, tc.got); got != tc.want {
			t.Errorf("slow-down %d, best %d, got %d: %d ms, want %d", tc.slow, tc.best, tc.got, got, tc.want)
		}
	}
}

func TestBestIsBruteForce(t *testing.T) {
	t.Parallel()
	r, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	reference := topotest.NewReference(r.Machine)
	class := classOf(t, "dgx1v_8xv100")
	best := model.NewBest()
	for k := 2; k <= 8; k++ {
		var want topology.MBps
		for set := range topology.Mask(256) {
			if q := reference.Quality(set); set.Count() == k && q.Rings > 0 {
				want = max(want, q.MBps)
			}
		}
		for range 2 { // computed, then remembered
			if got := best.Of(class, k).MBps; got != want || want == 0 {
				t.Errorf("%d GPUs: best %d, want %d", k, got, want)
			}
		}
	}
	if q := best.Of(class, 9); q != (quality.Quality{}) {
		t.Errorf("9 of 8 GPUs: %v", q)
	}
	c := cluster(t, model.Spec{Name: "a", Model: "A", Class: classOf(t, "a30_4x_pairs")}, model.Spec{Name: "b", Model: "B", Class: class, CPUMilli: 5})
	d := whole(2)
	if got, want := best.InCluster(c, d).MBps, topology.MBps(4*25_781); got != want {
		t.Errorf("best pair of the cluster %d, want %d: four links", got, want)
	}
	d.Models = "B"
	if got, want := best.InCluster(c, d).MBps, topology.MBps(2*25_781); got != want {
		t.Errorf("best pair of model B %d, want %d: two links", got, want)
	}
	d.CPUMilli = 6
	if got := best.InCluster(c, d); got != (quality.Quality{}) {
		t.Errorf("a demand that suits no node can have %v", got)
	}
}

func TestTypicalOf(t *testing.T) {
	t.Parallel()
	job := func(pods int, d model.Demand) model.Job { return model.Job{Pods: pods, Demand: d} }
	talks := whole(2)
	talks.Communicates = true
	jobs := []model.Job{job(6, whole(1)), job(2, whole(2)), job(1, talks), job(500, model.Demand{CPUMilli: 1})}
	for range 10 {
		jobs = append(jobs, job(1, whole(1)))
	}
	jobs = append(jobs, job(1, whole(8)))
	// 16 single, 3 pairs, one of eight: the first two are 95 % of 20.
	want := []model.Typical{{Demand: whole(1), Share: 16. / 19}, {Demand: whole(2), Share: 3. / 19}}
	if diff := cmp.Diff(want, model.TypicalOf(jobs)); diff != "" {
		t.Errorf("typical demands (-want +got):\n%s", diff)
	}
	if got := model.TypicalOf(nil); len(got) != 0 {
		t.Errorf("typical demands of nothing: %v", got)
	}
}

func TestFragmentation(t *testing.T) {
	t.Parallel()
	half := model.Demand{GPUs: 1, MemoryMilli: 500, CoresPercent: 50}
	pair := whole(2)
	pair.CPUMilli = 10
	mix := []model.Typical{{Demand: half, Share: 0.5}, {Demand: pair, Share: 0.5}}
	for name, tc := range map[string]struct {
		remains model.Remains
		want    float64
	}{
		"empty":                 {model.Remains{GPUs: []int64{1000, 1000}, CPUMilli: -1}, 0},
		"full":                  {model.Remains{GPUs: []int64{0, 0}, CPUMilli: 100}, 0},
		"no pair":               {model.Remains{GPUs: []int64{1000, 400}, CPUMilli: 100}, 0.5*400 + 0.5*1400},
		"a pair, a small rest":  {model.Remains{GPUs: []int64{1000, 1000, 400}, CPUMilli: 100}, 0.5*400 + 0.5*400},
		"no CPU for the pair":   {model.Remains{GPUs: []int64{1000, 1000}, CPUMilli: 9}, 0.5 * 2000},
		"CPU for neither fails": {model.Remains{GPUs: []int64{1000}, CPUMilli: 0}, 0.5 * 1000},
	} {
		if got := tc.remains.Fragmentation(mix); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	mix[0].Demand.Models = "T4"
	other := model.Remains{GPUs: []int64{1000, 1000}, CPUMilli: -1, Model: "A100"}
	if got := other.Fragmentation(mix); got != 1000 {
		t.Errorf("a model that half of the demands refuse: %v, want 1000", got)
	}
}
