// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce/hamicore/region"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

// fullNode has as many GPUs, with as many shares each, every share in a claim and a
// container of its own, and everything is measured and reported.
func fullNode(gpus, shares int) *node {
	n := &node{
		now: fixedNow, owners: map[string]*owners.Owner{}, regions: map[string]*region.Region{},
		document: &checkpoint.Document{NodeName: "node-a", Claims: map[types.UID]*checkpoint.Claim{}}, observation: &watch.Observation{At: fixedNow},
	}
	for g := range gpus {
		uuid := fmt.Sprintf("GPU-%d", g)
		n.devices = append(n.devices, Device{UUID: uuid, Name: uuid, Index: g, Type: "gpu", Product: "H100", TotalBytes: 80 * gib, OfferedBytes: 80 * gib})
		n.health = append(n.health, Health{UUID: uuid, State: StateHealthy})
		n.observation.GPUs = append(n.observation.GPUs, watch.GPU{UUID: uuid, MemoryUsedBytes: new(uint64(1)), BusyPercent: new(uint32(1)), MemoryBusyPercent: new(uint32(1))})
		for s := range shares {
			id := fmt.Sprintf("%d-%d", g, s)
			n.document.Claims[types.UID(id)] = &checkpoint.Claim{
				Namespace: "default", Name: "claim-" + id, Consumers: []checkpoint.Consumer{{Name: "pod-" + id, UID: types.UID(id)}},
				Devices: []checkpoint.Device{share("a", uuid, 8<<10, 10)},
			}
			owner := &owners.Owner{Namespace: "default", Pod: "pod-" + id, Container: "main", GPUs: []owners.GPU{{UUID: uuid, Claims: []string{"claim-" + id}, MemoryLimitMiB: 8 << 10}}}
			n.owners[id] = owner
			n.observation.Uses = append(n.observation.Uses, watch.Use{ContainerID: id, Owner: owner, GPU: &owner.GPUs[0], MemoryBytes: 1, BusyPercent: new(uint32(1))})
			n.regions["/c/"+id+"/vgpu.cache"] = &region.Region{
				GPUs: 1, MemoryLimitBytes: []uint64{8 * gib}, CoresLimitPercent: []uint64{10}, LastKernel: fixedNow,
				Processes: []region.Process{{PID: 1, Memory: []region.Memory{{Total: 1}}}},
			}
		}
	}
	return n
}

// collect counts what a scrape collects.
func collect(c *Collector) int {
	out := make(chan prometheus.Metric, 64)
	go func() {
		c.Collect(out)
		close(out)
	}()
	n := 0
	for range out {
		n++
	}
	return n
}

// TestCardinality: there are 10 series for each share, 12 for each GPU, and a fixed
// number besides; with aliases, 17 and 19 more.
func TestCardinality(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{0, 0}, {1, 0}, {1, 1}, {2, 3}, {16, 10}} {
		gpus, all := size[0], size[0]*size[1]
		n := fullNode(gpus, size[1])
		const fixed = 15 // the driver's own work
		if got, want := collect(n.collector(t, false)), fixed+12*gpus+10*all; got != want {
			t.Errorf("%v: %d series, want %d", size, got, want)
		}
		if got, want := collect(n.collector(t, true)), fixed+(12+19)*gpus+(10+17)*all; got != want {
			t.Errorf("%v: %d series with aliases, want %d", size, got, want)
		}
	}
}

// BenchmarkCollect collects a node with 16 GPUs of 10 shares each.
func BenchmarkCollect(b *testing.B) {
	for name, aliases := range map[string]bool{"own": false, "aliases": true} {
		b.Run(name, func(b *testing.B) {
			c := fullNode(16, 10).collector(b, aliases)
			b.ReportAllocs()
			for b.Loop() {
				collect(c)
			}
		})
	}
}
