// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// The checks that every scene ends with would notice what they are for.
func TestBookings(t *testing.T) {
	const driver, pool = "d", "p"
	whole := func(device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: pool, Device: device}
	}
	share := func(device, memory string) resourceapi.DeviceRequestAllocationResult {
		result := whole(device)
		result.ShareID = new(types.UID("share"))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
		return result
	}
	admin := func(device string) resourceapi.DeviceRequestAllocationResult {
		result := whole(device)
		result.AdminAccess = new(true)
		return result
	}
	devices := map[deviceKey]placedDevice{}
	for _, name := range []string{"a", "b"} {
		devices[deviceKey{driver, pool, name}] = placedDevice{Device: &resourceapi.Device{
			Name: name, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi")}},
		}}
	}
	for name, c := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		problem string
	}{
		"nothing":        {},
		"each its own":   {results: []resourceapi.DeviceRequestAllocationResult{whole("a"), whole("b")}},
		"twice":          {results: []resourceapi.DeviceRequestAllocationResult{whole("a"), whole("b"), whole("a")}, problem: "belongs to claims"},
		"administrators": {results: []resourceapi.DeviceRequestAllocationResult{whole("a"), admin("a"), admin("a")}},
		"full":           {results: []resourceapi.DeviceRequestAllocationResult{share("a", "4Gi"), share("a", "6Gi"), share("b", "10Gi")}},
		"overfull":       {results: []resourceapi.DeviceRequestAllocationResult{share("a", "4Gi"), share("a", "6145Mi")}, problem: "10241Mi of memory are taken"},
		"both":           {results: []resourceapi.DeviceRequestAllocationResult{share("a", "4Gi"), whole("a")}, problem: "has shares and belongs to"},
		"gone":           {results: []resourceapi.DeviceRequestAllocationResult{share("c", "4Ti"), whole("d")}},
	} {
		t.Run(name, func(t *testing.T) {
			booked := bookings{whole: map[deviceKey]string{}, shared: map[deviceKey]amounts{}}
			var err error
			for i := range c.results {
				if err == nil {
					err = booked.add("claim", &c.results[i])
				}
			}
			if err == nil {
				err = booked.compare(devices)
			}
			switch {
			case c.problem == "" && err != nil:
				t.Errorf("unexpected problem: %v", err)
			case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
				t.Errorf("got %v, want a problem with %q", err, c.problem)
			}
		})
	}
}

func TestMetricsSum(t *testing.T) {
	metrics := Metrics{`plans{result="a"}`: 1, `plans{result="b",node="x"}`: 2, `plans{result="b",node="xy"}`: 4, `plans_other`: 8}
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"plans", nil, 7},
		{"plans", []string{`result="b"`}, 6},
		{"plans", []string{`result="b"`, `node="x"`}, 2},
		{"plans", []string{`result="c"`}, 0},
		{"plans_other", nil, 8},
		{"plan", nil, 0},
	} {
		if got := metrics.Sum(c.name, c.labels...); got != c.want {
			t.Errorf("sum of %s %q is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if !metrics.Has("plans") || metrics.Has("plan") {
		t.Error("there are plans, there is no plan")
	}
}
