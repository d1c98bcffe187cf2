// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// These tests pin what the overlay relies on in the in-tree allocator, see the
// CAVEAT in the package comment. When one fails after a change of the
// Kubernetes version, the overlay has to change, not the test.

// setup records a view of the manager and makes an allocator on it, which is
// done once: all that follows relies on it reading the slices again.
func setup(t *testing.T, features structured.Features, manager *fakeManager) (*View, *Oracle) {
	t.Helper()
	view := record(t, NewOverlay(manager))
	if view == nil {
		t.Fatal("nothing was recorded")
	}
	return view, NewOracle(t.Context(), features, manager.classes, NewMatcher(features).CELCache(), view)
}

func TestContractAllocatorReadsDevicesAgainInTheirOrder(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		view, oracle := setup(t, features, newManager(slice("a", "a-0", 1, gpus(0, 7)...)))
		pool := view.Node("a").Pools[0]
		pairs := claim(request("r", 2))
		want := func(step string, devices ...string) {
			t.Helper()
			if diff := cmp.Diff(devices, allocate(t, oracle, "a", pairs)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step, diff)
			}
		}
		want("published order", "r=gpu-0", "r=gpu-1")
		pool.Arrange([]int{6, 3}, false)
		want("after another order", "r=gpu-6", "r=gpu-3")
		pool.Arrange([]int{5}, false)
		want("one device first, the rest as published", "r=gpu-5", "r=gpu-0")
		pool.Restore()
		want("restored", "r=gpu-0", "r=gpu-1")
	})
}

func TestContractHiddenDevicesCannotBeAllocated(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		view, oracle := setup(t, features, newManager(slice("a", "a-0", 1, gpus(0, 7)...)))
		pool := view.Node("a").Pools[0]
		if !pool.Arrange([]int{4, 7}, true) {
			t.Fatal("Arrange refused")
		}
		if diff := cmp.Diff([]string{"r=gpu-4", "r=gpu-7"}, allocate(t, oracle, "a", claim(request("r", 2)))); diff != "" {
			t.Errorf("exact mask (-want +got):\n%s", diff)
		}
		if got := allocate(t, oracle, "a", claim(request("r", 3))); got != nil {
			t.Errorf("3 devices of a mask of 2: got %v, want none", got)
		}
		view.Node("a").Restore()
		if diff := cmp.Diff([]string{"r=gpu-0", "r=gpu-1", "r=gpu-2"}, allocate(t, oracle, "a", claim(request("r", 3)))); diff != "" {
			t.Errorf("falling back (-want +got):\n%s", diff)
		}
	})
}

func TestContractChosenDevicesMoveIntoTheFirstSlice(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		// The names decide, not the order in which slices are listed.
		manager := newManager(slice("a", "a-2", 3, gpus(6, 7)...), slice("a", "a-0", 3, gpus(0, 2)...), slice("a", "a-1", 3, gpus(3, 5)...))
		view, oracle := setup(t, features, manager)
		pool := view.Node("a").Pools[0]
		for _, hide := range []bool{false, true} {
			if !pool.Arrange([]int{7, 4, 1}, hide) {
				t.Fatal("Arrange refused")
			}
			if diff := cmp.Diff([]string{"r=gpu-7", "r=gpu-4", "r=gpu-1"}, allocate(t, oracle, "a", claim(request("r", 3)))); diff != "" {
				t.Errorf("hide=%t (-want +got):\n%s", hide, diff)
			}
			all := claim(request("all", 1))
			all.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			wantAll := 8
			if hide {
				wantAll = 3
			}
			if got := allocate(t, oracle, "a", all); len(got) != wantAll {
				t.Errorf("hide=%t: All gets %v, want %d devices", hide, got, wantAll)
			}
		}
	})
}

