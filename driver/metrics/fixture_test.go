// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce/hamicore/region"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

const gib = 1 << 30

// fixedNow is the time of all tests.
var fixedNow = time.Unix(1_800_000_000, 0)

// node is a node of which tests change everything. It implements Usage.
type node struct {
	devices     []Device
	document    *checkpoint.Document
	documentErr error
	owners      map[string]*owners.Owner
	ownersErr   error
	observation *watch.Observation
	failed      uint64
	regions     map[string]*region.Region // by path
	regionErrs  map[string]error
	health      []Health
	now         time.Time
}

func (n *node) Last() *watch.Observation { return n.observation }
func (n *node) Failed() uint64           { return n.failed }

// collector returns a collector of the node.
func (n *node) collector(tb testing.TB, aliases bool) *Collector {
	tb.Helper()
	c, err := New(Options{
		NodeName:    "node-a",
		Checkpoint:  func() (*checkpoint.Document, error) { return n.document, n.documentErr },
		Containers:  func() (map[string]*owners.Owner, error) { return n.owners, n.ownersErr },
		Regions:     &Regions{OfContainer: func(id string) string { return "/c/" + id }, OfClaim: func(claim types.UID, container string) string { return "/q/" + string(claim) + "/" + container }},
		Usage:       n,
		Health:      func() []Health { return n.health },
		HAMiAliases: aliases,
		Now:         func() time.Time { return n.now },
	})
	if err != nil {
		tb.Fatal(err)
	}
	c.SetDevices(n.devices)
	c.regions.read = func(path string) (*region.Region, error) {
		if err := n.regionErrs[path]; err != nil {
			return nil, err
		}
		if r, ok := n.regions[path]; ok {
			return r, nil
		}
		return nil, fmt.Errorf("reading region %q: %w", path, fs.ErrNotExist)
	}
	return c
}

// scrape returns what Prometheus would get. Anything wrong with it is an error.
func scrape(tb testing.TB, collectors ...prometheus.Collector) string {
	tb.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	recorder := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if recorder.Code != http.StatusOK {
		tb.Fatalf("got status %d: %s", recorder.Code, recorder.Body)
	}
	return recorder.Body.String()
}

