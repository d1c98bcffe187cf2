// SPDX-License-Identifier: Apache-2.0

package livestate_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
)

// TestDetails: what tools need beyond the picture: identity and time of claims, slots, parts, taints that keep claims away, and
// the devices themselves.
func TestDetails(t *testing.T) {
	t.Parallel()
	devices := gpus(t, pair(t))
	devices[0].Capacity[api.CapacitySlots] = resourceapi.DeviceCapacity{Value: resource.MustParse("4")}
	devices[0].Taints = []resourceapi.DeviceTaint{{Key: "example.com/look", Effect: resourceapi.DeviceTaintEffectNone}}
	devices[1].Taints = []resourceapi.DeviceTaint{{Key: "example.com/away", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	part := resourceapi.Device{
		Name: "m2",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			api.AttrType: {StringValue: new(api.DeviceTypeMIG)}, api.AttrIndex: {IntValue: new(int64(2))}, api.AttrProfile: {StringValue: new("1g.5gb")},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.CapacityMemory: {Value: resource.MustParse("5Gi")}},
	}
	held := claim("share", nil, result("node", "g0", "2Gi", "10"))
	held.UID = "uid"
	held.Status.Allocation.Devices.Results[0].ConsumedCapacity[api.CapacitySlots] = resource.MustParse("1")
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	held.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: at}

	n := build(t, []resourceapi.ResourceSlice{slice("node", 7, 1, devices[0], devices[1], part)}, held)[0]
	h := n.GPUs[0].Holders[0]
	if h.UID != "uid" || h.Request != "gpus" || !h.AllocatedAt.Equal(at) {
		t.Errorf("holder %+v", h)
	}
	if got := [2]int64{n.GPUs[0].Total.Slots, n.GPUs[0].Free.Slots}; got != [2]int64{4, 3} {
		t.Errorf("slots %v, want 3 of 4 free", got)
	}
	if n.GPUs[0].Blocked || !n.GPUs[1].Blocked {
		t.Errorf("blocked: %v %v, want only the second", n.GPUs[0].Blocked, n.GPUs[1].Blocked)
	}
	if diff := cmp.Diff([]livestate.Part{{Device: "m2", Profile: "1g.5gb", MemoryMiB: 5 << 10}}, n.GPUs[2].Parts); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if n.Pool != "node" || n.Generation != 7 || len(n.Published) != 3 {
		t.Errorf("pool %q, generation %d, %d devices", n.Pool, n.Generation, len(n.Published))
	}
	for device, want := range map[string]int{"g1": 1, "m2": 2} {
		if at, ok := n.Position(device); !ok || at != want {
			t.Errorf("device %q is at %d (%v), want %d", device, at, ok, want)
		}
	}
	if _, ok := n.Position("nothing"); ok {
		t.Error("an unknown device has a position")
	}
}
