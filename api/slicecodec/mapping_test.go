// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// standardOnly is the mapping of a driver that is not configured.
func standardOnly() api.DriverMapping {
	return (&api.TopologyDynamicResourcesArgs{}).MappingFor("gpu.example.com")
}

// TestDecodeStandardAttributes: with no rows at all, PCI addresses give the
// order, and root and NUMA node the classes.
func TestDecodeStandardAttributes(t *testing.T) {
	t.Parallel()
	device := func(name, address, root string, numa int) Device {
		attributes := Attributes{api.AttrPCIBusID: stringAttribute(address), api.AttrNUMANode: intAttribute(numa)}
		if root != "" {
			attributes[api.AttrPCIeRoot] = stringAttribute(root)
		}
		return Device{Name: name, Attributes: attributes}
	}
	got, err := Decode("pool", []Device{
		device("d", "0000:81:00.0", "pci0000:80", 1),
		device("a", "0000:c1:00.0", "", -1),
		device("b", "0000:07:00.0", "pci0000:00", 0),
		device("c", "0000:0b:00.0", "pci0000:00", 0),
		device("e", "0000:41:00.0", "pci0000:40", 0),
	}, standardOnly())
	if err != nil {
		t.Fatal(err)
	}
	want := topology.New("pool", 5)
	for i, numa := range []int{0, 0, 0, 1, topology.NoNUMA} {
		want.GPUs[i].NUMA = numa
	}
	for _, pair := range []struct {
		i, j  int
		class topology.PCIe
	}{{0, 1, topology.PHB}, {0, 2, topology.NODE}, {1, 2, topology.NODE}} {
		want.PCIe[pair.i][pair.j], want.PCIe[pair.j][pair.i] = pair.class, pair.class
	}
	if diff := cmp.Diff(&Decoded{Machine: want, Positions: []int{3, 4, 0, 1, 2}, Present: topology.FullMask(5)}, got); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeMapping reads attributes under other names, with and without the
// driver's domain, and NUMA nodes as a list.
func TestDecodeMapping(t *testing.T) {
	t.Parallel()
	mapping := api.DriverMapping{Driver: "gpu.example.com", Attributes: api.AttributeMapping{
		NVLinks: "links", PCIe: "gpu.example.com/paths", NVLinkMBps: "rate", PCIeGen: "gen", NearestNIC: "nic", NVLinkSwitched: "switched"}}
	mapping.Default()
	var devices []Device
	for i, attributes := range devicesOf(t, quad()) {
		renamed := Attributes{}
		for from, to := range map[resourceapi.QualifiedName]resourceapi.QualifiedName{
			api.AttrNVLinks: "gpu.example.com/links", api.AttrPCIe: "paths", api.AttrNVLinkMBps: "rate",
			api.AttrPCIeGen: "gen", api.AttrNearestNIC: "nic", api.AttrNVLinkSwitched: "switched",
		} {
			if value, ok := attributes.Attributes[from]; ok {
				renamed[to] = value
			}
		}
		renamed[api.AttrNUMANode] = resourceapi.DeviceAttribute{IntValues: []int64{int64(i / 2), 9}}
		devices = append(devices, Device{Name: attributes.Name, Attributes: renamed})
	}
	got, err := Decode("quad", devices, mapping)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quad(), got.Machine); diff != "" {
		t.Error(diff)
	}
}

// TestDecodeNVLinkDomain: a common domain stands for one link, and only where no
// row says more.
func TestDecodeNVLinkDomain(t *testing.T) {
	t.Parallel()
	mapping := api.DriverMapping{Driver: "gpu.example.com", Attributes: api.AttributeMapping{NVLinkDomain: "domain", NVLinks: "links"}}
	got, err := Decode("pool", []Device{
		{Name: "a", Attributes: Attributes{"domain": intAttribute(7)}},
		{Name: "b", Attributes: Attributes{"domain": intAttribute(7)}},
		{Name: "c", Attributes: Attributes{"domain": stringAttribute("7"), "links": stringAttribute("02x0")}},
		{Name: "d", Attributes: Attributes{"domain": stringAttribute("8")}},
	}, mapping)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]uint8{{0, 1, 0, 0}, {1, 0, 2, 0}, {0, 2, 0, 0}, {0, 0, 0, 0}}, got.Machine.NVLinks); diff != "" {
		t.Error(diff)
	}
}
