// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// freshNode is a node of a recorded machine that nobody uses.
func freshNode(t *testing.T, spec NodeSpec) livestate.Node {
	t.Helper()
	recorded, err := topotest.Load(spec.Machine)
	if err != nil {
		t.Fatal(err)
	}
	n := livestate.Node{Name: spec.Name, Machine: recorded.Machine, Present: topology.FullMask(recorded.Machine.N())}
	total := livestate.Capacity{MemoryMiB: 32 << 10, CoresPercent: 100}
	for i := range recorded.Machine.N() {
		n.GPUs = append(n.GPUs, livestate.GPU{Position: i, Device: "gpu-" + string(rune('a'+i)), Total: total, Free: total})
	}
	return n
}

// take lets a job hold a set of a node's GPUs.
func take(node *livestate.Node, job Job, gpus ...int) {
	for _, i := range gpus {
		g := &node.GPUs[i]
		g.Holders = append(g.Holders, livestate.Holder{Claim: job.Name})
		if job.Whole() {
			g.Free.MemoryMiB = 0
			continue
		}
		g.Free.MemoryMiB -= job.MemoryMiB
		g.Free.CoresPercent -= job.CoresPercent
	}
}

func demoNodes(t *testing.T) []livestate.Node {
	t.Helper()
	var nodes []livestate.Node
	for _, spec := range Nodes() {
		nodes = append(nodes, freshNode(t, spec))
	}
	return nodes
}

