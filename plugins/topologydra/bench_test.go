// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"testing"
)

// BenchmarkFilter compares one call of the in-tree Filter with ours when the plan
// is remembered, and when it is made anew.
//
//	go test ./plugins/topologydra -run '^$' -bench Filter -benchmem
func BenchmarkFilter(b *testing.B) {
	for _, count := range []int64{1, 4, 8} {
		pod := podOf("pod", "c")
		w := newWorld(b, worldConfig{objects: append(gpuNode(b, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", count)), pod)})
		state, _ := w.preFilter(pod)
		node := w.nodes[0]
		for name, filter := range map[string]func() bool{
			"in-tree":    func() bool { return w.plugin.DynamicResources.Filter(w.ctx, state, pod, node).IsSuccess() },
			"remembered": func() bool { return w.plugin.Filter(w.ctx, state, pod, node).IsSuccess() },
			"planned": func() bool {
				w.plugin.planner.memo.Clear()
				return w.plugin.Filter(w.ctx, state, pod, node).IsSuccess()
			},
		} {
			b.Run(fmt.Sprintf("gpus=%d/plugin=%s", count, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !filter() {
						b.Fatal("the pod does not fit")
					}
				}
			})
		}
		if d := readCycle(state).toCompare("dgx"); d == nil || d.arrangements == nil {
			b.Fatal("the benchmark did not plan")
		}
	}
}
