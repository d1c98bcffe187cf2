// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// load returns a recorded machine.
func load(t *testing.T, name string) *topology.Machine {
	t.Helper()
	recorded, err := topotest.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return recorded.Machine
}

// visible returns what NVML can know of a machine: no name, and the rate of links
// only where there are any.
func visible(m *topology.Machine) *topology.Machine {
	want := m.Clone()
	want.Name = ""
	for i, domain := range m.Domains() {
		if domain < 0 {
			want.GPUs[i].NVLinkMBps = 0
		}
	}
	return want
}

// requireWarnings compares warnings exactly.
func requireWarnings(t *testing.T, snapshot *device.Snapshot, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, snapshot.Warnings); diff != "" {
		t.Errorf("warnings: %s", diff)
	}
}

// TestRecordedMachines: every recorded machine is found again through NVML, however
// NVML counts.
func TestRecordedMachines(t *testing.T) {
	t.Parallel()
	for _, name := range topotest.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := load(t, name)
			snapshot := newFakeNode(t, m).discover()
			if diff := cmp.Diff(visible(m), snapshot.Machine); diff != "" {
				t.Error(diff)
			}
			requireWarnings(t, snapshot)
		})
	}
}

// TestGPU checks the facts of one GPU.
func TestGPU(t *testing.T) {
	t.Parallel()
	snapshot := newFakeNode(t, load(t, "della_4xa100_sxm_nv4")).discover()
	want := device.GPU{
		UUID: "GPU-0000a002-0000-4000-8000-000000000000", PCIAddress: "0000:12:00.0", PCIeRoot: "pci0000:12",
		Minor: new(device.Minor(2)), ModuleID: new(device.ModuleID(3)),
		ProductName: "NVIDIA Test", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: &device.Version{Major: 8},
		Memory: 80 << 30, MemoryReserved: 500 << 20,
	}
	if diff := cmp.Diff(want, snapshot.GPUs[1]); diff != "" {
		t.Error(diff)
	}
	if got, want := snapshot.DriverVersion.String()+" "+snapshot.CUDADriverVersion.String(), "535.104.5 12.2.0"; got != want {
		t.Errorf("versions: got %s, want %s", got, want)
	}
	if snapshot.Simulated {
		t.Error("real GPUs are called simulated")
	}
}

// TestInactiveLinks: links that are down count neither for direct connections nor
// for a switch.
func TestInactiveLinks(t *testing.T) {
	t.Parallel()
	direct := load(t, "dgx1v_8xv100")
	node := newFakeNode(t, direct)
	down := 0
	for k := range node.gpus[0].links {
		if node.gpus[0].links[k].remote == pciAt(inOrder(8)[3]) && down == 0 {
			node.gpus[0].links[k].active = false
			down++
		}
	}
	for k := range node.gpus[3].links {
		if node.gpus[3].links[k].remote == pciAt(inOrder(8)[0]) && down == 1 {
			node.gpus[3].links[k].active = false
			down++
		}
	}
	want := visible(direct)
	want.NVLinks[0][3], want.NVLinks[3][0] = 1, 1
	snapshot := node.discover()
	if diff := cmp.Diff(want, snapshot.Machine); diff != "" || down != 2 {
		t.Errorf("direct, %d links down: %s", down, diff)
	}
	requireWarnings(t, snapshot)

	switched := load(t, "hgxh100_8x_numa2")
	node = newFakeNode(t, switched)
	// The first link is down, so the rate must be read from the second.
	for _, k := range []int{0, 7} {
		node.gpus[5].links[k].active = false
	}
	want = visible(switched)
	for j := range 8 {
		if j != 5 {
			want.NVLinks[5][j], want.NVLinks[j][5] = 16, 16
		}
	}
	if diff := cmp.Diff(want, node.discover().Machine); diff != "" {
		t.Errorf("switched: %s", diff)
	}
}

// TestAsymmetricLinks: the smaller direction counts and somebody is told.
func TestAsymmetricLinks(t *testing.T) {
	t.Parallel()
	m := load(t, "dgx1v_8xv100")
	node := newFakeNode(t, m)
	for k := range node.gpus[0].links {
		if node.gpus[0].links[k].remote == pciAt(inOrder(8)[3]) {
			node.gpus[0].links[k].active = false
			break
		}
	}
	want := visible(m)
	want.NVLinks[0][3], want.NVLinks[3][0] = 1, 1
	snapshot := node.discover()
	if diff := cmp.Diff(want, snapshot.Machine); diff != "" {
		t.Error(diff)
	}
	requireWarnings(t, snapshot, fmt.Sprintf("GPU %q has 1 NVLinks to GPU %q, which has 2 back: 1 count", uuidAt(0), uuidAt(6)))
}

