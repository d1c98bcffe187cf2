// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/convert"
)

func class(name, extended string, selectors ...string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Spec: resourceapi.DeviceClassSpec{Selectors: cels(selectors...)}}
	if extended != "" {
		c.Spec.ExtendedResourceName = &extended
	}
	return c
}

func cels(expressions ...string) []resourceapi.DeviceSelector {
	var list []resourceapi.DeviceSelector
	for _, expression := range expressions {
		list = append(list, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return list
}

// slice publishes one GPU.
func slice(name, pool string, generation int64, uuid, product, memory string) *resourceapi.ResourceSlice {
	kind := api.DeviceTypeGPU
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: api.DriverName, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name: "gpu", AllowMultipleAllocations: new(true),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					api.AttrType: {StringValue: &kind}, api.AttrUUID: {StringValue: &uuid}, api.AttrProductName: {StringValue: &product},
				},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.CapacityMemory: {Value: resource.MustParse(memory)}},
			}},
		},
	}
}

// started returns an inventory that knows the objects.
func started(t *testing.T, objects ...runtime.Object) (*Inventory, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	inventory, err := New(client, api.DeviceClassGPU, api.DeviceClassMIG)
	if err != nil {
		t.Fatal(err)
	}
	if inventory.Ready() == nil {
		t.Error("it is ready before it was started")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- inventory.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() bool { return inventory.Ready() == nil })
	return inventory, client
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

func TestGPUs(t *testing.T) {
	t.Parallel()
	inventory, client := started(t,
		slice("b", "node-b", 2, "GPU-2", "H100", "80Gi"), slice("a", "node-a", 1, "GPU-1", "V100", "32510Mi"),
		slice("old", "node-b", 1, "GPU-3", "P100", "16Gi"))
	want := []convert.GPU{{UUID: "GPU-1", ProductName: "V100", MemoryBytes: 32510 << 20}, {UUID: "GPU-2", ProductName: "H100", MemoryBytes: 80 << 30}}
	if diff := cmp.Diff(want, inventory.GPUs()); diff != "" {
		t.Error(diff)
	}
	if err := client.ResourceV1().ResourceSlices().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return cmp.Equal(want[1:], inventory.GPUs()) })
}

func TestOurs(t *testing.T) {
	t.Parallel()
	const driver, other = `device.driver == "gpu.topodra.dev"`, `device.driver == "gpu.nvidia.com"`
	inventory, _ := started(t,
		slice("a", "node-a", 1, "GPU-1", "Tesla V100", "32Gi"),
		class(api.DeviceClassGPU, ""), class("any", ""), class("nvidia", "nvidia.com/gpu", other), class("team", "team.example.com/gpu", driver),
		class("v100", "", driver, `device.attributes["gpu.topodra.dev"].productName.contains("V100")`),
		class("b200", "", driver, `device.attributes["gpu.topodra.dev"].productName.contains("B200")`),
		class("mig", "", driver+` && device.attributes["gpu.topodra.dev"].type == "mig"`),
		class("broken", "", driver, `device.nonsense`), class("error", "", `device.attributes["x.example.com"].y == "z"`),
	)
	for _, c := range []struct {
		class     string
		selectors []string
		want      bool
	}{
		{api.DeviceClassGPU, nil, true},
		{api.DeviceClassGPU, []string{other}, true}, // the name says it
		{api.DeviceClassMIG, nil, true},             // even before the class exists
		{"any", nil, true},
		{"any", []string{other}, false},
		{"nvidia", nil, false},
		{"team", nil, true},
		{"team", []string{`device.attributes["gpu.topodra.dev"].uuid == "GPU-1"`}, true},
		{"team", []string{`device.attributes["gpu.topodra.dev"].uuid == "GPU-9"`}, false},
		{"v100", nil, true},
		{"b200", nil, false},
		{"mig", nil, true},
		{"broken", nil, false},
		{"error", nil, false},
		{"missing", nil, false},
	} {
		for range 2 { // the second answer is a remembered one
			if got := inventory.Ours(t.Context(), c.class, cels(c.selectors...)); got != c.want {
				t.Errorf("class %q with %q: got %t", c.class, c.selectors, got)
			}
		}
	}
	for resource, want := range map[string]bool{
		"nvidia.com/gpu": false, "team.example.com/gpu": true, "example.com/foo": false, "cpu": false,
		"deviceclass.resource.kubernetes.io/team": true, "deviceclass.resource.kubernetes.io/nvidia": false, "deviceclass.resource.kubernetes.io/gpu.topodra.dev": true,
	} {
		if got := inventory.OursByResource(t.Context(), resource); got != want {
			t.Errorf("resource %q: got %t", resource, got)
		}
	}
}

// TestVerdictsFollowChanges asks again when devices or classes have changed.
func TestVerdictsFollowChanges(t *testing.T) {
	t.Parallel()
	inventory, client := started(t, class("b200", "", `device.attributes["gpu.topodra.dev"].productName.contains("B200")`))
	ours := func() bool { return inventory.Ours(t.Context(), "b200", nil) }
	if ours() {
		t.Error("nobody has such a GPU")
	}
	if _, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice("a", "node-a", 1, "GPU-1", "NVIDIA B200", "180Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ours)
	changed := class("b200", "", `false`)
	changed.ResourceVersion = "2"
	if _, err := client.ResourceV1().DeviceClasses().Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !ours() })
}

// BenchmarkOurs asks about a class of another driver in a cluster of devices=16000: the worst case, as nothing passes.
func BenchmarkOurs(b *testing.B) {
	inventory, err := New(fake.NewClientset())
	if err != nil {
		b.Fatal(err)
	}
	expression := []string{`device.driver == "gpu.nvidia.com"`}
	devices := samples()[:1]
	for len(devices) < 16000 {
		devices = append(devices, devices[0])
	}
	for b.Loop() {
		for _, device := range devices {
			if inventory.passes(b.Context(), expression, device) {
				b.Fatal("a device of ours passes")
			}
		}
	}
}
