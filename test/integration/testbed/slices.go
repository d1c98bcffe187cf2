// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	for i, devices := range lists {
		s.PublishPart(driver, node, i, len(lists), devices)
	}
}

// PublishPart writes slice i of the n slices of a pool.
func (s *Scene) PublishPart(driver, node string, i, n int, devices []resourceapi.Device) {
	s.t.Helper()
	s.publish(fmt.Sprintf("%s-%s-%d", driver, node, i), resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Devices: devices,
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(n)},
	})
}

// PublishWithCounters writes a pool of devices that consume shared counters, which have a slice of their own.
func (s *Scene) PublishWithCounters(driver, node string, counters []resourceapi.CounterSet, devices []resourceapi.Device) {
	s.t.Helper()
	s.publish(fmt.Sprintf("%s-%s-counters", driver, node), resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, SharedCounters: counters,
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2},
	})
	s.PublishPart(driver, node, 1, 2, devices)
}

// PublishForAll does so for devices that every node can use.
func (s *Scene) PublishForAll(driver, pool string, devices []resourceapi.Device) {
	s.t.Helper()
	s.publish(fmt.Sprintf("%s-%s", driver, pool), resourceapi.ResourceSliceSpec{
		Driver: driver, AllNodes: new(true), Devices: devices,
		Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
	})
}

// publish creates a slice for the time of the test.
func (s *Scene) publish(name string, spec resourceapi.ResourceSliceSpec) {
	s.t.Helper()
	slices := s.Client.ResourceV1().ResourceSlices()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := slices.Create(s.ctx, slice, metav1.CreateOptions{}); err != nil {
		s.t.Fatalf("publishing slice %q: %v", name, err)
	}
	s.Finally(func(ctx context.Context) error {
		if err := slices.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) { // its node took it along
			return err
		}
		return nil
	})
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
