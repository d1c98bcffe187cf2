// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

func clusterOf(t *testing.T, names ...string) *model.Cluster {
	t.Helper()
	var specs []model.Spec
	for i, name := range names {
		r, err := topotest.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := quality.NewClass(r.Machine, quality.Options{})
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, model.Spec{Name: string(rune('a' + i)), Model: name, Class: c})
	}
	c, err := model.NewCluster(specs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func named(t *testing.T, name string, typical []model.Typical) policy.Policy {
	t.Helper()
	p, err := policy.New(name, policy.Setup{Seed: 1, Typical: typical})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func whole(gpus int) model.Demand {
	return model.Demand{GPUs: gpus, MemoryMilli: model.WholeMilli, CoresPercent: model.WholeCores, Communicates: gpus > 1}
}

func job(name string, arrival, duration model.Millis, pods int, d model.Demand) model.Job {
	return model.Job{Name: name, Arrival: arrival * model.Second, Duration: duration * model.Second, Pods: pods, Demand: d}
}

// moments returns start and end of each job in seconds.
func moments(r *engine.Result) [][2]float64 {
	var out [][2]float64
	for _, o := range r.Outcomes {
		if !o.Placed() {
			out = append(out, [2]float64{-1, -1})
			continue
		}
		out = append(out, [2]float64{o.Started.Seconds(), o.Ended.Seconds()})
	}
	return out
}

func value(t *testing.T, r *engine.Result, name string) float64 {
	t.Helper()
	v, ok := r.Value(name)
	if !ok {
		t.Fatalf("there is no metric %q in %v", name, r.Metrics)
	}
	return v
}

// TestQueue follows a queue by hand on one node with four GPUs.
func TestQueue(t *testing.T) {
	t.Parallel()
	jobs := []model.Job{
		job("three", 0, 10, 1, whole(3)),
		job("four", 1, 10, 1, whole(4)),    // waits for all
		job("one", 2, 20, 1, whole(1)),     // passes the waiting one
		job("pods", 3, 5, 3, whole(1)),     // three pods, of which none starts alone
		job("large", 4, 5, 1, whole(5)),    // never fits
		job("late", 22, 1, 1, whole(1)),    // arrives when "one" ends
		job("nothing", 22, 0, 1, whole(1)), // takes no time
	}
	for name, tc := range map[string]struct {
		queue engine.Discipline
		want  [][2]float64
	}{
		// At 10 s three GPUs are free: "pods" passes "four", which starts when "one" ends.
		"skip": {engine.Skip, [][2]float64{{0, 10}, {22, 32}, {2, 22}, {10, 15}, {-1, -1}, {32, 33}, {32, 32}}},
		// "four" holds up all others until it starts, and "large" those behind it for ever.
		"fifo": {engine.FIFO, [][2]float64{{0, 10}, {10, 20}, {20, 40}, {20, 25}, {-1, -1}, {-1, -1}, {-1, -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := engine.Run(t.Context(), engine.Config{
				Cluster: clusterOf(t, "a30_4x_pairs"), Jobs: jobs, Policy: named(t, "first-fit", nil), Queue: tc.queue, Audit: true})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, moments(r)); diff != "" {
				t.Errorf("start and end (-want +got):\n%s", diff)
			}
			if name == "skip" {
				// Waits: 0, 21, 0, 7, 10, 10 over six jobs; four GPUs in 22 s: 3·10 + 20 + 3·5 GPU-seconds of 88.
				for metric, want := range map[string]float64{
					"wait_s": 8, "wait_s_k3": 3.5, "wait_s_k4": 21, "completion_s_k1": (20. + 11 + 10) / 3, "never_placed": 1, "allocation_rate": 65. / 88,
				} {
					if got := value(t, r, metric); math.Abs(got-want) > 1e-9 {
						t.Errorf("%s = %v, want %v", metric, got, want)
					}
				}
			}
		})
	}
}

// TestLinks measures quality and run time by hand: two bridged pairs, four links of
// 25,781 MB/s; across, SYS at Gen4, 12,000 MB/s.
func TestLinks(t *testing.T) {
	t.Parallel()
	slow := job("slow", 1, 100, 1, whole(2))
	slow.SlowPermille = 249
	jobs := []model.Job{job("single", 0, 1000, 1, whole(1)), slow, job("deaf", 2, 100, 1, whole(2))}
	jobs[2].Demand.Communicates = false
	r, err := engine.Run(t.Context(), engine.Config{
		Cluster: clusterOf(t, "a30_4x_pairs"), Jobs: jobs[:2], Policy: named(t, "first-fit", nil), Bandwidth: true, Audit: true})
	if err != nil {
		t.Fatal(err)
	}
	const best, got = 4 * 25_781., 12_000.
	factor := 1 + 0.249*(best/got-1)/(model.ReferenceRatio-1)
	for metric, want := range map[string]float64{
		"quality": got / best, "quality_k2": got / best, "quality_cluster": got / best, "link_gbps": 12, "slowdown": math.Round(100_000*factor) / 100_000,
	} {
		if got := value(t, r, metric); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", metric, got, want)
		}
	}
	// TopoDRA leaves the single GPU where it is and takes the pair that is whole.
	r, err = engine.Run(t.Context(), engine.Config{
		Cluster: clusterOf(t, "a30_4x_pairs"), Jobs: jobs, Policy: named(t, "topodra", nil), Bandwidth: true, Audit: true})
	if err != nil {
		t.Fatal(err)
	}
	if q, s := value(t, r, "quality"), value(t, r, "slowdown"); q != 1 || s != 1 {
		t.Errorf("quality %v, slow-down %v, want 1 for both: jobs that do not communicate are not counted", q, s)
	}
}

// TestWarmUp leaves out the first jobs.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	jobs := []model.Job{job("a", 0, 100, 1, whole(4)), job("b", 1, 1, 1, whole(4)), job("c", 200, 1, 1, whole(1)), job("d", 300, 1, 1, whole(1))}
	r, err := engine.Run(t.Context(), engine.Config{
		Cluster: clusterOf(t, "a30_4x_pairs"), Jobs: jobs, Policy: named(t, "first-fit", nil), WarmUp: 50, Typical: model.TypicalOf(jobs)})
	if err != nil {
		t.Fatal(err)
	}
	// From 200 to 300 s: one GPU for one second. Then all four are free; before, three, on which four do not fit.
	if wait, rate := value(t, r, "wait_s"), value(t, r, "allocation_rate"); wait != 0 || math.Abs(rate-1./400) > 1e-12 {
		t.Errorf("wait %v, allocated %v, want 0 and 1/400", wait, rate)
	}
	if got, want := value(t, r, "stranded_rate"), 0.5*3./400; math.Abs(got-want) > 1e-12 {
		t.Errorf("stranded %v, want %v", got, want)
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	half := model.Demand{GPUs: 1, MemoryMilli: 500, CoresPercent: 50}
	jobs := []model.Job{job("a", 0, 0, 1, whole(2)), job("b", 0, 0, 1, half), job("c", 0, 0, 1, whole(2)), job("d", 0, 0, 1, half), job("e", 0, 0, 1, whole(1))}
	cfg := engine.Config{Cluster: clusterOf(t, "a30_4x_pairs"), Jobs: jobs, Policy: named(t, "first-fit", nil), Audit: true}
	r, err := engine.Fill(t.Context(), cfg, []int{60, 100, 150})
	if err != nil {
		t.Fatal(err)
	}
	// a on 0 and 1, b on 2; c, which brings the demand from 62 to 112 percent, finds no two; d on 2; e on 3.
	want := []engine.Metric{
		{Name: "at_60/allocation_rate", Value: 0.625}, {Name: "at_60/placed_rate", Value: 1}, {Name: "at_60/quality", Value: 1},
		{Name: "at_60/quality_k2", Value: 1}, {Name: "at_60/quality_cluster", Value: 1}, {Name: "at_60/link_gbps", Value: 103.124},
		{Name: "at_100/allocation_rate", Value: 0.625}, {Name: "at_100/placed_rate", Value: 2. / 3}, {Name: "at_100/quality", Value: 1},
		{Name: "at_100/quality_k2", Value: 1}, {Name: "at_100/quality_cluster", Value: 1}, {Name: "at_100/link_gbps", Value: 103.124},
		{Name: "at_150/allocation_rate", Value: 1}, {Name: "at_150/placed_rate", Value: 0.8}, {Name: "at_150/quality", Value: 1},
		{Name: "at_150/quality_k2", Value: 1}, {Name: "at_150/quality_cluster", Value: 1}, {Name: "at_150/link_gbps", Value: 103.124},
	}
	if diff := cmp.Diff(want, r.Metrics, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	cfg.Cluster, cfg.Policy = clusterOf(t, "a30_4x_pairs"), named(t, "first-fit", nil)
	if _, err := engine.Fill(t.Context(), cfg, []int{200}); err == nil || !strings.Contains(err.Error(), "150 percent") {
		t.Errorf("filling to 200 percent: %v", err)
	}
}

// randomJobs are jobs of all kinds, some of which never fit.
func randomJobs(rng *rand.Rand, n int) []model.Job {
	var jobs []model.Job
	at := model.Millis(0)
	for i := range n {
		at += model.Millis(rng.IntN(3)) * model.Second // many at the same moment
		d := whole(rng.IntN(10))
		switch {
		case d.GPUs == 0:
			d = model.Demand{CPUMilli: 10}
		case rng.IntN(3) == 0:
			d.MemoryMilli, d.CoresPercent = int64(1+rng.IntN(999)), int64(rng.IntN(101))
		}
		pods := 1 + rng.IntN(3)
		if d.GPUs > 1 && !d.Whole() {
			pods = 1 // whether several such pods fit depends on where the first ones are
		}
		jobs = append(jobs, model.Job{
			Name: string(rune('a'+i%26)) + strings.Repeat("'", i/26), Arrival: at, Duration: model.Millis(rng.IntN(20)) * model.Second,
			Pods: pods, Demand: d, SlowPermille: int64(rng.IntN(300)),
		})
	}
	return jobs
}

// TestEveryJobThatFitsEnds runs all policies over random jobs, with all capacity
// recomputed after every event.
func TestEveryJobThatFitsEnds(t *testing.T) {
	t.Parallel()
	machines := []string{"dgx1v_8xv100", "a30_4x_pairs"}
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				jobs := randomJobs(rand.New(rand.NewPCG(seed, 9)), 100)
				run := func() *engine.Result {
					r, err := engine.Run(t.Context(), engine.Config{
						Cluster: clusterOf(t, machines...), Jobs: jobs, Policy: named(t, name, model.TypicalOf(jobs)),
						Bandwidth: seed%2 == 0, Typical: model.TypicalOf(jobs), Audit: true})
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				r := run()
				never := 0
				for i, o := range r.Outcomes {
					fits := fitsEmpty(clusterOf(t, machines...), &jobs[i])
					if o.Placed() != fits {
						t.Fatalf("seed %d: job %+v was placed: %t, fits an empty cluster: %t", seed, jobs[i], o.Placed(), fits)
					}
					if !fits {
						never++
						continue
					}
					if o.Started < jobs[i].Arrival || o.Ended < o.Started+jobs[i].Duration || len(o.Places) != jobs[i].Pods {
						t.Fatalf("seed %d: job %+v: %+v", seed, jobs[i], o)
					}
				}
				if never == 0 || never == len(jobs) {
					t.Errorf("seed %d: %d of %d jobs never fit: the test tests little", seed, never, len(jobs))
				}
				again := run()
				if diff := cmp.Diff(r.Metrics, again.Metrics); diff != "" {
					t.Errorf("seed %d: a second run differs (-first +second):\n%s", seed, diff)
				}
				if !slices.Equal(moments(r), moments(again)) {
					t.Errorf("seed %d: a second run has other moments", seed)
				}
			}
		})
	}
}

