// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology/topotest"
)

// driverClass selects all devices of a driver.
func driverClass(driver string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.driver == %q", driver),
	}}}
	return class
}

// of asks for devices of another driver.
func of(driver string) func(r *resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = driver }
}

// plainSlice makes a slice of exclusive devices dev-0, dev-1, ... on a node, with
// one PCIe root each.
func plainSlice(node, driver string, roots ...string) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, root := range roots {
		device := resourceapi.Device{Name: fmt.Sprintf("dev-%d", i)}
		if root != "" {
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{api.AttrPCIeRoot: {StringValue: &root}}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, device)
	}
	return slice
}

func TestCycleOtherDrivers(t *testing.T) {
	t.Parallel()
	const nic = "nic.example.com"
	runCycles(t, map[string]cycleCase{
		"only PCIe roots are known": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2, of(nic)))},
			objects: []runtime.Object{driverClass(nic), plainSlice("dgx", nic, "pci0000:00", "pci0000:10", "pci0000:20", "pci0000:10")},
			devices: []string{"c/r=dev-1", "c/r=dev-3"},
		},
		"nothing is known": {
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{claimOf("c", gpus("r", 2, of(nic)))},
			objects: []runtime.Object{driverClass(nic), plainSlice("dgx", nic, "", "", "")},
			devices: []string{"c/r=dev-0", "c/r=dev-1"},
		},
		"GPUs and others in one pod": {
			pod: podOf("pod", "n", "c"), claims: []*resourceapi.ResourceClaim{
				claimOf("n", gpus("r", 2, of(nic))), claimOf("c", gpus("r", 4)), busy("dgx", 2, 5),
			},
			objects: []runtime.Object{driverClass(nic), plainSlice("dgx", nic, "pci0000:00", "pci0000:10", "pci0000:20", "pci0000:10")},
			devices: []string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7", "n/r=dev-1", "n/r=dev-3"},
		},
		"a constraint over both": {
			// A GPU must have the root of the card: 5 and 6 are the best such pair
			// but not the best pair.
			pod: podOf("pod", "c"), claims: []*resourceapi.ResourceClaim{func() *resourceapi.ResourceClaim {
				claim := claimOf("c", gpus("card", 1, of(nic)), gpus("r", 2))
				claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(api.AttrPCIeRoot))}}
				return claim
			}()},
			change: func(slice *resourceapi.ResourceSlice) {
				for i := range slice.Spec.Devices {
					root := "pci0000:00"
					if i == 5 || i == 6 {
						root = "pci0000:50"
					}
					slice.Spec.Devices[i].Attributes[api.AttrPCIeRoot] = resourceapi.DeviceAttribute{StringValue: &root}
				}
			},
			objects: []runtime.Object{driverClass(nic), plainSlice("dgx", nic, "pci0000:50")},
			devices: []string{"c/card=dev-0", "c/r=gpu-5", "c/r=gpu-6"},
		},
		"devices of the whole cluster": {
			pod: podOf("pod", "f", "c"), claims: []*resourceapi.ResourceClaim{claimOf("f", gpus("r", 1, of("fabric.example.com"))), claimOf("c", gpus("r", 2))},
			objects: []runtime.Object{driverClass("fabric.example.com"), func() *resourceapi.ResourceSlice {
				slice := plainSlice("fabric", "fabric.example.com", "", "")
				slice.Spec.NodeName, slice.Spec.AllNodes = nil, new(true)
				return slice
			}()},
			devices: []string{"c/r=gpu-2", "c/r=gpu-3", "f/r=dev-0"},
		},
	})
}