// TestPeerToPeer: links that cannot be used do not count.
func TestPeerToPeer(t *testing.T) {
	t.Parallel()
	m := load(t, "della_4xa100_sxm_nv4")
	node := newFakeNode(t, m)
	node.p2p[[2]int{2, 1}] = nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED
	node.gpus[3].GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		return 0, nvml.ERROR_UNKNOWN
	}
	node.gpus[0].GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	want := visible(m)
	for _, pair := range [][2]int{{1, 2}, {0, 3}, {1, 3}, {2, 3}} {
		want.NVLinks[pair[0]][pair[1]], want.NVLinks[pair[1]][pair[0]] = 0, 0
	}
	for i := range want.GPUs {
		want.GPUs[i].NVLinkMBps = m.GPUs[i].NVLinkMBps // The links are there all the same.
	}
	snapshot := node.discover()
	if diff := cmp.Diff(want, snapshot.Machine); diff != "" {
		t.Error(diff)
	}
	if len(snapshot.Warnings) != 4 || snapshot.Warnings[1] != fmt.Sprintf(
		"NVLinks from GPU %q to GPU %q do not count: peer to peer status is 1, not OK; does the fabric manager run?", uuidAt(1), uuidAt(2)) {
		t.Errorf("warnings: %q", snapshot.Warnings)
	}
}

// TestGPULost: whatever call finds out, the others are published, in order and with
// the links among them.
func TestGPULost(t *testing.T) {
	t.Parallel()
	lost := func(n *fakeNode) map[string]func() {
		gpu := n.gpus[2]
		return map[string]func(){
			"handle": func() {
				n.DeviceGetHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
					if index == 5 {
						return nil, nvml.ERROR_GPU_IS_LOST
					}
					return n.gpus[7-index].Device, nvml.SUCCESS
				}
			},
			"uuid": func() { gpu.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST } },
			"pci": func() {
				gpu.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_UNKNOWN }
			},
			"memory": func() {
				gpu.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST }
			},
			"links": func() {
				gpu.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
			},
			"rate": func() { gpu.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_GPU_IS_LOST } },
		}
	}
	m := load(t, "dgx1v_8xv100")
	for name := range lost(newFakeNode(t, m)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newFakeNode(t, m)
			lost(node)[name]()
			snapshot := node.discover()
			want := without(visible(m), 2)
			if diff := cmp.Diff(want, snapshot.Machine); diff != "" {
				t.Error(diff)
			}
			if len(snapshot.Warnings) != 1 {
				t.Errorf("warnings: %q", snapshot.Warnings)
			}
			if got := snapshot.GPUs[2].UUID; got != device.UUID(uuidAt(inOrder(8)[3])) {
				t.Errorf("the third GPU is %q", got)
			}
		})
	}
}

// without removes a GPU from a machine.
func without(m *topology.Machine, gone int) *topology.Machine {
	out := topology.New(m.Name, m.N()-1)
	out.Switched = m.Switched
	at := func(i int) int {
		if i >= gone {
			return i + 1
		}
		return i
	}
	for i := range out.GPUs {
		out.GPUs[i] = m.GPUs[at(i)]
		for j := range out.GPUs {
			out.NVLinks[i][j], out.PCIe[i][j] = m.NVLinks[at(i)][at(j)], m.PCIe[at(i)][at(j)]
		}
	}
	return out
}

// TestAllLost: a node without usable GPUs is known to have none.
func TestAllLost(t *testing.T) {
	t.Parallel()
	node := newFakeNode(t, topology.New("", 1))
	node.gpus[0].GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	snapshot := node.discover()
	if len(snapshot.GPUs) != 0 || snapshot.Machine != nil || len(snapshot.Warnings) != 1 {
		t.Errorf("got %+v", snapshot)
	}
}

// TestFabric: only a completed registration with a cluster counts.
func TestFabric(t *testing.T) {
	t.Parallel()
	cluster := [16]uint8{0: 0x31, 15: 0x01}
	node := newFakeNode(t, load(t, "gb200_4x"))
	for i, info := range []nvml.GpuFabricInfo{
		{ClusterUuid: cluster, CliqueId: 7, State: nvml.GPU_FABRIC_STATE_COMPLETED},
		{ClusterUuid: cluster, CliqueId: 7, State: nvml.GPU_FABRIC_STATE_IN_PROGRESS},
		{CliqueId: 7, State: nvml.GPU_FABRIC_STATE_COMPLETED},
		{ClusterUuid: cluster, CliqueId: 7, State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_INVALID_STATE)},
	} {
		node.gpus[i].GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) { return info, nvml.SUCCESS }
	}
	snapshot := node.discover()
	var got []string
	for i := range snapshot.GPUs {
		got = append(got, fmt.Sprint(snapshot.GPUs[i].Fabric))
	}
	if diff := cmp.Diff([]string{"31000000-0000-0000-0000-000000000001.7", "<nil>", "<nil>", "<nil>"}, got); diff != "" {
		t.Error(diff)
	}
	requireWarnings(t, snapshot,
		fmt.Sprintf("GPU %q: its registration with the fabric is not completed (state 2): leaving the fabric out until it is", uuidAt(2)),
		fmt.Sprintf("GPU %q: its registration with the fabric failed with status 29: leaving the fabric out", uuidAt(3)))
}
