// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// TestUnknownNumbers: hardware newer than this program gets names, and what fails is
// left out by itself.
func TestUnknownNumbers(t *testing.T) {
	t.Parallel()
	node := newFakeNode(t, topology.New("", 2))
	gpu := node.gpus[0]
	gpu.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { return 99, nvml.SUCCESS }
	gpu.GetBrandFunc = func() (nvml.BrandType, nvml.Return) { return 77, nvml.SUCCESS }
	gpu.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
	gpu.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	gpu.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_UNKNOWN }
	snapshot := node.discover()
	want := device.GPU{
		UUID: device.UUID(uuidAt(0)), PCIAddress: addressAt(0), PCIeRoot: "pci0000:10", ModuleID: new(device.ModuleID(1)),
		Brand: "Unknown (77)", Architecture: "Unknown (99)", Memory: 80 << 30, MemoryReserved: 500 << 20,
	}
	if diff := cmp.Diff(want, snapshot.GPUs[0]); diff != "" {
		t.Error(diff)
	}
	requireWarnings(t, snapshot,
		fmt.Sprintf(`GPU %q: leaving out what could not be read: GetName of GPU %[1]q: ERROR_UNKNOWN`, uuidAt(0)),
		fmt.Sprintf(`GPU %q: leaving out what could not be read: GetCudaComputeCapability of GPU %[1]q: ERROR_UNKNOWN`, uuidAt(0)))
}

// guarded are the functions that are looked up before they are called.
var guarded = []string{
	"nvmlDeviceGetModuleId", "nvmlDeviceGetArchitecture", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfo",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetFieldValues",
}

// TestMissingSymbols: with an old library none of the missing functions is called,
// which would end the process, and links are still found.
func TestMissingSymbols(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dgx1v_8xv100", "hgxa100_8x_numa2", "unige_8xa6000_pairs", "rtx4090_8x_all_sys"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := load(t, name)
			node := newFakeNode(t, m)
			for _, symbol := range guarded {
				node.missing[symbol] = true
			}
			for _, gpu := range node.gpus {
				// The mocks panic when one of these is called.
				gpu.GetModuleIdFunc, gpu.GetArchitectureFunc, gpu.GetMemoryInfo_v2Func, gpu.GetGpuFabricInfoFunc = nil, nil, nil, nil
				gpu.GetMigModeFunc, gpu.GetNvLinkRemoteDeviceTypeFunc, gpu.GetFieldValuesFunc = nil, nil, nil
				for k := range gpu.links {
					if gpu.links[k].kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
						gpu.links[k].remote = pciAt(100)
					}
				}
			}
			snapshot := node.discover()
			want := visible(m)
			for i := range want.GPUs {
				want.GPUs[i].NVLinkMBps = 0 // The product "NVIDIA Test" is not in the table.
			}
			if diff := cmp.Diff(want, snapshot.Machine); diff != "" {
				t.Error(diff)
			}
			if snapshot.GPUs[0].Memory != 80<<30 || snapshot.GPUs[0].MemoryReserved != 0 {
				t.Errorf("memory %d, reserved %d", snapshot.GPUs[0].Memory, snapshot.GPUs[0].MemoryReserved)
			}
			requireWarnings(t, snapshot)
		})
	}
}

// TestLinkRateFromProduct: where no field tells the rate, the product's is taken.
func TestLinkRateFromProduct(t *testing.T) {
	t.Parallel()
	node := newFakeNode(t, load(t, "della_4xa100_sxm_nv4"))
	for _, gpu := range node.gpus {
		gpu.rate = 0
		gpu.GetNameFunc = func() (string, nvml.Return) { return "NVIDIA A100-SXM4-80GB", nvml.SUCCESS }
	}
	if got := node.discover().Machine.GPUs[0].NVLinkMBps; got != 25781 {
		t.Errorf("got %d MB/s, want 25781", got)
	}
}

// TestOtherEnds: links to a CPU are no links between GPUs, and links to something
// unknown do not count.
func TestOtherEnds(t *testing.T) {
	t.Parallel()
	m := load(t, "traverse_ac922_4xv100_nv3")
	node := newFakeNode(t, m)
	npu := nvml.PciInfo{PciDeviceId: 0x04ea1014}
	copyText(npu.BusId[:], "00000004:00:00.0")
	for _, gpu := range node.gpus {
		for range 3 {
			gpu.links = append(gpu.links, link{active: true, kind: nvml.NVLINK_DEVICE_TYPE_IBMNPU, remote: npu})
		}
	}
	snapshot := node.discover()
	if diff := cmp.Diff(visible(m), snapshot.Machine); diff != "" {
		t.Error(diff)
	}
	requireWarnings(t, snapshot)

	node.missing["nvmlDeviceGetNvLinkRemoteDeviceType"] = true
	snapshot = node.discover()
	if diff := cmp.Diff(visible(m), snapshot.Machine); diff != "" {
		t.Errorf("old driver: %s", diff)
	}
	requireWarnings(t, snapshot)

	delete(node.missing, "nvmlDeviceGetNvLinkRemoteDeviceType")
	node.gpus[0].links[3] = link{active: true, kind: nvml.NVLINK_DEVICE_TYPE_UNKNOWN}
	snapshot = node.discover()
	if diff := cmp.Diff(visible(m), snapshot.Machine); diff != "" {
		t.Errorf("unknown end: %s", diff)
	}
	requireWarnings(t, snapshot, fmt.Sprintf("GPU %q: 1 of its 6 active NVLinks lead to something unknown: they do not count", uuidAt(0)))
}