// lines returns the samples that begin so, without help and type.
func lines(text, prefix string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// share is an allocation result of a part of a GPU.
func share(request, uuid string, memoryMiB, cores int64) checkpoint.Device {
	return checkpoint.Device{
		Request: request, UUID: uuid, Type: "gpu", MemoryMiB: 80 << 10, Consumed: map[string]int64{"memory": memoryMiB << 20, "cores": cores},
		Limit: &checkpoint.Limit{MemoryMiB: memoryMiB, CoresPercent: cores}, PCIAddress: map[string]string{"GPU-0": "0000:07:00.0", "GPU-1": "0000:0a:00.0"}[uuid],
	}
}

// newNode returns a node with two GPUs, and a third that is in MIG mode.
//
//   - claim "quarter" of pod "train": 20 GiB and 25% of GPU-0 for container "main",
//     and 10 GiB of GPU-1, best effort; limits over NRI;
//   - claim "whole" of pod "infer": all of the MIG device for a container that is
//     not made yet;
//   - claim "cdi" of pod "batch": 8 GiB and 10% of GPU-1 for container "work", limits
//     in the CDI spec;
//   - claim "admin" of pod "watcher": GPU-0 for administration.
func newNode() *node {
	return &node{
		now: fixedNow,
		devices: []Device{
			{UUID: "GPU-0", Name: "gpu-0", Index: 0, Type: "gpu", Product: "H100", PCIAddress: "0000:07:00.0", Link: linkNVSwitch, TotalBytes: 81 * gib, OfferedBytes: 80 * gib},
			{UUID: "GPU-1", Name: "gpu-1", Index: 1, Type: "gpu", Product: "H100", PCIAddress: "0000:0a:00.0", Link: linkNVSwitch, TotalBytes: 81 * gib, OfferedBytes: 80 * gib},
			{UUID: "MIG-a", Parent: "GPU-2", Name: "mig-a", Index: 2, Type: "mig", Product: "H100", PCIAddress: "0000:0b:00.0", Link: linkNone, Profile: "1g.10gb", GPUInstance: 7, TotalBytes: 10 * gib, OfferedBytes: 10 * gib},
		},
		document: &checkpoint.Document{NodeName: "node-a", Claims: map[types.UID]*checkpoint.Claim{
			"u1": {
				Namespace: "default", Name: "quarter", Delivery: checkpoint.DeliveryNRI, Consumers: []checkpoint.Consumer{{Name: "train", UID: "p1"}},
				Devices: []checkpoint.Device{share("a", "GPU-0", 20<<10, 25), share("b", "GPU-1", 10<<10, 0)},
			},
			"u2": {
				Namespace: "default", Name: "whole", Consumers: []checkpoint.Consumer{{Name: "infer", UID: "p2"}},
				Devices: []checkpoint.Device{{Request: "a", UUID: "MIG-a", ParentUUID: "GPU-2", Type: "mig", MemoryMiB: 10 << 10}},
			},
			"u3": {
				Namespace: "team", Name: "cdi", Delivery: checkpoint.DeliveryCDI, Consumers: []checkpoint.Consumer{{Name: "batch", UID: "p3"}},
				Devices: []checkpoint.Device{share("a", "GPU-1", 8<<10, 10)}, Groups: []checkpoint.Group{{Container: "p3/work", Devices: []int{0}}},
			},
			"u4": {
				Namespace: "team", Name: "admin", Consumers: []checkpoint.Consumer{{Name: "watcher", UID: "p4"}},
				Devices: []checkpoint.Device{{Request: "a", UUID: "GPU-0", Type: "gpu", AdminAccess: true, MemoryMiB: 80 << 10}},
			},
		}},
		owners: map[string]*owners.Owner{
			"id1": {Namespace: "default", Pod: "train", PodUID: "p1", Container: "main", GPUs: []owners.GPU{
				{UUID: "GPU-0", Claims: []string{"quarter"}, MemoryLimitMiB: 20 << 10, CoresLimitPercent: 25}, {UUID: "GPU-1", Claims: []string{"quarter"}, MemoryLimitMiB: 10 << 10},
			}},
		},
		health: []Health{
			{UUID: "GPU-0", State: StateHealthy},
			{UUID: "GPU-1", State: StateUnhealthy, Conditions: map[string]int{"xid": 2}},
			{UUID: "MIG-a", State: "something else"},
		},
		regions: map[string]*region.Region{
			"/c/id1/vgpu.cache": {
				GPUs: 2, MemoryLimitBytes: []uint64{20 * gib, 10 * gib}, CoresLimitPercent: []uint64{25, 100}, LastKernel: fixedNow.Add(-90 * time.Second),
				Processes: []region.Process{
					{PID: 1, Memory: []region.Memory{{Context: 10, Module: 20, Buffer: 30, Total: 100}, {}}},
					{PID: 2, Memory: []region.Memory{{Context: 1, Module: 2, Buffer: 3, Total: 10}, {Total: 5}}},
				},
			},
			"/q/u3/p3/work/vgpu.cache": {GPUs: 1, MemoryLimitBytes: []uint64{0}, CoresLimitPercent: []uint64{10}},
		},
	}
}

// measure gives the node an observation of some age.
func (n *node) measure(age time.Duration) {
	owner := n.owners["id1"]
	n.failed = 3
	n.observation = &watch.Observation{
		At: n.now.Add(-age),
		GPUs: []watch.GPU{
			{UUID: "GPU-0", MemoryUsedBytes: new(uint64(30 * gib)), BusyPercent: new(uint32(75)), MemoryBusyPercent: new(uint32(10)), TellsProcesses: true, TellsBusy: true},
			{UUID: "GPU-1", MemoryUsedBytes: new(uint64(5 * gib)), TellsProcesses: true},
			{UUID: "GPU-2", MemoryUsedBytes: new(uint64(1 * gib))},
			{UUID: "GPU-9", MemoryUsedBytes: new(uint64(1 * gib))},
		},
		Uses: []watch.Use{
			{ContainerID: "id1", Owner: owner, GPU: &owner.GPUs[0], MemoryBytes: 19 * gib, BusyPercent: new(uint32(25))},
			{ContainerID: "id1", Owner: owner, GPU: &owner.GPUs[1], MemoryBytes: 4 * gib},
			{ContainerID: "gone", Owner: &owners.Owner{Namespace: "default", Pod: "old", Container: "main"}, GPU: &owners.GPU{UUID: "GPU-0"}, MemoryBytes: 1},
		},
	}
}
