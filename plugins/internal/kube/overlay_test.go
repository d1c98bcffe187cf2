// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/structured"
)

// same says whether two lists hold the same objects in any order.
func same(a, b []*resourceapi.ResourceSlice) bool {
	count := map[*resourceapi.ResourceSlice]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return len(a) == len(b)
}

func list(t *testing.T, overlay *Overlay) []*resourceapi.ResourceSlice {
	t.Helper()
	slices, err := overlay.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		t.Fatal(err)
	}
	return slices
}

func TestOverlayIsTransparentUnlessItRecords(t *testing.T) {
	t.Parallel()
	manager := newManager(slice("a", "a-0", 1, gpus(0, 1)...))
	overlay := NewOverlay(manager)
	gather := func() {
		if _, err := overlay.ResourceClaims().GatherAllocatedState(); err != nil {
			t.Fatal(err)
		}
	}
	gather()
	if !same(list(t, overlay), manager.slices) {
		t.Error("copies were handed out before recording")
	}
	view := overlay.Record(func() {
		if !same(list(t, overlay), manager.slices) {
			t.Error("copies were handed out before the allocated state was read")
		}
		gather()
		if same(list(t, overlay), manager.slices) {
			t.Error("originals were handed out while recording")
		}
	})
	if view == nil || view.Node("a") == nil {
		t.Fatal("nothing was recorded")
	}
	gather()
	if !same(list(t, overlay), manager.slices) {
		t.Error("copies were handed out after recording")
	}
	if view := overlay.Record(func() { list(t, overlay) }); view != nil {
		t.Error("a view without allocated state was recorded")
	}
	if view := overlay.Record(func() {
		if _, err := overlay.ResourceClaims().ListAllAllocatedDevices(); err != nil {
			t.Fatal(err)
		}
		list(t, overlay)
	}); view == nil {
		t.Error("nothing was recorded for the state without consumable capacity")
	}
}

func TestOverlayDoesNotChangeOriginals(t *testing.T) {
	t.Parallel()
	original := slice("a", "a-0", 1, gpus(0, 3)...)
	before := original.DeepCopy()
	view := record(t, NewOverlay(newManager(original)))
	pool := view.Node("a").Pools[0]
	pool.Arrange([]int{3, 1}, true)
	if diff := cmp.Diff(before, original); diff != "" {
		t.Errorf("hiding changed the informer's object (-want +got):\n%s", diff)
	}
	copied := view.Slices()[0]
	if diff := cmp.Diff(before.Spec.Pool, copied.Spec.Pool); diff != "" {
		t.Errorf("the pool's generation or slice count changed (-want +got):\n%s", diff)
	}
	pool.Restore()
	if diff := cmp.Diff(before, copied); diff != "" {
		t.Errorf("restoring does not bring back the original (-want +got):\n%s", diff)
	}
}

func TestOverlayKeepsNodesThatDidNotChange(t *testing.T) {
	t.Parallel()
	manager := newManager(slice("a", "a-0", 1, gpus(0, 1)...), slice("b", "b-0", 1, gpus(0, 1)...))
	overlay := NewOverlay(manager)
	first := record(t, overlay)
	second := record(t, overlay)
	if first.Node("a") != second.Node("a") || first.index != second.index {
		t.Error("unchanged slices made a new index")
	}
	manager.slices[1] = slice("b", "b-0", 1, gpus(0, 3)...)
	third := record(t, overlay)
	if third.Node("a") != first.Node("a") {
		t.Error("node a was made again although only b changed")
	}
	if third.Node("b") == first.Node("b") || len(third.Node("b").Pools[0].Devices) != 4 {
		t.Error("node b was not made again")
	}
	// A slice elsewhere in the same pool forbids what was allowed.
	outside := slice("c", "c-0", 1, gpus(5, 5)...)
	outside.Spec.Pool.Name = "a"
	manager.slices = append(manager.slices, outside)
	if got := record(t, overlay).Node("a").Pools[0].Order; got != ObstacleSpread {
		t.Errorf("obstacle of a pool with a slice on another node = %q", got)
	}
}

