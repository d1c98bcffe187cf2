// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Attributes of a device: values are string, int, bool.
type Attributes map[resourceapi.QualifiedName]any

// Device makes a device that one claim holds at a time.
func Device(name string, attributes Attributes) resourceapi.Device {
	device := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for key, value := range attributes {
		var attribute resourceapi.DeviceAttribute
		switch v := value.(type) {
		case string:
			attribute.StringValue = &v
		case int:
			attribute.IntValue = new(int64(v))
		case bool:
			attribute.BoolValue = &v
		default:
			panic(fmt.Sprintf("attribute %q: %T is no attribute type", key, value)) // a mistake in the test itself
		}
		device.Attributes[key] = attribute
	}
	return device
}

// Publish writes the slices of a pool by hand, one per list of devices, as a driver without kubelet would. The pool is named
// after the node. It disappears with the test.
func (s *Scene) Publish(driver, node string, lists ...[]resourceapi.Device) {
	s.t.Helper()
	slices := s.Client.ResourceV1().ResourceSlices()
	for i, devices := range lists {
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", driver, node, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Devices: devices,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(lists))},
			},
		}
		if _, err := slices.Create(s.ctx, slice, metav1.CreateOptions{}); err != nil {
			s.t.Fatalf("publishing for driver %q on node %q: %v", driver, node, err)
		}
		s.Finally(func(ctx context.Context) error { return slices.Delete(ctx, slice.Name, metav1.DeleteOptions{}) })
	}
}

// DeviceClass creates a class of all devices of a driver. It disappears with the test.
func (s *Scene) DeviceClass(name, driver string) {
	s.t.Helper()
	classes := s.Client.ResourceV1().DeviceClasses()
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)},
		}}},
	}
	if _, err := classes.Create(s.ctx, class, metav1.CreateOptions{}); err != nil {
		s.t.Fatalf("creating device class %q: %v", name, err)
	}
	s.Finally(func(ctx context.Context) error { return classes.Delete(ctx, name, metav1.DeleteOptions{}) })
}
