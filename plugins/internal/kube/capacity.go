// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Consumption is what one device of a request consumes, by capacity.
type Consumption map[resourceapi.QualifiedName]resource.Quantity

// MoreThanHalf returns the capacities of which two such requests would need more
// than the device has, even if nothing else were on it.
func (c Consumption) MoreThanHalf(d *Device) map[resourceapi.QualifiedName]bool {
	names := map[resourceapi.QualifiedName]bool{}
	for name, amount := range c {
		twice := amount.DeepCopy()
		twice.Add(amount)
		if twice.Cmp(d.Capacity[name].Value) > 0 {
			names[name] = true
		}
	}
	return names
}

// errCapacityRange means that the request cannot be rounded in 64 bits. The
// in-tree allocator aborts the pod with such a request.
var errCapacityRange = errors.New("capacity request is out of range")

// consume rounds a request for capacity by the policies of one device. ok is
// false when the device can never satisfy it: it lacks a capacity that is asked
// for, or a policy forbids the amount, or the device is too small.
//
// Capacities that are not asked for are consumed by their default, or whole.
func consume(request *resourceapi.CapacityRequirements, device *resourceapi.Device, fractional bool) (used Consumption, ok bool, err error) {
	var asked map[resourceapi.QualifiedName]resource.Quantity
	if request != nil {
		asked = request.Requests
	}
	for name := range asked {
		if _, found := device.Capacity[name]; !found {
			return nil, false, nil
		}
	}
	used = make(Consumption, len(device.Capacity))
	ok = true
	for name, capacity := range device.Capacity {
		amount := capacity.Value
		if value, found := asked[name]; found {
			if amount, err = roundUp(value, capacity.RequestPolicy, fractional); err != nil {
				return nil, false, fmt.Errorf("rounding capacity %q: %w", name, err)
			}
		} else if policy := capacity.RequestPolicy; policy != nil && policy.Default != nil {
			amount = *policy.Default
		}
		if amount.Sign() < 0 {
			return nil, false, fmt.Errorf("rounding capacity %q: %w", name, errCapacityRange)
		}
		if !allowed(amount, capacity.RequestPolicy, fractional) || amount.Cmp(capacity.Value) > 0 {
			ok = false
		}
		used[name] = amount.DeepCopy()
	}
	return used, ok, nil
}

// roundUp moves a requested amount up to the next that the policy names.
func roundUp(value resource.Quantity, policy *resourceapi.CapacityRequestPolicy, fractional bool) (resource.Quantity, error) {
	switch {
	case policy == nil:
		return value, nil
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundUpToRange(value, policy.ValidRange, fractional)
	case policy.ValidRange == nil:
		for _, valid := range policy.ValidValues {
			if value.Cmp(valid) <= 0 {
				return valid, nil
			}
		}
	}
	return value, nil
}

// roundUpToRange returns min + ceil((value − min) / step) · step, at least min.
func roundUpToRange(value resource.Quantity, valid *resourceapi.CapacityRequestPolicyRange, fractional bool) (resource.Quantity, error) {
	if value.Cmp(*valid.Min) < 0 {
		return *valid.Min, nil
	}
	if valid.Step == nil {
		return value, nil
	}
	unit := unitOf(valid, fractional)
	amount, err := unit.read(value)
	if err != nil {
		return resource.Quantity{}, err
	}
	low, step := unit.value(*valid.Min), unit.value(*valid.Step)
	if step <= 0 {
		return value, nil
	}
	steps := (amount - low) / step
	if (amount-low)%step != 0 {
		steps++
	}
	if steps > (math.MaxInt64-max(low, 0))/step {
		return resource.Quantity{}, errCapacityRange
	}
	return unit.quantity(low+steps*step, valid.Step.Format), nil
}

// allowed checks an amount against the policy. The default is always allowed.
func allowed(amount resource.Quantity, policy *resourceapi.CapacityRequestPolicy, fractional bool) bool {
	switch {
	case policy == nil, policy.Default != nil && amount.Cmp(*policy.Default) == 0:
		return true
	case policy.ValidRange != nil:
		return inRange(amount, policy.ValidRange, fractional)
	case len(policy.ValidValues) > 0:
		for _, valid := range policy.ValidValues {
			if amount.Cmp(valid) == 0 {
				return true
			}
		}
		return false
	}
	return true
}

// inRange checks an amount against the upper end and the step.
func inRange(amount resource.Quantity, valid *resourceapi.CapacityRequestPolicyRange, fractional bool) bool {
	if valid.Max != nil && amount.Cmp(*valid.Max) > 0 {
		return false
	}
	if valid.Step == nil {
		return true
	}
	unit := unitOf(valid, fractional)
	value, err := unit.read(amount)
	if err != nil {
		return false
	}
	low := int64(0)
	if valid.Min != nil {
		low = unit.value(*valid.Min)
	}
	step := unit.value(*valid.Step)
	return step <= 0 || (value-low)%step == 0
}

// capacityUnit is the resolution in which ranges are computed.
type capacityUnit bool

const (
	wholes capacityUnit = false
	millis capacityUnit = true
)

// unitOf picks thousandths if the feature is on and the range is exact in them.
func unitOf(valid *resourceapi.CapacityRequestPolicyRange, fractional bool) capacityUnit {
	if !fractional {
		return wholes
	}
	for _, q := range []*resource.Quantity{valid.Min, valid.Max, valid.Step} {
		if q == nil {
			continue
		}
		if _, err := millis.read(*q); err != nil {
			return wholes
		}
	}
	if valid.Step != nil && valid.Step.MilliValue() < 1 {
		return wholes
	}
	return millis
}

// value reads a quantity, rounding up.
func (u capacityUnit) value(q resource.Quantity) int64 {
	if u == millis {
		return q.MilliValue()
	}
	return q.Value()
}

// read reads a quantity that must fit into 64 bits, and exactly so in thousandths.
func (u capacityUnit) read(q resource.Quantity) (int64, error) {
	if u == millis {
		value := q.MilliValue()
		if q.Cmp(*resource.NewMilliQuantity(value, q.Format)) != 0 {
			return 0, errCapacityRange
		}
		return value, nil
	}
	if q.CmpInt64(math.MaxInt64) > 0 {
		return 0, errCapacityRange
	}
	return q.Value(), nil
}

// quantity is the inverse of value.
func (u capacityUnit) quantity(value int64, format resource.Format) resource.Quantity {
	if u == millis {
		return *resource.NewMilliQuantity(value, format)
	}
	return *resource.NewQuantity(value, format)
}

// fits says whether the device has room for the consumption besides what is
// consumed already.
func fits(used Consumption, consumed structured.ConsumedCapacity, device *resourceapi.Device) bool {
	for name, amount := range used {
		total := amount.DeepCopy()
		if already := consumed[name]; already != nil {
			total.Add(*already)
		}
		if total.Cmp(device.Capacity[name].Value) > 0 {
			return false
		}
	}
	return true
}
