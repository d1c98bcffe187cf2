// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	// celCacheSize is how many compiled expressions are kept.
	celCacheSize = 256
	// maxMatches is how many requests are remembered per pool.
	maxMatches = 64
)

// Match says which devices of a pool a request could ever get, whatever else
// is allocated, and what it would consume of each.
type Match struct {
	// Eligible by index of the pool's devices: selectors, taints, capacity
	// policies and size all pass.
	Eligible []bool
	// Use of an eligible device, nil for devices that are never shared.
	Use []Consumption
	// Count of eligible devices.
	Count int
}

// Matcher evaluates requests against devices as the in-tree allocator does.
// It is safe for concurrent use.
type Matcher struct {
	features structured.Features
	cache    *cel.Cache
}

// NewMatcher makes a matcher for the enabled features.
func NewMatcher(features structured.Features) *Matcher {
	return &Matcher{features: features, cache: cel.NewCache(celCacheSize, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	})}
}

// Match evaluates the request on all devices of the pool. An error means that
// the in-tree allocator will refuse the pod, or that the context ended. The
// result is remembered with the pool.
func (m *Matcher) Match(ctx context.Context, pool *Pool, request *Request) (*Match, error) {
	pool.matchMutex.Lock()
	defer pool.matchMutex.Unlock()
	if match, ok := pool.matches[request.key]; ok {
		return match, nil
	}
	match := &Match{Eligible: make([]bool, len(pool.Devices)), Use: make([]Consumption, len(pool.Devices))}
	for i := range pool.Devices {
		device := &pool.Devices[i]
		eligible, use, err := m.matchDevice(ctx, pool.Driver, device, request)
		if err != nil {
			return nil, fmt.Errorf("matching request %q with device %q: %w", request.Name, device.ID, err)
		}
		if !eligible {
			continue
		}
		match.Eligible[i] = true
		match.Count++
		match.Use[i] = use
	}
	if len(pool.matches) >= maxMatches {
		clear(pool.matches)
	}
	pool.matches[request.key] = match
	return match, nil
}

// matchDevice evaluates one device.
func (m *Matcher) matchDevice(ctx context.Context, driver string, device *Device, request *Request) (bool, Consumption, error) {
	if !m.features.DeviceBindingAndStatus && len(device.BindingConditions) > 0 ||
		!m.features.PartitionableDevices && len(device.ConsumesCounters) > 0 {
		return false, nil, nil
	}
	for _, expression := range request.Selectors {
		matches, err := m.evaluate(ctx, driver, device.Device, expression)
		if err != nil || !matches {
			return false, nil, err
		}
	}
	if m.features.DeviceTaints && Tainted(device.Device, request.Tolerations) {
		return false, nil, nil
	}
	if !m.features.ConsumableCapacity {
		return true, nil, nil
	}
	use, ok, err := consume(request.Capacity, device.Device, m.features.FractionalCapacityRange)
	if err != nil || !ok {
		return false, nil, err
	}
	if !device.Shareable() {
		use = nil
	}
	return true, use, nil
}

// evaluate runs one selector.
func (m *Matcher) evaluate(ctx context.Context, driver string, device *resourceapi.Device, expression string) (bool, error) {
	compiled := m.cache.GetOrCompile(expression)
	if compiled.Error != nil {
		return false, fmt.Errorf("compiling selector %q: %w", expression, compiled.Error)
	}
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver: driver, AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes: device.Attributes, Capacity: device.Capacity,
	})
	if err != nil {
		return false, fmt.Errorf("evaluating selector %q: %w", expression, err)
	}
	return matches, nil
}

// Tainted says whether a taint of the device keeps new claims away that have
// only these tolerations.
func Tainted(device *resourceapi.Device, tolerations []resourceapi.DeviceToleration) bool {
	for _, taint := range device.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		tolerated := false
		for _, toleration := range tolerations {
			tolerated = tolerated || resourceclaim.ToleratesTaint(toleration, taint)
		}
		if !tolerated {
			return true
		}
	}
	return false
}
