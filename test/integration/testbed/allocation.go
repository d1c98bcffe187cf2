// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// Allocation is what a claim got.
type Allocation struct {
	// Node that the devices are on.
	Node string
	// GPUs of our driver, by position; ByRequest also by the name of the request as in the result ("request/alternative").
	GPUs      topology.Mask
	ByRequest map[string]topology.Mask
	// Devices of other drivers, sorted names.
	Devices []string
}

// String shows an allocation for people and for comparison.
func (a Allocation) String() string {
	parts := []string{a.Node, a.GPUs.String()}
	for _, request := range slices.Sorted(maps.Keys(a.ByRequest)) {
		parts = append(parts, fmt.Sprintf("%s=%s", request, a.ByRequest[request]))
	}
	if len(a.Devices) > 0 {
		parts = append(parts, strings.Join(a.Devices, ","))
	}
	return strings.Join(parts, " ")
}

// Allocation reads what a claim got; it must have got something.
func (s *Scene) Allocation(claim string) Allocation {
	s.t.Helper()
	object, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(s.ctx, claim, metav1.GetOptions{})
	if err != nil {
		s.t.Fatalf("reading claim %q: %v", claim, err)
	}
	allocation, err := s.read(s.ctx, object)
	if err != nil {
		s.t.Fatalf("reading claim %q: %v", claim, err)
	}
	return allocation
}

// read translates the results of a claim into positions.
func (b *Bed) read(ctx context.Context, claim *resourceapi.ResourceClaim) (Allocation, error) {
	a := Allocation{ByRequest: map[string]topology.Mask{}}
	if claim.Status.Allocation == nil {
		return a, fmt.Errorf("claim %q is not allocated", claim.Name)
	}
	pools, err := b.pools(ctx)
	if err != nil {
		return a, err
	}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		device, ok := pools[deviceKey{result.Driver, result.Pool, result.Device}]
		if !ok {
			return a, fmt.Errorf("claim %q holds device %s/%s/%s, which no slice has", claim.Name, result.Driver, result.Pool, result.Device)
		}
		if a.Node != "" && a.Node != device.node {
			return a, fmt.Errorf("claim %q holds devices of nodes %q and %q", claim.Name, a.Node, device.node)
		}
		a.Node = device.node
		index, ok := device.Attributes[api.AttrIndex]
		kind := device.Attributes[api.AttrType].StringValue
		if result.Driver != api.DriverName || !ok || index.IntValue == nil || kind != nil && *kind != api.DeviceTypeGPU {
			a.Devices = append(a.Devices, result.Device)
			continue
		}
		position := int(*index.IntValue)
		if a.ByRequest[result.Request].Has(position) {
			return a, fmt.Errorf("request %q of claim %q holds GPU %d twice", result.Request, claim.Name, position)
		}
		a.ByRequest[result.Request] = a.ByRequest[result.Request].With(position)
		a.GPUs = a.GPUs.With(position)
	}
	slices.Sort(a.Devices)
	return a, nil
}

// WantGPUs checks which GPUs of our driver a claim has, and where.
func (s *Scene) WantGPUs(claim, node, gpus string) {
	s.t.Helper()
	a := s.Allocation(claim)
	if got, want := fmt.Sprintf("%s %s", a.Node, a.GPUs), fmt.Sprintf("%s {%s}", node, gpus); got != want {
		s.t.Errorf("claim %q got %s, want %s", claim, got, want)
	}
	if len(a.Devices) > 0 {
		s.t.Errorf("claim %q also got %q", claim, a.Devices)
	}
}

// WantRequest checks which GPUs a request of a claim has.
func (s *Scene) WantRequest(claim, request, gpus string) {
	s.t.Helper()
	a := s.Allocation(claim)
	if got, want := a.ByRequest[request].String(), "{"+gpus+"}"; got != want {
		s.t.Errorf("request %q of claim %q got %s, want %s (all: %s)", request, claim, got, want, a)
	}
}

// WantDevices checks which devices of other drivers a claim has.
func (s *Scene) WantDevices(claim, node string, devices ...string) {
	s.t.Helper()
	a := s.Allocation(claim)
	if a.Node != node || !slices.Equal(a.Devices, devices) || a.GPUs != 0 {
		s.t.Errorf("claim %q got %s, want %s %q", claim, a, node, devices)
	}
}

