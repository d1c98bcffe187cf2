// SPDX-License-Identifier: Apache-2.0

package livestate_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
)

// pair is a machine of two GPUs with NVLinks between them and one on its own.
func pair(t *testing.T) *topology.Machine {
	t.Helper()
	m := topology.New("pair", 3)
	m.NVLinks[0][1], m.NVLinks[1][0] = 4, 4
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

// gpus publishes a machine as devices g0, g1, …, with 16Gi and 100 % each.
func gpus(t *testing.T, m *topology.Machine) []resourceapi.Device {
	t.Helper()
	attributes, err := slicecodec.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	devices := make([]resourceapi.Device, 0, m.N())
	for i, a := range attributes {
		a = maps.Clone(a)
		a[api.AttrType] = resourceapi.DeviceAttribute{StringValue: new(api.DeviceTypeGPU)}
		a[api.AttrSimulated] = resourceapi.DeviceAttribute{BoolValue: new(true)}
		a[api.AttrUUID] = resourceapi.DeviceAttribute{StringValue: new("GPU-" + string(rune('0'+i)))}
		a[api.AttrProductName] = resourceapi.DeviceAttribute{StringValue: new("Model")}
		devices = append(devices, resourceapi.Device{
			Name: "g" + string(rune('0'+i)), Attributes: a,
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				api.CapacityMemory: {Value: resource.MustParse("16Gi")},
				api.CapacityCores:  {Value: resource.MustParse("100")},
			},
		})
	}
	return devices
}

func slice(node string, generation, count int64, devices ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: api.DriverName, NodeName: &node, Devices: devices,
		Pool: resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: count},
	}}
}

// result is what one device of a claim looks like; without amounts the device is exclusive.
func result(node, device, memory, cores string) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpus", Driver: api.DriverName, Pool: node, Device: device}
	if memory != "" {
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			api.CapacityMemory: resource.MustParse(memory), api.CapacityCores: resource.MustParse(cores),
		}
	}
	return r
}

func claim(name string, pods []string, results ...resourceapi.DeviceRequestAllocationResult) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	if len(results) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	}
	return c
}

