// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"pgregory.net/rapid"
)

// resolveOne resolves a plain request.
func resolveOne(t interface {
	Helper()
	Fatal(args ...any)
}, classes fakeClasses, r resourceapi.DeviceRequest,
) *Request {
	t.Helper()
	alternatives, err := Alternatives(&r, classes)
	if err != nil {
		t.Fatal(err)
	}
	return alternatives[0]
}

func TestMatchSelectorsAndTaints(t *testing.T) {
	t.Parallel()
	devices := gpus(0, 3)
	devices[1].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	devices[2].Taints = []resourceapi.DeviceTaint{{Key: "old", Effect: resourceapi.DeviceTaintEffectNone}}
	manager := newManager(slice("a", "a-0", 1, devices...))
	manager.classes["odd"] = &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "odd"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].index % 2 == 1`},
		}}},
	}
	pool := record(t, NewOverlay(manager)).Node("a").Pools[0]
	matcher := NewMatcher(defaultFeatures())
	for name, tc := range map[string]struct {
		change func(r *resourceapi.ExactDeviceRequest)
		want   []bool
	}{
		"taints": {func(*resourceapi.ExactDeviceRequest) {}, []bool{true, false, true, true}},
		"tolerated": {func(r *resourceapi.ExactDeviceRequest) {
			r.Tolerations = []resourceapi.DeviceToleration{{Key: "broken", Operator: resourceapi.DeviceTolerationOpExists}}
		}, []bool{true, true, true, true}},
		"class selector": {func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = "odd" }, []bool{false, false, false, true}},
		"own selector": {func(r *resourceapi.ExactDeviceRequest) {
			r.Selectors = []resourceapi.DeviceSelector{{
				CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].index < 3`},
			}}
		}, []bool{true, false, true, false}},
		"unknown capacity": {func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")},
			}
		}, []bool{false, false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request("r", 1)
			tc.change(r.Exactly)
			match, err := matcher.Match(t.Context(), pool, resolveOne(t, manager.classes, r))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(match.Eligible, tc.want) {
				t.Errorf("eligible = %v, want %v", match.Eligible, tc.want)
			}
		})
	}
}

func TestMatchReportsBrokenSelectors(t *testing.T) {
	t.Parallel()
	manager := newManager(slice("a", "a-0", 1, gpus(0, 1)...))
	pool := record(t, NewOverlay(manager)).Node("a").Pools[0]
	for _, expression := range []string{"not a selector", `device.attributes["gpu.example.com"].missing == 1`} {
		r := request("r", 1)
		r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		if _, err := NewMatcher(defaultFeatures()).Match(t.Context(), pool, resolveOne(t, manager.classes, r)); err == nil {
			t.Errorf("%s: no error", expression)
		}
	}
}

// TestMatchAgreesWithTheAllocator lets random policies and requests meet and
// compares eligibility and consumption with what the allocator does.
func TestMatchAgreesWithTheAllocator(t *testing.T) {
	t.Parallel()
	for name, features := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { checkOneMatch(t, features) })
		})
	}
}

func checkOneMatch(t *rapid.T, features structured.Features) {
	device := gpus(0, 0)[0]
	if rapid.Bool().Draw(t, "shareable") {
		device.AllowMultipleAllocations = new(true)
	}
	amount := func(low, high int64, label string) resource.Quantity {
		return *resource.NewQuantity(rapid.Int64Range(low, high).Draw(t, label), resource.BinarySI)
	}
	capacity := resourceapi.DeviceCapacity{Value: amount(8, 40, "value")}
	switch rapid.IntRange(0, 2).Draw(t, "policy") {
	case 1:
		valid := &resourceapi.CapacityRequestPolicyRange{Min: new(amount(0, 8, "min"))}
		if rapid.Bool().Draw(t, "has step") {
			valid.Step = new(amount(1, 5, "step"))
		}
		if rapid.Bool().Draw(t, "has max") {
			valid.Max = new(amount(8, 30, "max"))
		}
		capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: new(*valid.Min), ValidRange: valid}
	case 2:
		low := amount(1, 10, "low")
		capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default: new(low), ValidValues: []resource.Quantity{low, amount(11, 30, "high")},
		}
	}
	device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": capacity}
	r := request("r", 1)
	if rapid.Bool().Draw(t, "asks") {
		q := amount(0, 45, "asked")
		r = memory(r, q.String())
	}
	manager := newManager(slice("a", "a-0", 1, device))
	overlay := NewOverlay(manager)
	view := overlay.Record(func() {
		_, _ = overlay.ResourceClaims().GatherAllocatedState()
		_, _ = overlay.ResourceSlices().ListWithDeviceTaintRules()
	})
	matcher := NewMatcher(features)
	match, err := matcher.Match(t.Context(), view.Node("a").Pools[0], resolveOne(t, manager.classes, r))
	if err != nil {
		t.Fatal(err)
	}
	oracle := NewOracle(t.Context(), features, manager.classes, matcher.CELCache(), view)
	results, err := oracle.Allocate(t.Context(), node("a"), []*resourceapi.ResourceClaim{claim(r)})
	if err != nil {
		t.Fatal(err)
	}
	if got := results != nil; got != match.Eligible[0] {
		t.Fatalf("allocated = %t, eligible = %t", got, match.Eligible[0])
	}
	if results == nil || !view.Node("a").Pools[0].Devices[0].Shareable() {
		return
	}
	want := results[0].Devices.Results[0].ConsumedCapacity["memory"]
	if got := match.Use[0]["memory"]; got.Cmp(want) != 0 {
		t.Fatalf("consumption = %s, the allocator charges %s", got.String(), want.String())
	}
}
