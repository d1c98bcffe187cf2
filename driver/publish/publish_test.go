// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/api/slicecodec"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/recorded"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// build must succeed.
func build(t *testing.T, snapshot *device.Snapshot, options Options) *Published {
	t.Helper()
	if options.NodeName == "" {
		options.NodeName = "node-a"
	}
	published, err := Build(snapshot, options)
	if err != nil {
		t.Fatal(err)
	}
	return published
}

// devicesOf returns all devices of the node's pool in order.
func devicesOf(p *Published) []resourceapi.Device {
	var out []resourceapi.Device
	for _, slice := range p.Resources.Pools["node-a"].Slices {
		out = append(out, slice.Devices...)
	}
	return out
}

// simulated returns a recorded machine as a node.
func simulated(t *testing.T, name string) *device.Snapshot {
	t.Helper()
	recording, err := topotest.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := recorded.Snapshot(recording, "node-a")
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// TestGolden compares what every recorded machine publishes with a file, and reads
// the machine back out of it.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range topotest.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snapshot := simulated(t, name)
			published := build(t, snapshot, Options{})
			got, err := yaml.Marshal(published.Resources)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("run the test with -update and review: %s", diff)
			}
			requireWithinLimits(t, published)
			var devices []slicecodec.Device
			for _, d := range devicesOf(published) {
				devices = append(devices, slicecodec.Device{Name: d.Name, Attributes: d.Attributes})
			}
			decoded, err := slicecodec.Decode(name, devices, api.OwnMapping())
			if err != nil {
				t.Fatal(err)
			}
			snapshot.Machine.Name = name
			if diff := cmp.Diff(snapshot.Machine, decoded.Machine); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// requireWithinLimits checks the limits of the API.
func requireWithinLimits(t *testing.T, published *Published) {
	t.Helper()
	names := map[string]bool{}
	for _, slice := range published.Resources.Pools["node-a"].Slices {
		if n := len(slice.Devices); n > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("%d devices in a slice", n)
		}
	}
	for _, d := range devicesOf(published) {
		if names[d.Name] {
			t.Errorf("%q is there twice", d.Name)
		}
		names[d.Name] = true
		if n := len(d.Attributes) + len(d.Capacity); n > MaxAttributesAndCapacities {
			t.Errorf("%q has %d attributes and capacities", d.Name, n)
		}
		for name, value := range d.Attributes {
			if value.StringValue != nil && len(*value.StringValue) > resourceapi.DeviceAttributeMaxValueLength {
				t.Errorf("%q: %s is %d bytes long", d.Name, name, len(*value.StringValue))
			}
		}
	}
}