func TestContractRequestsStartAgainAtTheFirstDevice(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		view, oracle := setup(t, features, newManager(slice("a", "a-0", 1, shared(gpus(0, 3))...)))
		pool := view.Node("a").Pools[0]
		pool.Arrange([]int{2, 3}, true)
		for name, tc := range map[string]struct {
			claim *resourceapi.ResourceClaim
			want  []string
		}{
			"shares stack on the first device": {
				claim: claim(memory(request("x", 1), "10Gi"), memory(request("y", 1), "10Gi")),
				want:  []string{"x=gpu-2", "y=gpu-2"},
			},
			"devices of one request are distinct": {
				claim: claim(memory(request("x", 2), "10Gi"), memory(request("y", 1), "70Gi")),
				want:  []string{"x=gpu-2", "x=gpu-3", "y=gpu-2"},
			},
			"whole devices do not stack": {
				claim: claim(request("x", 1), request("y", 1)),
				want:  []string{"x=gpu-2", "y=gpu-3"},
			},
			"rounding up is charged": {
				claim: claim(memory(request("x", 1), "40000Mi"), memory(request("y", 1), "40Gi")),
				want:  []string{"x=gpu-2", "y=gpu-2"},
			},
		} {
			if diff := cmp.Diff(tc.want, allocate(t, oracle, "a", tc.claim)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

func TestContractPoolsAreSearchedByDriverAndName(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		other := slice("a", "a-9", 1, gpus(8, 9)...)
		other.Spec.Driver = "another.example.com"
		view, oracle := setup(t, features, newManager(slice("a", "a-0", 1, gpus(0, 1)...), other))
		pools := view.Node("a").Pools
		if pools[0].Driver != "another.example.com" || pools[1].Driver != testDriver {
			t.Fatalf("pools of the view: %q, %q", pools[0].Driver, pools[1].Driver)
		}
		pools[1].Arrange([]int{1}, false)
		if diff := cmp.Diff([]string{"r=gpu-8", "r=gpu-9", "r=gpu-1"}, allocate(t, oracle, "a", claim(request("r", 3)))); diff != "" {
			t.Errorf("an order never reaches over pools (-want +got):\n%s", diff)
		}
	})
}

func TestContractFirstAvailableDoesNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		view, oracle := setup(t, features, newManager(slice("a", "a-0", 1, gpus(0, 7)...)))
		pool := view.Node("a").Pools[0]
		sub := func(name string, count int64) resourceapi.DeviceSubRequest {
			return resourceapi.DeviceSubRequest{
				Name: name, DeviceClassName: testClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			}
		}
		choice := claim(resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{sub("three", 3), sub("two", 2)}})
		pool.Arrange([]int{6, 5}, false)
		if diff := cmp.Diff([]string{"r/three=gpu-6", "r/three=gpu-5", "r/three=gpu-0"}, allocate(t, oracle, "a", choice)); diff != "" {
			t.Errorf("ordered (-want +got):\n%s", diff)
		}
		pool.Arrange([]int{6, 5}, true)
		if diff := cmp.Diff([]string{"r/two=gpu-6", "r/two=gpu-5"}, allocate(t, oracle, "a", choice)); diff != "" {
			t.Errorf("masked (-want +got):\n%s", diff)
		}
	})
}

// TestContractNodesAreIndependent filters 64 nodes at once; with the race
// detector it shows that an allocation on one node reads no other's slices.
func TestContractNodesAreIndependent(t *testing.T) {
	t.Parallel()
	forEachVariant(t, func(t *testing.T, features structured.Features) {
		const nodes, pods = 64, 20
		var list []*resourceapi.ResourceSlice
		for i := range nodes {
			name := fmt.Sprintf("node-%02d", i)
			list = append(list, slice(name, name+"-0", 2, gpus(0, 3)...), slice(name, name+"-1", 2, gpus(4, 7)...))
		}
		manager := newManager(list...)
		overlay := NewOverlay(manager)
		for range pods {
			view := record(t, overlay)
			oracle := NewOracle(t.Context(), features, manager.classes, NewMatcher(features).CELCache(), view)
			var wg sync.WaitGroup
			for i := range nodes {
				wg.Go(func() {
					name := fmt.Sprintf("node-%02d", i)
					first, second := i%8, (i+3)%8
					view.Node(name).Pools[0].Arrange([]int{first, second}, i%2 == 0)
					got := allocate(t, oracle, name, claim(request("r", 2)))
					view.Node(name).Restore()
					want := []string{fmt.Sprintf("r=gpu-%d", first), fmt.Sprintf("r=gpu-%d", second)}
					if !slices.Equal(got, want) {
						t.Errorf("%s: got %v, want %v", name, got, want)
					}
				})
			}
			wg.Wait()
		}
	})
}
