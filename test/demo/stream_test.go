// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"slices"
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
)

// TestStreamIsSound: every job has its own name, and ends once at most, after it came.
func TestStreamIsSound(t *testing.T) {
	t.Parallel()
	came, ended := map[string]bool{}, map[string]bool{}
	for _, step := range Stream() {
		for _, name := range step.Ends {
			if !came[name] || ended[name] {
				t.Errorf("%s ends before %s: it is not there", name, step.Arrives.Name)
			}
			ended[name] = true
		}
		if came[step.Arrives.Name] {
			t.Errorf("%s comes twice", step.Arrives.Name)
		}
		came[step.Arrives.Name] = true
		if _, err := claimFor(step.Arrives); err != nil {
			t.Error(err)
		}
	}
}

// TestStreamHasEveryKind is about what the demo promises to show.
func TestStreamHasEveryKind(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(Job) bool{
		"1 whole GPU":          func(j Job) bool { return j.Whole() && j.GPUs == 1 },
		"2 whole GPUs":         func(j Job) bool { return j.Whole() && j.GPUs == 2 && !j.Guaranteed() },
		"4 whole GPUs":         func(j Job) bool { return j.Whole() && j.GPUs == 4 },
		"8 whole GPUs":         func(j Job) bool { return j.Whole() && j.GPUs == 8 && !j.Guaranteed() },
		"a share":              func(j Job) bool { return !j.Whole() && j.GPUs == 1 },
		"shares of two GPUs":   func(j Job) bool { return !j.Whole() && j.GPUs == 2 },
		"a guaranteed level":   func(j Job) bool { return j.Level != api.LevelAny },
		"a guaranteed minimum": func(j Job) bool { return j.MinGBps > 0 },
	}
	for name, is := range kinds {
		if !slices.ContainsFunc(Stream(), func(s Step) bool { return is(s.Arrives) }) {
			t.Errorf("no job of the stream asks for %s", name)
		}
	}
	if n := len(Nodes()); n < 6 {
		t.Errorf("%d nodes, at least six were promised", n)
	}
}

// TestStreamTellsItsStory places every job at its optimum and checks the turns that the stream was made for: a guarantee that
// cannot be kept although GPUs that could keep it exist, the same guarantee kept later, and jobs on every kind of NVLink machine.
func TestStreamTellsItsStory(t *testing.T) {
	t.Parallel()
	nodes, judge := demoNodes(t), NewJudge(10)
	jobs, where := map[string]Job{}, map[string]*Placement{}
	waited, kept := 0, 0
	used := map[string]bool{}
	for _, step := range Stream() {
		for _, name := range step.Ends {
			if p := where[name]; p != nil {
				release(findNode(nodes, p.Node), jobs[name], p.GPUs)
			}
		}
		job := step.Arrives
		ranking := judge.Rank(nodes, job)
		if ranking.Best == nil {
			waited++
			if free := judge.Rank(allFree(nodes), job); !job.Guaranteed() || ranking.BestFitting == nil || free.Best == nil {
				t.Errorf("%s (%s) waits: best that fits %+v, best if all were free %+v; it should wait only for its guarantee, and not for ever",
					job.Name, job.Wants(), ranking.BestFitting, free.Best)
			}
			continue
		}
		if job.Guaranteed() {
			kept++
		}
		if job.GPUs > 1 {
			used[ranking.Best.Node] = true
		}
		jobs[job.Name], where[job.Name] = job, ranking.Best
		take(findNode(nodes, ranking.Best.Node), job, ranking.Best.GPUs...)
	}
	if waited != 1 || kept < 2 {
		t.Errorf("%d jobs wait and %d guarantees are kept; want 1 and at least 2", waited, kept)
	}
	for _, name := range []string{"cube-mesh", "nvl-pairs", "nvswitch", "degraded"} {
		if !used[name] {
			t.Errorf("no multi-GPU job has its optimum on %s", name)
		}
	}
}

// release is the opposite of take.
func release(node *livestate.Node, job Job, gpus []int) {
	for _, i := range gpus {
		g := &node.GPUs[i]
		g.Holders = slices.DeleteFunc(g.Holders, func(h livestate.Holder) bool { return h.Claim == job.Name })
		if job.Whole() {
			g.Free = g.Total
			continue
		}
		g.Free.MemoryMiB += job.MemoryMiB
		g.Free.CoresPercent += job.CoresPercent
	}
}

func TestWants(t *testing.T) {
	t.Parallel()
	for want, job := range map[string]Job{
		"1 GPU":               {GPUs: 1},
		"4 GPUs":              {GPUs: 4},
		"1 × 6 Gi 30 %":       {GPUs: 1, MemoryMiB: 6 << 10, CoresPercent: 30},
		"2 × 8 Gi 50 %":       {GPUs: 2, MemoryMiB: 8 << 10, CoresPercent: 50},
		"8 GPUs, NVLink only": {GPUs: 8, Level: api.LevelNVLink},
		"2 GPUs, ≥ 300 GB/s":  {GPUs: 2, MinGBps: 300},
	} {
		if got := job.Wants(); got != want {
			t.Errorf("%+v is called %q, want %q", job, got, want)
		}
	}
	for _, step := range Stream() {
		if text := step.Arrives.Wants(); padRight(text, wantsWidth) != text && len([]rune(text)) > wantsWidth {
			t.Errorf("%q does not fit into its column of %d", text, wantsWidth)
		}
	}
}