func build(t *testing.T, resourceSlices []resourceapi.ResourceSlice, claims ...resourceapi.ResourceClaim) []livestate.Node {
	t.Helper()
	nodes, err := livestate.Build(resourceSlices, claims)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

func TestWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	admin := result("node", "g2", "", "")
	admin.AdminAccess = new(true)
	foreign := result("node", "g2", "", "")
	foreign.Driver = "other.example"
	nodes := build(t, []resourceapi.ResourceSlice{slice("node", 1, 1, gpus(t, pair(t))...)},
		claim("share-b", []string{"pod-z", "pod-a"}, result("node", "g1", "4Gi", "30")),
		claim("share-a", nil, result("node", "g1", "1536Mi", "0")),
		claim("whole", []string{"pod"}, result("node", "g0", "16Gi", "0")),
		claim("watcher", []string{"monitor"}, admin),
		claim("elsewhere", nil, foreign, result("node", "gone", "", ""), result("no-such-node", "g0", "", "")),
		claim("waiting", nil),
	)
	total := livestate.Capacity{MemoryMiB: 16 << 10, CoresPercent: 100}
	want := []livestate.GPU{
		{
			Position: 0, Device: "g0", UUID: "GPU-0", Product: "Model", Total: total, Free: livestate.Capacity{},
			Holders: []livestate.Holder{{Namespace: "ns", Claim: "whole", Request: "gpus", Pods: []string{"pod"}, Uses: livestate.Capacity{MemoryMiB: 16 << 10}, Whole: true}},
		},
		{
			Position: 1, Device: "g1", UUID: "GPU-1", Product: "Model", Total: total,
			Free: livestate.Capacity{MemoryMiB: 10<<10 + 512, CoresPercent: 70},
			Holders: []livestate.Holder{
				{Namespace: "ns", Claim: "share-a", Request: "gpus", Uses: livestate.Capacity{MemoryMiB: 1536}},
				{Namespace: "ns", Claim: "share-b", Request: "gpus", Pods: []string{"pod-a", "pod-z"}, Uses: livestate.Capacity{MemoryMiB: 4 << 10, CoresPercent: 30}},
			},
		},
		{
			Position: 2, Device: "g2", UUID: "GPU-2", Product: "Model", Total: total, Free: total,
			Holders: []livestate.Holder{{Namespace: "ns", Claim: "watcher", Request: "gpus", Pods: []string{"monitor"}, Uses: total, Whole: true, Admin: true}},
		},
	}
	if len(nodes) != 1 {
		t.Fatalf("%d nodes, want 1", len(nodes))
	}
	n := nodes[0]
	if diff := cmp.Diff(want, n.GPUs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if !n.Simulated || n.Name != "node" || n.Present != topology.FullMask(3) || n.Idle() != topology.MaskOf(2) || n.Machine.NVLinks[0][1] != 4 {
		t.Errorf("node %+v: want simulated, GPUs {0-2}, {2} idle, 4 NVLinks between 0 and 1", n)
	}
	if at, ok := n.Find("g1"); !ok || at != 1 {
		t.Errorf("g1 is at %d, %v", at, ok)
	}
	if _, ok := n.Find(""); ok {
		t.Error("a device without a name was found")
	}
}

// TestNewestGeneration: what an earlier generation of the pool had is gone, wherever its slices stand in the list.
func TestNewestGeneration(t *testing.T) {
	t.Parallel()
	old, current := gpus(t, pair(t)), gpus(t, pair(t))
	current[0].Capacity[api.CapacityMemory] = resourceapi.DeviceCapacity{Value: resource.MustParse("8Gi")}
	for _, order := range [][]resourceapi.ResourceSlice{
		{slice("node", 1, 1, old...), slice("node", 2, 2, current[:2]...), slice("node", 2, 2, current[2])},
		{slice("node", 2, 2, current[2]), slice("node", 1, 1, old...), slice("node", 2, 2, current[:2]...)},
	} {
		n := build(t, order)[0]
		if len(n.GPUs) != 3 || n.GPUs[0].Total.MemoryMiB != 8<<10 || len(n.Warnings) != 0 {
			t.Errorf("got %+v, warnings %q; want three GPUs, the first with 8Gi", n.GPUs, n.Warnings)
		}
	}
	n := build(t, []resourceapi.ResourceSlice{slice("node", 2, 2, current[:2]...)})[0]
	want := []string{`pool "node" is incomplete: 1 of 2 slices are there`}
	if diff := cmp.Diff(want, n.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if n.Present != topology.MaskOf(0, 1) || n.GPUs[2].Device != "" || n.GPUs[2].Idle() {
		t.Errorf("the GPU of the missing slice counts as there: %+v", n.GPUs[2])
	}
}

func TestMIGParts(t *testing.T) {
	t.Parallel()
	devices := gpus(t, pair(t))
	part := resourceapi.Device{Name: "g1-mig", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		api.AttrType: {StringValue: new(api.DeviceTypeMIG)}, api.AttrIndex: {IntValue: new(int64(1))},
	}}
	held := claim("small", []string{"pod"}, result("node", "g1-mig", "", ""))
	n := build(t, []resourceapi.ResourceSlice{slice("node", 1, 1, devices[0], part, devices[2])}, held)[0]
	want := []livestate.Holder{{Namespace: "ns", Claim: "small", Request: "gpus", Pods: []string{"pod"}, Device: "g1-mig"}}
	if diff := cmp.Diff(want, n.GPUs[1].Holders); diff != "" {
		t.Errorf("holders of the partitioned GPU (-want +got):\n%s", diff)
	}
	if n.Present != topology.MaskOf(0, 2) || n.Idle() != topology.MaskOf(0, 2) {
		t.Errorf("present %s, idle %s; want {0,2}", n.Present, n.Idle())
	}
	// Nothing but parts.
	n = build(t, []resourceapi.ResourceSlice{slice("node", 1, 1, part)}, held)[0]
	if n.Present != 0 || len(n.GPUs) != 2 || len(n.GPUs[1].Holders) != 1 || len(n.Warnings) != 1 || !strings.Contains(n.Warnings[0], "as a whole") {
		t.Errorf("node of parts only: %+v", n)
	}
}

// TestTaintsAndOrder: nodes come by name, taints are shown, other drivers and slices without a node are passed over.
func TestTaintsAndOrder(t *testing.T) {
	t.Parallel()
	tainted := gpus(t, pair(t))
	tainted[0].Taints = []resourceapi.DeviceTaint{{Key: "gpu.topodra.dev/lost", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	other := slice("node-a", 1, 1, gpus(t, pair(t))...)
	other.Spec.Driver = "other.example"
	everywhere := slice("node-c", 1, 1, gpus(t, pair(t))...)
	everywhere.Spec.NodeName = nil
	nodes := build(t, []resourceapi.ResourceSlice{slice("node-b", 1, 1, tainted...), other, everywhere, slice("node-a", 1, 1, gpus(t, pair(t))...)})
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	if !slices.Equal(names, []string{"node-a", "node-b"}) {
		t.Errorf("nodes %q", names)
	}
	if diff := cmp.Diff([]string{"NoSchedule:gpu.topodra.dev/lost"}, nodes[1].GPUs[0].Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

func TestUnreadableAttributesNameTheNode(t *testing.T) {
	t.Parallel()
	devices := gpus(t, pair(t))
	devices[0].Attributes[api.AttrNVLinks] = resourceapi.DeviceAttribute{StringValue: new("x?0")}
	_, err := livestate.Build([]resourceapi.ResourceSlice{slice("node-x", 1, 1, devices...)}, nil)
	if err == nil || !strings.Contains(err.Error(), `"node-x"`) {
		t.Errorf("error %v, want one that names the node", err)
	}
}
