// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPrepare is the whole way of a claim there and back, with every wait for
// the disk, on a node that has more claims already. It reports the median and the
// 99th percentile of Prepare alone; the latter should stay below 100 ms. CDI specs
// are in memory, as in the default directory, or on the disk like the checkpoint.
func BenchmarkPrepare(b *testing.B) {
	for _, cdiDir := range []string{"memory", "disk"} {
		for _, others := range []int{0, 60} {
			b.Run(fmt.Sprintf("cdi=%s/claims=%d", cdiDir, others), func(b *testing.B) {
				f := newFixture(b)
				f.nri = true
				if cdiDir == "memory" {
					f.cdiDir = inMemory(b)
				}
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
				for _, percent := range []int{50, 99} {
					b.ReportMetric(float64(times[len(times)*percent/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", percent))
				}
			})
		}
	}
}

// inMemory makes a directory in a file system that has no disk.
func inMemory(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "topodra-bench-") //nolint:usetesting // b.TempDir is on the disk
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return dir
}
