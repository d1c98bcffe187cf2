// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPrepare is the whole way of a claim there and back, with every sync to
// the disk, on a node that has more claims already. It reports the 99th
// percentile of Prepare, which should stay below 100 ms.
func BenchmarkPrepare(b *testing.B) {
	for _, others := range []int{0, 60} {
		b.Run(fmt.Sprintf("claims=%d", others), func(b *testing.B) {
			f := newFixture(b)
			f.nri = true
			manager := f.manager()
			for i := range others {
				name := fmt.Sprintf("other%02d", i)
				pod := podWith("pod-"+name, "app:main="+name)
				c := claim(name, []*corev1.Pod{pod}, result{request: "r", gpu: i % 4, memory: 1, cores: 1})
				f.cluster.add(pod, c)
				f.prepare(manager, c)
			}
			pod := podWith("train", "app:main=c")
			c := claim("c", []*corev1.Pod{pod}, result{request: "r", gpu: 0, memory: 20}, result{request: "r", gpu: 1, memory: 20})
			f.cluster.add(pod, c)
			var times []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				f.prepare(manager, c)
				times = append(times, time.Since(start))
				if err := manager.Unprepare(b.Context(), c.UID); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
