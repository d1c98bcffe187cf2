// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// TestDevices: what is published, and only that, with what is offered of it.
func TestDevices(t *testing.T) {
	t.Parallel()
	machine := topology.New("", 3)
	machine.NVLinks[0][1], machine.NVLinks[1][0] = 4, 4
	snapshot := &device.Snapshot{Machine: machine, GPUs: []device.GPU{
		{UUID: "GPU-0", PCIAddress: "0000:07:00.0", ProductName: "H100", Memory: 1000 * device.MiB, MemoryReserved: 10 * device.MiB},
		{UUID: "GPU-1", PCIAddress: "0000:08:00.0"},
		{UUID: "GPU-2", PCIAddress: "0000:09:00.0", ProductName: "H100", MIGEnabled: true, Memory: 1000 * device.MiB, MIGDevices: []device.MIGDevice{
			{UUID: "MIG-a", Profile: "1g.1gb", Memory: 100 * device.MiB, GPUInstance: 7, ComputeInstance: 1},
		}},
	}}
	published, err := publish.Build(snapshot, publish.Options{NodeName: "n", MemoryReserve: 90 * device.MiB})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	got := Devices(snapshot, &published.Resources)
	for i := range got {
		names[got[i].UUID], got[i].Name = got[i].Name, ""
	}
	const mib = 1 << 20
	want := []Device{
		{UUID: "GPU-0", Index: 0, Type: "gpu", Product: "H100", PCIAddress: "0000:07:00.0", Link: linkNVLink, TotalBytes: 1000 * mib, OfferedBytes: 900 * mib},
		{UUID: "GPU-1", Index: 1, Type: "gpu", PCIAddress: "0000:08:00.0", Link: linkNVLink},
		{UUID: "MIG-a", Parent: "GPU-2", Index: 2, Type: "mig", Product: "H100", PCIAddress: "0000:09:00.0", Link: linkNone, Profile: "1g.1gb", GPUInstance: 7, ComputeInstance: 1, TotalBytes: 100 * mib, OfferedBytes: 100 * mib},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if names["GPU-0"] == "" || names["GPU-0"] == names["MIG-a"] {
		t.Errorf("got names %v", names)
	}
	published.Resources.Pools["n"].Slices[0].Devices = published.Resources.Pools["n"].Slices[0].Devices[:1]
	if got := Devices(snapshot, &published.Resources); len(got) != 1 || got[0].UUID != "GPU-0" {
		t.Errorf("got %+v", got)
	}
	if got := Devices(&device.Snapshot{}, &published.Resources); got != nil {
		t.Errorf("got %+v", got)
	}
}

// TestLinks: the class of link of every recorded machine that the names tell.
func TestLinks(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"hgxh100_8x_numa2": linkNVSwitch, "dgx1v_8xv100": linkNVLink, "pcie_8x_pix_phb_sys": linkPCIe, "rtx4090_8x_all_sys": linkSystem,
	} {
		recorded, err := topotest.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		machine := recorded.Machine
		for gpu := range machine.GPUs {
			if got := linkOf(machine, gpu); got != want {
				t.Errorf("%s: GPU %d: got %q, want %q", name, gpu, got, want)
			}
		}
	}
	if got := linkOf(topology.New("", 1), 0); got != linkNone {
		t.Errorf("alone: got %q", got)
	}
}