// TestPCIeClassFromSysfs: where NVML does not know, sysfs does, and where neither
// does, GPUs count as far apart.
func TestPCIeClassFromSysfs(t *testing.T) {
	t.Parallel()
	m := load(t, "pcie_8x_pix_node_sys")
	node := newFakeNode(t, m)
	for _, gpu := range node.gpus {
		gpu.GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	}
	if diff := cmp.Diff(visible(m), node.discover().Machine); diff != "" {
		t.Error(diff)
	}
	empty := newFakeNode(t, topology.New("", 1)) // A sysfs that knows one GPU only.
	snapshot, err := newSource(node, empty).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := topology.New("", 8)
	want.GPUs[0].PCIeGen = m.GPUs[0].PCIeGen
	for i := range want.GPUs {
		want.GPUs[i].PCIeGen = m.GPUs[i].PCIeGen
	}
	if diff := cmp.Diff(want, snapshot.Machine); diff != "" {
		t.Error(diff)
	}
}

// migGPU puts a GPU into MIG mode with two devices in places 1 and 3 of 7, the first
// of which comes second by instance.
func migGPU(gpu *fakeGPU) {
	gpu.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	gpu.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	named := newMIG("MIG-b", 5, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", nvml.SUCCESS)
	unnamed := newMIG("MIG-a", 2, "", nvml.ERROR_NOT_SUPPORTED)
	gpu.GetGpuInstanceByIdFunc = func(number int) (nvml.GpuInstance, nvml.Return) {
		if number != 2 {
			return nil, nvml.ERROR_NO_PERMISSION
		}
		return &mock.GpuInstance{GetInfoFunc: func() (nvml.GpuInstanceInfo, nvml.Return) {
			return nvml.GpuInstanceInfo{Placement: nvml.GpuInstancePlacement{Start: 4, Size: 4}}, nvml.SUCCESS
		}}, nvml.SUCCESS
	}
	gpu.GetMigDeviceHandleByIndexFunc = func(place int) (nvml.Device, nvml.Return) {
		switch place {
		case 1:
			return named, nvml.SUCCESS
		case 3:
			return unnamed, nvml.SUCCESS
		default:
			return nil, nvml.ERROR_NOT_FOUND
		}
	}
}

// TestMIG: MIG devices are listed in order of instance, and the GPU's links do not
// count any more.
func TestMIG(t *testing.T) {
	t.Parallel()
	m := load(t, "hgxa100_8x_numa2")
	node := newFakeNode(t, m)
	migGPU(node.gpus[1])
	snapshot := node.discover()
	gpu := snapshot.GPUs[1]
	want := []device.MIGDevice{
		{UUID: "MIG-a", Profile: "1c.3g.40gb", Memory: 40000 << 20, GPUInstance: 2, GPUSlices: 3, ComputeSlices: 1, MemorySlices: 4},
		{UUID: "MIG-b", Profile: "1g.10gb", Memory: 9856 << 20, GPUInstance: 5, GPUSlices: 3, ComputeSlices: 1},
	}
	if diff := cmp.Diff(want, gpu.MIGDevices); diff != "" || !gpu.MIGEnabled {
		t.Errorf("enabled %v: %s", gpu.MIGEnabled, diff)
	}
	for j, links := range snapshot.Machine.NVLinks[1] {
		if links != 0 {
			t.Errorf("%d links to GPU %d", links, j)
		}
	}
	requireWarnings(t, snapshot)

	node.missing["nvmlDeviceGetMigDeviceHandleByIndex"] = true
	snapshot = node.discover()
	if gpu := snapshot.GPUs[1]; !gpu.MIGEnabled || gpu.MIGDevices != nil {
		t.Errorf("old driver: got %+v", gpu)
	}
	requireWarnings(t, snapshot, fmt.Sprintf("GPU %q: it is in MIG mode, but the driver is too old to list its MIG devices (no nvmlDeviceGetMigDeviceHandleByIndex): nothing of it is published", uuidAt(2)))
}
