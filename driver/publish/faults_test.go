// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/device"
)

// The numbers are those of the table "Faults of other drivers" in docs/node.md.

// TestD08_UnknownPCIeRoot: a GPU whose place on PCIe is hidden, as in many virtual
// machines, is published without that attribute, and its neighbour with it.
func TestD08_UnknownPCIeRoot(t *testing.T) {
	t.Parallel()
	hidden, plain := full(0), full(1)
	hidden.PCIeRoot = ""
	devices := devicesOf(build(t, node(hidden, plain), Options{}))
	if len(devices) != 2 {
		t.Fatalf("%d devices", len(devices))
	}
	for i, want := range []bool{false, true} {
		if _, got := devices[i].Attributes[api.AttrPCIeRoot]; got != want {
			t.Errorf("device %d has the attribute: %v", i, got)
		}
	}
}

// TestD09_OddTotals: totals that users report, none of which is a multiple of 1Mi, give
// policies that the API server takes.
func TestD09_OddTotals(t *testing.T) {
	t.Parallel()
	for total, want := range map[device.Bytes]string{
		15109<<20 + 786432: "15109Mi", 40536<<20 + 199229: "40536Mi", 81251<<20 + 199229: "81251Mi", 32510<<20 + 524288: "32510Mi", 24259<<20 + 723517: "24259Mi",
	} {
		gpu := full(0)
		gpu.Memory, gpu.MemoryReserved = total, 0
		memory := devicesOf(build(t, node(gpu), Options{MinMemory: 100<<20 + 1}))[0].Capacity[api.CapacityMemory]
		if problem := checkPolicy(memory); problem != "" || memory.Value.String() != want {
			t.Errorf("%d bytes: %s, %s", total, memory.Value.String(), problem)
		}
	}
}

// TestD10_ReservedMemory: what the kernel driver keeps, and what the administrator
// reserves, is not offered.
func TestD10_ReservedMemory(t *testing.T) {
	t.Parallel()
	gpu := full(0)
	gpu.Memory, gpu.MemoryReserved = 80<<30, 600<<20
	memory := devicesOf(build(t, node(gpu), Options{MemoryReserve: 424 << 20}))[0].Capacity[api.CapacityMemory]
	if got := memory.Value.Value(); got != 79<<30 {
		t.Errorf("%d bytes are offered, want %d", got, 79<<30)
	}
}

// TestD11_MIGInsteadOfWhole: a GPU in MIG mode is published as its MIG devices and as
// nothing else, also when it has none; MIG devices are for one claim each.
func TestD11_MIGInsteadOfWhole(t *testing.T) {
	t.Parallel()
	partitioned, empty := full(0), full(1)
	partitioned.MIGEnabled, empty.MIGEnabled = true, true
	partitioned.MIGDevices = []device.MIGDevice{{UUID: "MIG-00000000-0000-0000-0000-00000000000a", Profile: "3g.40gb", Memory: 40 << 30}, {UUID: "MIG-11111111-0000-0000-0000-00000000000b"}}
	var got []string
	for _, d := range devicesOf(build(t, node(partitioned, empty, full(2)), Options{})) {
		got = append(got, d.Name)
		if shared := d.AllowMultipleAllocations != nil; shared != (*d.Attributes[api.AttrType].StringValue == api.DeviceTypeGPU) {
			t.Errorf("%s: shared %v", d.Name, shared)
		}
	}
	if diff := cmp.Diff([]string{"mig-000000000000", "mig-111111110000", "gpu-000000021111"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestD19_LeastMemory: a claim takes at least what the administrator says, whatever it
// asks for.
func TestD19_LeastMemory(t *testing.T) {
	t.Parallel()
	for least, want := range map[device.Bytes]int64{0: 1 << 20, 500<<20 + 1: 501 << 20} {
		policy := devicesOf(build(t, node(full(0)), Options{MinMemory: least}))[0].Capacity[api.CapacityMemory].RequestPolicy
		if got := policy.ValidRange.Min.Value(); got != want {
			t.Errorf("at least %d: got %d, want %d", least, got, want)
		}
	}
}

// TestD13_V01_TaintsOnSharedGPUs: the taint is on the device that all shares are of, so
// that it holds for each, and the device stays published.
func TestD13_V01_TaintsOnSharedGPUs(t *testing.T) {
	t.Parallel()
	taint := resourceapi.DeviceTaint{Key: "gpu.topodra.dev/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	devices := devicesOf(build(t, node(full(0), full(1)), Options{Taints: func(uuid, _ device.UUID) []resourceapi.DeviceTaint {
		if uuid == full(1).UUID {
			return []resourceapi.DeviceTaint{taint}
		}
		return nil
	}}))
	if len(devices) != 2 || devices[0].Taints != nil || !cmp.Equal(devices[1].Taints, []resourceapi.DeviceTaint{taint}) || !*devices[1].AllowMultipleAllocations {
		t.Errorf("got %+v", devices)
	}
}