// TestCycleMappedDriver reads the topology of another driver through the
// arguments, and keeps a guarantee that its claim's annotation asks for.
func TestCycleMappedDriver(t *testing.T) {
	t.Parallel()
	const driver = "gpu.other.example.com"
	recorded, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	objects := nodeOf(t, "node", driver, recorded.Machine, func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			device.AllowMultipleAllocations, device.Capacity = nil, nil
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"peers": device.Attributes[api.AttrNVLinks], "position": device.Attributes[api.AttrIndex],
			}
		}
	})
	claim := claimOf("c", gpus("r", 4, of(driver)))
	claim.Annotations = map[string]string{api.AnnotationTopology: "Required,level=NVLink"}
	taken := busy("node", 2, 5)
	for i := range taken.Status.Allocation.Devices.Results {
		result := &taken.Status.Allocation.Devices.Results[i]
		result.Driver, result.ShareID, result.ConsumedCapacity = driver, nil, nil
	}
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{
		objects: append(objects, driverClass(driver), claim, taken, pod),
		args: &api.TopologyDynamicResourcesArgs{Drivers: []api.DriverMapping{{
			Driver: driver, Attributes: api.AttributeMapping{NVLinks: "peers", Index: "position"},
		}}},
	})
	got := w.schedule(pod)
	if diff := cmp.Diff([]string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7"}, got.devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s%v", diff, got.reasons)
	}
}

// TestCycleSlicesOfOnePool spreads a pool over slices whose names are not in the
// order of the devices.
func TestCycleSlicesOfOnePool(t *testing.T) {
	t.Parallel()
	pod := podOf("pod", "c")
	objects := gpuNode(t, "dgx", "dgx1v_8xv100")
	first, ok := objects[1].(*resourceapi.ResourceSlice)
	if !ok {
		t.Fatalf("got a %T", objects[1])
	}
	second := first.DeepCopy()
	first.Name, second.Name = "b", "a"
	first.Spec.Pool.ResourceSliceCount, second.Spec.Pool.ResourceSliceCount = 2, 2
	first.Spec.Devices = slices.Clone(first.Spec.Devices[:4])
	second.Spec.Devices = slices.Clone(second.Spec.Devices[4:])
	for name, config := range map[string]string{"preferred": `{"policy":"Preferred"}`, "required": requireNVLink} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := append(slices.Clone(objects), second, gpuClass(""), configured(claimOf("c", gpus("r", 4)), config), busy("dgx", 2, 5), pod)
			w := newWorld(t, worldConfig{objects: all})
			if diff := cmp.Diff([]string{"c/r=gpu-0", "c/r=gpu-3", "c/r=gpu-4", "c/r=gpu-7"}, w.schedule(pod).devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if events := w.mismatches(); len(events) > 0 {
				t.Errorf("events about mismatches: %v", events)
			}
		})
	}
}

// TestCycleNodeChoice shows that the best node wins, and for alternatives the one
// that offers the preferred one.
func TestCycleNodeChoice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		taken []int
		node  string
		// least and most points that the nodes may have.
		least, most map[string]int64
	}{
		"the better linked node": {
			claim: claimOf("c", gpus("r", 2)), node: "dgx",
			least: map[string]int64{"dgx": 60, "pcie": 0}, most: map[string]int64{"dgx": 100, "pcie": 20},
		},
		"the only one with a ring, although fuller nodes come first otherwise": {
			claim: claimOf("c", gpus("r", 4)), taken: []int{0, 1}, node: "dgx",
			least: map[string]int64{"dgx": 60, "pcie": 0}, most: map[string]int64{"dgx": 100, "pcie": 20},
		},
		"a single GPU goes where little is lost": {
			claim: claimOf("c", gpus("r", 1)), node: "pcie",
			least: map[string]int64{"dgx": 7, "pcie": 20}, most: map[string]int64{"dgx": 7, "pcie": 100},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podOf("pod", "c")
			objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuNode(t, "pcie", "pcie_8x_pix_node_sys")...)
			objects = append(objects, gpuClass(""), tc.claim, pod)
			if len(tc.taken) > 0 {
				objects = append(objects, runtime.Object(busy("dgx", tc.taken...)))
			}
			got := newWorld(t, worldConfig{objects: objects}).schedule(pod)
			if got.node != tc.node {
				t.Errorf("node = %q, want %q", got.node, tc.node)
			}
			for node, score := range got.scores {
				if score < tc.least[node] || score > tc.most[node] {
					t.Errorf("score of %q = %d, want %d to %d", node, score, tc.least[node], tc.most[node])
				}
			}
		})
	}
}
