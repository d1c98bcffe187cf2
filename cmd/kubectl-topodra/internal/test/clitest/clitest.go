// SPDX-License-Identifier: Apache-2.0

// Package clitest makes the objects that an API server would hold, for tests of the commands: slices as the driver
// publishes them of a recorded machine, claims, pods.
//
// Concurrency: functions without state. Only tests import it.
package clitest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/topology/topotest"
)

// Epoch is when everything in tests began.
var Epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// Slice is what the driver publishes of a recorded machine: GPUs g0, g1, … of 16Gi.
func Slice(t *testing.T, node, machine string) resourceapi.ResourceSlice {
	t.Helper()
	recorded, err := topotest.Load(machine)
	if err != nil {
		t.Fatal(err)
	}
	attributes, err := slicecodec.Encode(recorded.Machine)
	if err != nil {
		t.Fatal(err)
	}
	s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-1"}}
	s.Spec = resourceapi.ResourceSliceSpec{
		Driver: api.DriverName, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}
	memory, all, one := resource.MustParse("16Gi"), resource.MustParse("100"), resource.MustParse("1")
	least, none := resource.MustParse("1Mi"), resource.MustParse("0")
	for i, a := range attributes {
		a = maps.Clone(a)
		a[api.AttrType] = Text(api.DeviceTypeGPU)
		a[api.AttrUUID] = Text(fmt.Sprintf("GPU-%s-%d", node, i))
		a[api.AttrProductName] = Text(recorded.Product.Name)
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("g%d", i), Attributes: a, AllowMultipleAllocations: new(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				api.CapacityMemory: {Value: memory, RequestPolicy: &resourceapi.CapacityRequestPolicy{
					Default: &memory, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &memory, Step: &least},
				}},
				api.CapacityCores: {Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
					Default: &none, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &none, Max: &all, Step: &one},
				}},
			},
		})
	}
	return s
}

// Partition publishes MIG devices of the profile instead of GPU i.
func Partition(s *resourceapi.ResourceSlice, i, parts int, profile, memory string) {
	var devices []resourceapi.Device
	for k := range s.Spec.Devices {
		if s.Spec.Devices[k].Name != fmt.Sprintf("g%d", i) {
			devices = append(devices, s.Spec.Devices[k])
			continue
		}
		for p := range parts {
			devices = append(devices, resourceapi.Device{
				Name: fmt.Sprintf("m%d-%d", i, p),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					api.AttrType: Text(api.DeviceTypeMIG), api.AttrIndex: {IntValue: new(int64(i))}, api.AttrProfile: Text(profile),
				},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.CapacityMemory: {Value: resource.MustParse(memory)}},
			})
		}
	}
	s.Spec.Devices = devices
}

// Taint taints GPU i of a slice.
func Taint(s *resourceapi.ResourceSlice, i int, key string) {
	for k := range s.Spec.Devices {
		if s.Spec.Devices[k].Name == fmt.Sprintf("g%d", i) {
			s.Spec.Devices[k].Taints = []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
	}
}

// Text is a string attribute.
func Text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

// Claim is a claim of namespace "ns" with one request "gpus", as yet without an allocation.
func Claim(name string, count int64, options ...func(*resourceapi.ResourceClaim)) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}}
	for _, o := range options {
		o(&c)
	}
	return c
}

// Share makes the claim's first request ask for a part of each GPU.
func Share(memory, cores string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			api.CapacityMemory: resource.MustParse(memory), api.CapacityCores: resource.MustParse(cores),
		}}
	}
}

// Required makes the claim demand a level.
func Required(level api.Level) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		config := &resourceapi.OpaqueDeviceConfiguration{Driver: api.DriverName}
		config.Parameters.Raw = fmt.Appendf(nil, `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","topology":{"policy":"Required","level":%q}}`, level)
		c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: config}}}
	}
}

// Allocated gives the claim devices of a node, so many seconds after the [Epoch], and reserves it for pods. What it consumes
// of each follows from its first request: everything, or the share.
func Allocated(node, devices string, seconds int, pods ...string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		a := &resourceapi.AllocationResult{AllocationTimestamp: &metav1.Time{Time: Epoch.Add(time.Duration(seconds) * time.Second)}}
		for device := range strings.SplitSeq(devices, ",") {
			r := resourceapi.DeviceRequestAllocationResult{Request: "gpus", Driver: api.DriverName, Pool: node, Device: device}
			if capacity := c.Spec.Devices.Requests[0].Exactly.Capacity; capacity != nil {
				r.ConsumedCapacity = capacity.Requests
			} else if strings.HasPrefix(device, "g") {
				r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
					api.CapacityMemory: resource.MustParse("16Gi"), api.CapacityCores: resource.MustParse("0"),
				}
			}
			a.Devices.Results = append(a.Devices.Results, r)
		}
		c.Status.Allocation = a
		for _, pod := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)})
		}
	}
}

// Pod is a pod of namespace "ns" of our scheduler that uses claims by name; it is on a node, or pending if that is empty.
func Pod(name, node string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.NodeName, p.Spec.SchedulerName, p.Status.Phase = node, api.SchedulerName, corev1.PodPending
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	if node != "" {
		p.Status.Phase = corev1.PodRunning
	}
	for _, claim := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
	}
	return p
}

// Node is a node that takes every pod.
func Node(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return n
}

// Classes are our device classes, the first one also for nvidia.com/gpu.
func Classes() []resourceapi.DeviceClass {
	class := func(name, kind string) resourceapi.DeviceClass {
		return resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q && device.attributes[%q].type == %q", api.DriverName, api.DriverName, kind)},
		}}}}
	}
	gpu := class(api.DeviceClassGPU, api.DeviceTypeGPU)
	gpu.Spec.ExtendedResourceName = new("nvidia.com/gpu")
	return []resourceapi.DeviceClass{gpu, class(api.DeviceClassMIG, api.DeviceTypeMIG)}
}

// Golden compares text with a file in testdata, or writes it.
func Golden(t *testing.T, update bool, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("reading the golden file (write it with -update): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update accepts it:\n%s", path, diff)
	}
}