// TestOptimumOfOneNode has cases that a reader can check against the link matrix.
func TestOptimumOfOneNode(t *testing.T) {
	t.Parallel()
	whole := Job{GPUs: 4}
	for name, c := range map[string]struct {
		machine string
		job     Job
		taken   []int
		want    *Placement
	}{
		// 0-3 and 4-7 by two links, 3-7 by one, 0-4 by two: the ring's weakest member has 3 links into the set, so one ring.
		"cube mesh, four of six": {"dgx1v_8xv100", whole, []int{2, 5}, &Placement{GPUs: []int{0, 3, 4, 7}, Rings: 1, GBps: 25.781, Link: "NVLink"}},
		"cube mesh, a pair":      {"dgx1v_8xv100", Job{GPUs: 2}, nil, &Placement{GPUs: []int{0, 3}, Rings: 2, GBps: 51.562, Link: "NVLink"}},
		"pairs that are not neighbours": {"a100_8x_interleaved_pairs", Job{GPUs: 2}, []int{0},
			&Placement{GPUs: []int{1, 3}, Rings: 12, GBps: 309.372, Link: "NVLink"}},
		"the odd ones": {"a100_8x_interleaved_pairs", Job{GPUs: 2}, []int{2, 3, 5, 7}, &Placement{GPUs: []int{0, 1}, GBps: 12, Link: "SYS"}},
		"shares go where others are": {"a100_8x_interleaved_pairs", Job{GPUs: 2, MemoryMiB: 8 << 10, CoresPercent: 50}, []int{4, 5, 6, 7},
			&Placement{GPUs: []int{0, 2}, Rings: 12, GBps: 309.372, Link: "NVLink"}},
		"too few":      {"a100_8x_interleaved_pairs", Job{GPUs: 7}, []int{0, 1}, nil},
		"never enough": {"pcie_8x_pix_node_sys", Job{GPUs: 2, Level: api.LevelNVLink}, nil, nil},
		"PCIe level":   {"pcie_8x_pix_node_sys", Job{GPUs: 2, Level: api.LevelPCIe}, []int{0}, &Placement{GPUs: []int{2, 3}, GBps: 12, Link: "PIX"}},
		"NUMA level":   {"pcie_8x_pix_node_sys", Job{GPUs: 4, Level: api.LevelNUMA}, []int{0}, &Placement{GPUs: []int{4, 5, 6, 7}, GBps: 8.04, Link: "NODE"}},
		"bandwidth":    {"pcie_8x_pix_node_sys", Job{GPUs: 4, MinGBps: 9}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := freshNode(t, NodeSpec{Name: "node", Machine: c.machine})
			take(&node, Job{Name: "other", GPUs: 1}, c.taken...)
			if c.want != nil {
				c.want.Node = "node"
			}
			got := NewJudge(10).Rank([]livestate.Node{node}, c.job)
			if diff := cmp.Diff(c.want, got.Best); diff != "" {
				t.Errorf("optimum (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTiersOverAllNodes(t *testing.T) {
	t.Parallel()
	nodes := demoNodes(t)
	judge := NewJudge(10)
	r := judge.Rank(nodes, Job{GPUs: 2})
	for _, c := range []struct {
		node string
		set  topology.Mask
		tier int
	}{
		{"degraded", topology.MaskOf(0, 1), 0},   // 18 links of 53.1 GB/s
		{"nvswitch", topology.MaskOf(6, 7), 1},   // 18 of 26.6
		{"nvl-pairs", topology.MaskOf(0, 1), 2},  // 12 of 26.6
		{"interleave", topology.MaskOf(0, 2), 2}, // 12 of 25.0, within 10 %
		{"cube-mesh", topology.MaskOf(0, 3), 3},  // 2 of 25.8
		{"cube-mesh", topology.MaskOf(0, 1), 4},  // 1 of 25.8
	} {
		node := findNode(nodes, c.node)
		if got := r.Tier(judge.Value(node, c.set)); got != c.tier {
			t.Errorf("pair %s of %s: tier %d, want %d", c.set, c.node, got, c.tier)
		}
	}
	if r.Best == nil || r.Best.Node != "degraded" || r.Best.GBps != 956.25 {
		t.Errorf("the best pair is %+v, want one of the degraded node with 956.25 GB/s", r.Best)
	}
	// What is worse than everything that is free has a tier of its own.
	take(findNode(nodes, "pcie-only"), Job{GPUs: 8}, 0, 1, 2, 3, 4, 5, 6, 7)
	if got, want := judge.Rank(nodes[:1], Job{GPUs: 2}).Tier(topotest.Quality{MBps: 1, Class: topology.SYS, Reach: topology.SYS}), 3; got != want {
		t.Errorf("worse than all of the cube mesh: tier %d, want %d", got, want)
	}
}

// TestGuaranteeChangesTheOptimumOnly: what fits is reported whatever the job guarantees.
func TestGuaranteeChangesTheOptimumOnly(t *testing.T) {
	t.Parallel()
	node := freshNode(t, NodeSpec{Name: "node", Machine: "pcie_8x_pix_node_sys"})
	r := NewJudge(10).Rank([]livestate.Node{node}, Job{GPUs: 2, Level: api.LevelNVLink})
	if r.Best != nil || r.BestFitting == nil || r.BestFitting.GBps != 12 {
		t.Errorf("optimum %+v, best that fits %+v; want none and a PIX pair of 12 GB/s", r.Best, r.BestFitting)
	}
	take(&node, Job{GPUs: 8}, 0, 1, 2, 3, 4, 5, 6)
	nodes := []livestate.Node{node}
	if r := NewJudge(10).Rank(nodes, Job{GPUs: 2}); r.BestFitting != nil {
		t.Errorf("only one GPU is free, but %+v fits", r.BestFitting)
	}
	if r := NewJudge(10).Rank(allFree(nodes), Job{GPUs: 8}); r.BestFitting == nil {
		t.Error("nothing fits although all were taken to be free")
	}
	if nodes[0].GPUs[0].Free.MemoryMiB != 0 {
		t.Error("allFree has changed its argument")
	}
}

func TestSubsets(t *testing.T) {
	t.Parallel()
	var got []string
	for _, s := range subsets(topology.MaskOf(1, 3, 4, 6), 2) {
		got = append(got, s.String())
	}
	want := []string{"{1,3}", "{1,4}", "{1,6}", "{3,4}", "{3,6}", "{4,6}"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
	for k, want := range []int{1, 16, 120, 560, 1820} {
		if got := len(subsets(topology.FullMask(16), k)); got != want {
			t.Errorf("%d of 16: %d sets, want %d", k, got, want)
		}
	}
	if got := subsets(topology.MaskOf(1), 2); len(got) != 0 {
		t.Errorf("two of one: %v", got)
	}
}

// TestFitting: amounts that are just enough count, one more does not; a GPU that anybody uses is not whole; one that is not
// published is never there.
func TestFitting(t *testing.T) {
	t.Parallel()
	node := freshNode(t, NodeSpec{Name: "node", Machine: "a30_4x_pairs"})
	take(&node, Job{Name: "other", GPUs: 1, MemoryMiB: 12 << 10, CoresPercent: 40}, 0)
	take(&node, Job{Name: "other", GPUs: 1}, 1)
	node.GPUs[3].Device = ""
	for _, c := range []struct {
		job  Job
		want topology.Mask
	}{
		{Job{GPUs: 1}, topology.MaskOf(2)},
		{Job{GPUs: 1, MemoryMiB: 20 << 10, CoresPercent: 60}, topology.MaskOf(0, 2)},
		{Job{GPUs: 1, MemoryMiB: 20<<10 + 1, CoresPercent: 60}, topology.MaskOf(2)},
		{Job{GPUs: 1, MemoryMiB: 20 << 10, CoresPercent: 61}, topology.MaskOf(2)},
		{Job{GPUs: 1, MemoryMiB: 32 << 10, CoresPercent: 100}, topology.MaskOf(2)},
		{Job{GPUs: 1, MemoryMiB: 32<<10 + 1}, 0},
	} {
		if got := fitting(&node, c.job); got != c.want {
			t.Errorf("%s fits on %s, want %s", c.job.Wants(), got, c.want)
		}
	}
}