// full is a GPU with everything that can be known about one.
func full(i int) device.GPU {
	return device.GPU{
		UUID:       device.UUID(fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", i)),
		PCIAddress: device.PCIAddress(fmt.Sprintf("0000:%02x:00.0", i+1)), PCIeRoot: "pci0000:00",
		Minor: new(device.Minor(i)), ModuleID: new(device.ModuleID(i + 1)), ProductName: "Product", Brand: "Brand", Architecture: "Architecture",
		ComputeCapability: &device.Version{Major: 9}, Memory: 80 << 30, Fabric: &device.Fabric{CliqueID: 7},
	}
}

// node puts GPUs together, all linked.
func node(gpus ...device.GPU) *device.Snapshot {
	m := topology.New("", len(gpus))
	for i := range gpus {
		m.GPUs[i] = topology.GPUInfo{NUMA: 1, NVLinkMBps: 25781, PCIeGen: 5, NearestNIC: "mlx5_0"}
		for j := range gpus {
			if i != j {
				m.NVLinks[i][j] = 2
			}
		}
	}
	return &device.Snapshot{
		DriverVersion: &device.Version{Major: 550, Minor: 54, Patch: 15}, CUDADriverVersion: &device.Version{Major: 12, Minor: 4},
		Machine: m, GPUs: gpus,
	}
}

// TestEverything has the widest device there can be.
func TestEverything(t *testing.T) {
	t.Parallel()
	snapshot := node(full(0), full(1))
	snapshot.Simulated = true
	published := build(t, snapshot, Options{MaxSharers: 4, RequireCores: true, MinMemory: 1 << 30, MemoryReserve: 512 << 20})
	requireWithinLimits(t, published)
	d := devicesOf(published)[1]
	got, err := yaml.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	want := `allowMultipleAllocations: true
attributes:
  architecture: {string: Architecture}
  brand: {string: Brand}
  cudaComputeCapability: {version: 9.0.0}
  cudaDriverVersion: {version: 12.4.0}
  driverVersion: {version: 550.54.15}
  fabricClique: {string: 00000000-0000-0000-0000-000000000000.7}
  index: {int: 1}
  minor: {int: 1}
  moduleID: {int: 2}
  nearestNIC: {string: mlx5_0}
  nvlinkDomain: {string: nvlink-0}
  nvlinkMBps: {int: 25781}
  nvlinkSwitched: {bool: false}
  nvlinks: {string: 2x}
  pcie: {string: sx}
  pcieGen: {int: 5}
  productName: {string: Product}
  resource.kubernetes.io/numaNode: {int: 1}
  resource.kubernetes.io/pciBusID: {string: "0000:02:00.0"}
  resource.kubernetes.io/pcieRoot: {string: "pci0000:00"}
  simulated: {bool: true}
  type: {string: gpu}
  uuid: {string: GPU-00000001-1111-2222-3333-444444444444}
capacity:
  cores: {value: "100", requestPolicy: {default: "100", validRange: {min: "1", max: "100", step: "1"}}}
  memory: {value: 79.5Gi, requestPolicy: {default: 79.5Gi, validRange: {min: 1Gi, max: 79.5Gi, step: 1Mi}}}
  slots: {value: "4", requestPolicy: {default: "1", validValues: ["1"]}}
name: gpu-000000011111
`
	var gotDevice, wantDevice resourceapi.Device
	if err := yaml.UnmarshalStrict(got, &gotDevice); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(want), &wantDevice); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(wantDevice, gotDevice) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestUnknownFacts: what is not known is left out, and a GPU whose memory is not
// known is not shared.
func TestUnknownFacts(t *testing.T) {
	t.Parallel()
	bare := device.GPU{UUID: "GPU-00000000-1111-2222-3333-444444444444"}
	long := full(1)
	long.ProductName = strings.Repeat("x", 65)
	snapshot := node(bare, long)
	snapshot.DriverVersion, snapshot.CUDADriverVersion = nil, nil
	snapshot.Machine.GPUs[0] = topology.GPUInfo{NUMA: topology.NoNUMA}
	published := build(t, snapshot, Options{})
	devices := devicesOf(published)
	want := resourceapi.Device{Name: "gpu-000000001111", Attributes: slicecodec.Attributes{
		api.AttrType: {StringValue: new("gpu")}, api.AttrUUID: {StringValue: new(string(bare.UUID))}, api.AttrIndex: {IntValue: new(int64(0))},
		api.AttrNVLinks: {StringValue: new("x2")}, api.AttrPCIe: {StringValue: new("xs")},
		api.AttrNVLinkDomain: {StringValue: new("nvlink-0")}, api.AttrNVLinkSwitched: {BoolValue: new(false)},
	}}
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Error(diff)
	}
	if _, ok := devices[1].Attributes[api.AttrProductName]; ok {
		t.Error("a product name of 65 bytes is published")
	}
	if diff := cmp.Diff([]string{
		`device "gpu-000000001111": its memory is not known: publishing it without capacities, for one claim at a time`,
		`device "gpu-000000011111": leaving out attribute "productName": 65 bytes are more than 64`,
	}, published.Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestStandardNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[resourceapi.QualifiedName]resourceapi.QualifiedName{
		api.AttrPCIBusID: deviceattribute.StandardDeviceAttributePCIBusID,
		api.AttrPCIeRoot: deviceattribute.StandardDeviceAttributePCIeRoot,
		api.AttrNUMANode: deviceattribute.StandardDeviceAttributeNUMANode,
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestMIG: a GPU in MIG mode is replaced by its MIG devices, and the other GPUs keep
// their positions.
func TestMIG(t *testing.T) {
	t.Parallel()
	partitioned := full(1)
	partitioned.MIGEnabled = true
	partitioned.MIGDevices = []device.MIGDevice{
		{UUID: "MIG-aaaaaaaa-1111-2222-3333-444444444444", Profile: "3g.40gb", Memory: 40 << 30},
		{UUID: "MIG-GPU-bbbbbbbb-1111-2222-3333-444444444444/1/0"},
	}
	empty := full(2)
	empty.MIGEnabled = true
	devices := devicesOf(build(t, node(full(0), partitioned, empty, full(3)), Options{}))
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	hashed := digitsOf("MIG-GPU-bbbbbbbb-1111-2222-3333-444444444444/1/0")[:12]
	if diff := cmp.Diff([]string{"gpu-000000001111", "mig-aaaaaaaa1111", "mig-" + hashed, "gpu-000000031111"}, names); diff != "" {
		t.Fatal(diff)
	}
	mig := devices[1]
	for name, want := range map[resourceapi.QualifiedName]string{
		api.AttrType: "mig", api.AttrUUID: "MIG-aaaaaaaa-1111-2222-3333-444444444444", api.AttrParentUUID: string(partitioned.UUID), api.AttrProfile: "3g.40gb",
	} {
		if got := mig.Attributes[name].StringValue; got == nil || *got != want {
			t.Errorf("%s: got %v, want %q", name, got, want)
		}
	}
	if got := mig.Attributes[api.AttrIndex].IntValue; got == nil || *got != 1 {
		t.Errorf("index: got %v, want 1", got)
	}
	for _, name := range []resourceapi.QualifiedName{api.AttrNVLinks, api.AttrNVLinkDomain, api.AttrMinor, api.AttrFabricClique} {
		if _, ok := mig.Attributes[name]; ok {
			t.Errorf("a MIG device has %s", name)
		}
	}
	if memory := mig.Capacity[api.CapacityMemory]; mig.AllowMultipleAllocations != nil || memory.RequestPolicy != nil || memory.Value.String() != "40Gi" {
		t.Errorf("MIG device: shared %v, memory %+v", mig.AllowMultipleAllocations, memory)
	}
	if devices[2].Capacity != nil {
		t.Errorf("unknown memory: got %+v", devices[2].Capacity)
	}
	if got := *devices[3].Attributes[api.AttrNVLinks].StringValue; got != "222x" {
		t.Errorf("nvlinks of the last GPU: got %q", got)
	}
}

// TestManyDevices: 16 GPUs with 7 MIG devices each do not fit into one slice.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	var gpus []device.GPU
	for i := range 16 {
		gpu := full(i)
		gpu.MIGEnabled = true
		for k := range 7 {
			gpu.MIGDevices = append(gpu.MIGDevices, device.MIGDevice{UUID: device.UUID(fmt.Sprintf("MIG-%08x-0000-0000-0000-000000000000", 16*i+k))})
		}
		gpus = append(gpus, gpu)
	}
	published := build(t, node(gpus...), Options{})
	requireWithinLimits(t, published)
	slices := published.Resources.Pools["node-a"].Slices
	if len(slices) != 2 || len(slices[0].Devices) != 64 || len(slices[1].Devices) != 48 {
		t.Errorf("got %d slices", len(slices))
	}
}

// TestEmptyNode: no GPUs is an empty slice, not none.
func TestEmptyNode(t *testing.T) {
	t.Parallel()
	published := build(t, &device.Snapshot{}, Options{})
	if slices := published.Resources.Pools["node-a"].Slices; len(slices) != 1 || len(slices[0].Devices) != 0 {
		t.Errorf("got %+v", slices)
	}
}

// TestTaints: every device gets its own taints, MIG devices are asked for with their
// GPU, and nothing else of a device depends on them.
func TestTaints(t *testing.T) {
	t.Parallel()
	mig := full(1)
	mig.MIGEnabled = true
	mig.MIGDevices = []device.MIGDevice{{UUID: "MIG-a", Profile: "1g.10gb", GPUSlices: 1, ComputeSlices: 1, MemorySlices: 2}}
	snapshot := node(full(0), mig)
	plain := devicesOf(build(t, snapshot, Options{}))
	tainted := devicesOf(build(t, snapshot, Options{Taints: func(uuid, parent device.UUID) []resourceapi.DeviceTaint {
		return []resourceapi.DeviceTaint{{Key: "k", Value: string(uuid[:4]) + string(parent[:min(4, len(parent))]), Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}}))
	for i, want := range []string{"GPU-", "MIG-GPU-"} {
		if len(tainted[i].Taints) != 1 || tainted[i].Taints[0].Value != want {
			t.Errorf("device %d: got taints %+v", i, tainted[i].Taints)
		}
		tainted[i].Taints = nil
	}
	if diff := cmp.Diff(plain, tainted); diff != "" || plain[0].Taints != nil {
		t.Error(diff)
	}
	for name, want := range map[resourceapi.QualifiedName]int64{api.AttrGPUSlices: 1, api.AttrComputeSlices: 1, api.AttrMemorySlices: 2} {
		if value := plain[1].Attributes[name].IntValue; value == nil || *value != want {
			t.Errorf("%s: got %v, want %d", name, value, want)
		}
	}
	if _, ok := plain[0].Attributes[api.AttrGPUSlices]; ok {
		t.Error("a whole GPU has slices")
	}
}
