// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	testDriver = "gpu.example.com"
	testClass  = "gpu"
)

// variants are the features that select each allocator that our gates allow:
// what Kubernetes 1.37 enables by default, and that plus one alpha feature.
var variants = map[string]structured.Features{
	"incubating": defaultFeatures(),
	"experimental": func() structured.Features {
		f := defaultFeatures()
		f.ListTypeAttributes = true
		return f
	}(),
}

func defaultFeatures() structured.Features {
	return structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true,
	}
}

// forEachVariant runs the test with every allocator.
func forEachVariant(t *testing.T, run func(t *testing.T, features structured.Features)) {
	t.Helper()
	for name, features := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, features)
		})
	}
}

// fakeManager serves fixed objects.
type fakeManager struct {
	fwk.SharedDRAManager
	slices  []*resourceapi.ResourceSlice
	state   structured.AllocatedState
	claims  fakeClaims
	classes fakeClasses
}

func newManager(list ...*resourceapi.ResourceSlice) *fakeManager {
	m := &fakeManager{slices: list, classes: fakeClasses{testClass: {ObjectMeta: metav1.ObjectMeta{Name: testClass}}}}
	m.state = structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	m.claims = fakeClaims{manager: m}
	return m
}

func (m *fakeManager) ResourceClaims() fwk.ResourceClaimTracker { return m.claims }
func (m *fakeManager) ResourceSlices() fwk.ResourceSliceLister  { return m }
func (m *fakeManager) DeviceClasses() fwk.DeviceClassLister     { return m.classes }

// ListWithDeviceTaintRules returns a new list in random order, as the real one does.
func (m *fakeManager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	list := slices.Clone(m.slices)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list, nil
}

type fakeClaims struct {
	fwk.ResourceClaimTracker
	manager *fakeManager
}

func (c fakeClaims) GatherAllocatedState() (*structured.AllocatedState, error) {
	state := c.manager.state
	return &state, nil
}

func (c fakeClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	return c.manager.state.AllocatedDevices, nil
}

type fakeClasses map[string]*resourceapi.DeviceClass

func (c fakeClasses) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (c fakeClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("no class %q", name)
}

// record plays the calls of the in-tree PreFilter.
func record(t *testing.T, overlay *Overlay) *View {
	t.Helper()
	return overlay.Record(func() {
		if _, err := overlay.ResourceClaims().GatherAllocatedState(); err != nil {
			t.Fatal(err)
		}
		if _, err := overlay.ResourceSlices().ListWithDeviceTaintRules(); err != nil {
			t.Fatal(err)
		}
	})
}

// slice makes a node-local slice of a pool named like the node.
func slice(node, name string, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: testDriver, NodeName: &node, Devices: devices,
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: count},
		},
	}
}

// gpus makes exclusive devices gpu-<from> to gpu-<to>.
func gpus(from, to int) []resourceapi.Device {
	var devices []resourceapi.Device
	for i := from; i <= to; i++ {
		devices = append(devices, resourceapi.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"index": {IntValue: new(int64(i))}},
		})
	}
	return devices
}

// shared makes the devices shareable, with 80Gi of memory in steps of 1Gi.
func shared(devices []resourceapi.Device) []resourceapi.Device {
	for i := range devices {
		devices[i].AllowMultipleAllocations = new(true)
		devices[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
			Value: resource.MustParse("80Gi"),
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: new(resource.MustParse("80Gi")),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min: new(resource.MustParse("1Gi")), Max: new(resource.MustParse("80Gi")), Step: new(resource.MustParse("1Gi")),
				},
			},
		}}
	}
	return devices
}

// claim makes a claim of several requests.
func claim(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"}}
	c.Spec.Devices.Requests = requests
	return c
}

// request asks for a number of devices of the test class.
func request(name string, count int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: testClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
}

// memory asks for a share.
func memory(r resourceapi.DeviceRequest, amount string) resourceapi.DeviceRequest {
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)},
	}
	return r
}

func node(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// allocate returns the devices by request, in order; nil if nothing fits.
func allocate(t *testing.T, oracle *Oracle, nodeName string, claims ...*resourceapi.ResourceClaim) []string {
	t.Helper()
	results, err := oracle.Allocate(t.Context(), node(nodeName), claims)
	if err != nil {
		t.Fatalf("Allocate(%s): %v", nodeName, err)
	}
	var devices []string
	for _, result := range results {
		for _, device := range result.Devices.Results {
			if device.Pool != nodeName {
				t.Errorf("device %s comes from pool %q, want %q", device.Device, device.Pool, nodeName)
			}
			devices = append(devices, device.Request+"="+device.Device)
		}
	}
	return devices
}