func TestPoolObstacles(t *testing.T) {
	t.Parallel()
	type change func(list []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice
	for name, tc := range map[string]struct {
		change      change
		order, hide Obstacle
	}{
		"plain": {change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice { return l }},
		"slice missing": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice { return l[:1] },
			order:  ObstacleIncomplete, hide: ObstacleIncomplete,
		},
		"one slice is of an older generation": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				l[1].Spec.Pool.Generation = 0
				return l
			},
			order: ObstacleIncomplete, hide: ObstacleIncomplete,
		},
		"same name twice": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				l[1].Spec.Devices[0].Name = "gpu-0"
				return l
			},
			order: ObstacleInvalid, hide: ObstacleInvalid,
		},
		"shared by all nodes": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				all := slice("a", "a-2", 2, gpus(8, 8)...)
				all.Spec.NodeName, all.Spec.AllNodes = nil, new(true)
				return append(l, all)
			},
			order: ObstacleSpread, hide: ObstacleSpread,
		},
		"slices differ": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				l[1].Spec.SkipNodeOperations = []resourceapi.SkipNodeOperation{"*"}
				return l
			},
			order: ObstacleSlices, hide: ObstacleSlices,
		},
		"counters": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				l[1].Spec.Devices[1].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "c"}}
				return l
			},
			hide: ObstacleCounters,
		},
		"binding conditions": {
			change: func(l []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
				l[0].Spec.Devices[1].BindingConditions = []string{"attached"}
				return l
			},
			hide: ObstacleBinding,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slices := tc.change([]*resourceapi.ResourceSlice{slice("a", "a-0", 2, gpus(0, 1)...), slice("a", "a-1", 2, gpus(2, 3)...)})
			pool := record(t, NewOverlay(newManager(slices...))).Node("a").Pools[0]
			if pool.Order != tc.order || pool.Hide != tc.hide {
				t.Errorf("obstacles = %q, %q, want %q, %q", pool.Order, pool.Hide, tc.order, tc.hide)
			}
			if got, want := pool.Arrange([]int{0}, false), tc.order == NoObstacle; got != want {
				t.Errorf("Arrange with an order = %t, want %t", got, want)
			}
			if got, want := pool.Arrange([]int{0}, true), tc.hide == NoObstacle; got != want {
				t.Errorf("Arrange with a mask = %t, want %t", got, want)
			}
		})
	}
}

func TestSharedSlicesAreHandedOutAsTheyAre(t *testing.T) {
	t.Parallel()
	shared := slice("a", "fabric", 1, gpus(0, 1)...)
	shared.Spec.NodeName, shared.Spec.AllNodes = nil, new(true)
	shared.Spec.Pool.Name = "fabric"
	manager := newManager(shared, slice("a", "a-0", 1, gpus(0, 1)...))
	view := record(t, NewOverlay(manager))
	if !view.HasShared() {
		t.Error("HasShared = false")
	}
	found := 0
	for _, s := range view.Slices() {
		if s == shared {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the shared slice itself was handed out %d times, want once", found)
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	manager := newManager(slice("a", "a-0", 1, shared(gpus(0, 3))...))
	overlay := NewOverlay(manager)
	view := record(t, overlay)
	fingerprint := func() Fingerprint { return view.Fingerprint(view.Node("a")) }
	seen := map[Fingerprint]string{fingerprint(): "idle"}
	devices := view.Node("a").Pools[0].Devices
	check := func(step string) {
		t.Helper()
		if before, ok := seen[fingerprint()]; ok {
			t.Errorf("%q has the fingerprint of %q", step, before)
		}
		seen[fingerprint()] = step
	}
	view.Allocated.AllocatedDevices.Insert(devices[1].ID)
	check("1 whole")
	view.Allocated.AllocatedDevices.Delete(devices[1].ID)
	share := func(i int, amount string) {
		view.Allocated.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(devices[i].ID,
			map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)}))
	}
	share(1, "1Gi")
	check("1 shared")
	share(1, "1Gi")
	check("1 shared more")
	share(2, "2Gi")
	check("2 shared too")
	if view.Idle(&devices[1]) || !view.Idle(&devices[0]) {
		t.Error("Idle is wrong")
	}
}
