// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"context"
	"fmt"
	"math"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/topology/placement"
)

// celCacheSize is how many compiled selectors are kept.
const celCacheSize = 256

func newSelectors() *cel.Cache {
	return cel.NewCache(celCacheSize, cel.Features{EnableConsumableCapacity: true})
}

// matches says whether a device could ever serve the request, and what it would consume of it; shared tells whether it leaves
// the rest to others.
func (p *Planner) matches(ctx context.Context, d *resourceapi.Device, r *ask.Request) (use placement.Capacity, shared, ok bool, err error) {
	for _, expression := range r.Selectors {
		compiled := p.selectors.GetOrCompile(expression)
		if compiled.Error != nil {
			return use, false, false, fmt.Errorf("request %q: the selector %q cannot be compiled: %w", r.Name, expression, compiled.Error)
		}
		match, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver: api.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
		})
		if err != nil {
			return use, false, false, fmt.Errorf("request %q: the selector %q fails on device %q: %w", r.Name, expression, d.Name, err)
		}
		if !match {
			return use, false, false, nil
		}
	}
	if !tolerated(d, r.Tolerations) {
		return use, false, false, nil
	}
	use, ok = consume(r.Capacity, d)
	shared = d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	return use, shared, ok, nil
}

// tolerated says whether no taint of the device keeps claims with these tolerations away.
func tolerated(d *resourceapi.Device, tolerations []resourceapi.DeviceToleration) bool {
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		found := false
		for _, toleration := range tolerations {
			found = found || resourceclaim.ToleratesTaint(toleration, taint)
		}
		if !found {
			return false
		}
	}
	return true
}

// consume rounds a request for capacity by the policies of the device. It is false when the device can never give so much.
func consume(request *resourceapi.CapacityRequirements, d *resourceapi.Device) (placement.Capacity, bool) {
	var asked map[resourceapi.QualifiedName]resource.Quantity
	if request != nil {
		asked = request.Requests
	}
	for name := range asked {
		if _, found := d.Capacity[name]; !found {
			return placement.Capacity{}, false
		}
	}
	used := map[resourceapi.QualifiedName]int64{}
	for name, capacity := range d.Capacity {
		amount := capacity.Value.Value()
		policy := capacity.RequestPolicy
		if value, found := asked[name]; found {
			amount = roundUp(value, policy)
		} else if policy != nil && policy.Default != nil {
			amount = policy.Default.Value()
		}
		if amount > capacity.Value.Value() || amount < 0 || !allowed(amount, policy) {
			return placement.Capacity{}, false
		}
		used[name] = amount
	}
	return placement.Capacity{
		MemoryMiB: (used[api.CapacityMemory] + 1<<20 - 1) >> 20, CoresPercent: used[api.CapacityCores], Slots: used[api.CapacitySlots],
	}, true
}

// roundUp moves an amount up to the next that the policy names.
func roundUp(value resource.Quantity, policy *resourceapi.CapacityRequestPolicy) int64 {
	if value.CmpInt64(math.MaxInt64>>1) > 0 {
		return math.MaxInt64 >> 1 // more than anything has
	}
	amount := value.Value()
	switch {
	case policy == nil:
	case policy.ValidRange != nil:
		low := int64(0)
		if policy.ValidRange.Min != nil {
			low = policy.ValidRange.Min.Value()
		}
		if amount < low {
			return low
		}
		if policy.ValidRange.Step != nil {
			if step := policy.ValidRange.Step.Value(); step > 0 && (amount-low)%step != 0 {
				return low + ((amount-low)/step+1)*step
			}
		}
	default:
		for _, valid := range policy.ValidValues {
			if value.Cmp(valid) <= 0 {
				return valid.Value()
			}
		}
	}
	return amount
}

func allowed(amount int64, policy *resourceapi.CapacityRequestPolicy) bool {
	switch {
	case policy == nil, policy.Default != nil && policy.Default.CmpInt64(amount) == 0:
		return true
	case policy.ValidRange != nil:
		return policy.ValidRange.Max == nil || policy.ValidRange.Max.CmpInt64(amount) >= 0
	case len(policy.ValidValues) > 0:
		for _, valid := range policy.ValidValues {
			if valid.CmpInt64(amount) == 0 {
				return true
			}
		}
		return false
	}
	return true
}

// attribute finds an attribute by its full name; an unqualified name in a slice belongs to the driver's domain.
func attribute(d *resourceapi.Device, name resourceapi.FullyQualifiedName) (value any, ok bool) {
	a, found := d.Attributes[resourceapi.QualifiedName(name)]
	if !found {
		domain, id, qualified := strings.Cut(string(name), "/")
		if !qualified || domain != api.DriverName {
			return nil, false
		}
		if a, found = d.Attributes[resourceapi.QualifiedName(id)]; !found {
			return nil, false
		}
	}
	switch {
	case a.StringValue != nil:
		return *a.StringValue, true
	case a.IntValue != nil:
		return *a.IntValue, true
	case a.BoolValue != nil:
		return *a.BoolValue, true
	case a.VersionValue != nil:
		return "version " + *a.VersionValue, true
	default:
		return nil, false
	}
}