// fitsEmpty places the pods on an empty cluster, the lowest GPUs first.
func fitsEmpty(c *model.Cluster, j *model.Job) bool {
	for range j.Pods {
		placed := false
		for i, n := range c.Nodes {
			set := n.Fitting(j.Demand)
			for set.Count() > j.Demand.GPUs {
				set = set.Without(set.Highest())
			}
			if j.Demand.GPUs == 0 {
				set = 0
			}
			if c.Take(j.Demand, model.Place{Node: i, GPUs: set}) == nil {
				placed = true
				break
			}
		}
		if !placed {
			return false
		}
	}
	return true
}

// cheat is a policy that takes GPUs whether they are free or not.
type cheat struct{}

func (cheat) Name() string { return "cheat" }
func (cheat) Forget()      {}
func (cheat) Place(*model.Cluster, model.Demand) (model.Place, bool, error) {
	return model.Place{GPUs: 1}, true, nil
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	good := func() engine.Config {
		return engine.Config{Cluster: clusterOf(t, "a30_4x_pairs"), Policy: named(t, "first-fit", nil), Jobs: []model.Job{job("a", 0, 9, 1, whole(1)), job("b", 1, 9, 1, whole(1))}}
	}
	for name, tc := range map[string]struct {
		spoil func(*engine.Config)
		want  string
	}{
		"double booking": {func(c *engine.Config) { c.Policy = cheat{} }, `policy "cheat": taking GPUs {0}`},
		"no cluster":     {func(c *engine.Config) { c.Cluster = nil }, "are needed"},
		"warm-up":        {func(c *engine.Config) { c.WarmUp = 100 }, "0..99"},
		"bad job":        {func(c *engine.Config) { c.Jobs[0].Pods = 0 }, "0 pods"},
		"order":          {func(c *engine.Config) { c.Jobs[0].Arrival = 2000 }, "arrives before"},
	} {
		cfg := good()
		tc.spoil(&cfg)
		if _, err := engine.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := engine.Run(ended, good()); err == nil {
		t.Error("a run went on without its context")
	}
	if _, err := engine.Fill(ended, good(), nil); err == nil {
		t.Error("filling went on without its context")
	}
	empty := good()
	empty.Jobs = nil
	if r, err := engine.Run(t.Context(), empty); err != nil || value(t, r, "allocation_rate") != 0 {
		t.Errorf("no jobs: %v", err)
	}
}