// DeviceName returns the name of the GPU at a position of a node.
func (s *Scene) DeviceName(node string, position int) string {
	s.t.Helper()
	pools, err := s.pools(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for key, device := range pools {
		index := device.Attributes[api.AttrIndex].IntValue
		if key.driver == api.DriverName && device.node == node && index != nil && *index == int64(position) {
			return key.device
		}
	}
	s.t.Fatalf("node %q has no GPU %d", node, position)
	return ""
}

// WaitAttribute waits until the GPU at a position of a node has a text attribute.
func (s *Scene) WaitAttribute(node string, position int, name resourceapi.QualifiedName, want string) {
	s.t.Helper()
	s.Eventually(func(ctx context.Context) string {
		pools, err := s.pools(ctx)
		if err != nil {
			return err.Error()
		}
		got := "no GPU"
		for key, device := range pools {
			index := device.Attributes[api.AttrIndex].IntValue
			if key.driver != api.DriverName || device.node != node || index == nil || *index != int64(position) {
				continue
			}
			if value := device.Attributes[name].StringValue; value != nil {
				got = *value
			}
		}
		if got == want {
			return ""
		}
		return fmt.Sprintf("attribute %q of GPU %d of node %q is %q, not %q", name, position, node, got, want)
	})
}

// WaitTaint waits until a GPU of a node has a taint with the key.
func (s *Scene) WaitTaint(node string, position int, key string) {
	s.t.Helper()
	s.Eventually(func(ctx context.Context) string {
		pools, err := s.pools(ctx)
		if err != nil {
			return err.Error()
		}
		for pool, device := range pools {
			index := device.Attributes[api.AttrIndex].IntValue
			if pool.driver != api.DriverName || device.node != node || index == nil || *index != int64(position) {
				continue
			}
			if slices.ContainsFunc(device.Taints, func(taint resourceapi.DeviceTaint) bool { return taint.Key == key }) {
				return ""
			}
			return fmt.Sprintf("GPU %d of node %q has taints %v, not %q", position, node, device.Taints, key)
		}
		return fmt.Sprintf("node %q has no GPU %d", node, position)
	})
}

// deviceKey identifies a device in the cluster.
type deviceKey struct{ driver, pool, device string }

// placedDevice is a device with the node of its slice.
type placedDevice struct {
	*resourceapi.Device

	node string
}

// pools reads all devices of the newest generation of every pool.
func (b *Bed) pools(ctx context.Context) (map[deviceKey]placedDevice, error) {
	list, err := b.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ResourceSlices: %w", err)
	}
	newest := map[deviceKey]int64{}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		key := deviceKey{driver: spec.Driver, pool: spec.Pool.Name}
		newest[key] = max(newest[key], spec.Pool.Generation)
	}
	devices := map[deviceKey]placedDevice{}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.Pool.Generation < newest[deviceKey{driver: spec.Driver, pool: spec.Pool.Name}] {
			continue
		}
		node := ""
		if spec.NodeName != nil {
			node = *spec.NodeName
		}
		for d := range spec.Devices {
			devices[deviceKey{spec.Driver, spec.Pool.Name, spec.Devices[d].Name}] = placedDevice{&spec.Devices[d], node}
		}
	}
	return devices, nil
}

// checkBookings returns an error if a device is held by more than it has room for. It shares no code with the scheduler.
func (b *Bed) checkBookings(ctx context.Context) error {
	devices, err := b.pools(ctx)
	if err != nil {
		return err
	}
	claims, err := b.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	booked := bookings{whole: map[deviceKey]string{}, shared: map[deviceKey]amounts{}}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		for r := range claim.Status.Allocation.Devices.Results {
			if err := booked.add(claim.Name, &claim.Status.Allocation.Devices.Results[r]); err != nil {
				return err
			}
		}
	}
	return booked.compare(devices)
}

// amounts are capacities by name.
type amounts map[resourceapi.QualifiedName]resource.Quantity

// bookings sum up what claims hold.
type bookings struct {
	whole  map[deviceKey]string // exclusive holder
	shared map[deviceKey]amounts
}

// add enters one result.
func (b *bookings) add(claim string, result *resourceapi.DeviceRequestAllocationResult) error {
	if result.AdminAccess != nil && *result.AdminAccess {
		return nil
	}
	key := deviceKey{result.Driver, result.Pool, result.Device}
	if result.ShareID == nil {
		if other, taken := b.whole[key]; taken {
			return fmt.Errorf("device %v belongs to claims %q and %q", key, other, claim)
		}
		b.whole[key] = claim
		return nil
	}
	if b.shared[key] == nil {
		b.shared[key] = amounts{}
	}
	for name, amount := range result.ConsumedCapacity {
		sum := b.shared[key][name]
		sum.Add(amount)
		b.shared[key][name] = sum
	}
	return nil
}

// compare returns an error if a device has less than its holders. A device that is gone has nothing to compare with.
func (b *bookings) compare(devices map[deviceKey]placedDevice) error {
	for key, sums := range b.shared {
		if holder, taken := b.whole[key]; taken {
			return fmt.Errorf("device %v has shares and belongs to claim %q", key, holder)
		}
		device, ok := devices[key]
		if !ok {
			continue
		}
		for name, sum := range sums {
			if value := device.Capacity[name].Value; sum.Cmp(value) > 0 {
				return fmt.Errorf("device %v: %s of %s are taken, it has %s", key, sum.String(), name, value.String())
			}
		}
	}
	return nil
}
