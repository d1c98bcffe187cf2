// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// quad is two pairs, the second without NVLinks, on two NUMA nodes.
func quad() *topology.Machine {
	m := topology.New("quad", 4)
	for i := range m.GPUs {
		m.GPUs[i] = topology.GPUInfo{NUMA: i / 2, PCIeGen: 4}
	}
	m.GPUs[0].NVLinkMBps, m.GPUs[1].NVLinkMBps = 25781, 25781
	m.GPUs[3].NearestNIC = "mlx5_0"
	m.NVLinks[0][1], m.NVLinks[1][0] = 12, 12
	m.PCIe[0][1], m.PCIe[1][0] = topology.PXB, topology.PXB
	m.PCIe[2][3], m.PCIe[3][2] = topology.PIX, topology.PIX
	return m
}

// devicesOf encodes a machine into devices named after their position.
func devicesOf(tb testing.TB, m *topology.Machine) []Device {
	tb.Helper()
	encoded, err := Encode(m)
	if err != nil {
		tb.Fatal(err)
	}
	devices := make([]Device, len(encoded))
	for i, attributes := range encoded {
		devices[i] = Device{Name: fmt.Sprintf("gpu-%02d", i), Attributes: attributes}
	}
	return devices
}

func TestEncode(t *testing.T) {
	t.Parallel()
	got, err := Encode(quad())
	if err != nil {
		t.Fatal(err)
	}
	want := []Attributes{
		{"index": intAttribute(0), "nvlinks": stringAttribute("xc00"), "pcie": stringAttribute("xbss"), "nvlinkMBps": intAttribute(25781),
			"nvlinkDomain": stringAttribute("nvlink-0"), "nvlinkSwitched": {BoolValue: new(false)}, "pcieGen": intAttribute(4), "resource.kubernetes.io/numaNode": intAttribute(0)},
		{"index": intAttribute(1), "nvlinks": stringAttribute("cx00"), "pcie": stringAttribute("bxss"), "nvlinkMBps": intAttribute(25781),
			"nvlinkDomain": stringAttribute("nvlink-0"), "nvlinkSwitched": {BoolValue: new(false)}, "pcieGen": intAttribute(4), "resource.kubernetes.io/numaNode": intAttribute(0)},
		{"index": intAttribute(2), "nvlinks": stringAttribute("00x0"), "pcie": stringAttribute("ssxp"), "pcieGen": intAttribute(4), "resource.kubernetes.io/numaNode": intAttribute(1)},
		{"index": intAttribute(3), "nvlinks": stringAttribute("000x"), "pcie": stringAttribute("sspx"), "pcieGen": intAttribute(4), "resource.kubernetes.io/numaNode": intAttribute(1),
			"nearestNIC": stringAttribute("mlx5_0")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEncodeLeavesOutWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	m := topology.New("long", 1)
	m.GPUs[0].NearestNIC = strings.Repeat("n", 65)
	got, err := Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	want := []Attributes{{"index": intAttribute(0), "nvlinks": stringAttribute("x"), "pcie": stringAttribute("x")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Encode(topology.New("empty", 0)); err == nil {
		t.Error("a machine without GPUs was encoded")
	}
}

// machineGenerator draws valid machines of 1 to 64 GPUs.
func machineGenerator() *rapid.Generator[*topology.Machine] {
	return rapid.Custom(func(t *rapid.T) *topology.Machine {
		n := rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, topology.MaxGPUs)).Draw(t, "n")
		m := topology.New("drawn", n)
		linked := false
		for i := range n {
			m.GPUs[i] = topology.GPUInfo{
				NUMA:       rapid.IntRange(topology.NoNUMA, 9).Draw(t, "numa"),
				NVLinkMBps: topology.MBps(rapid.SampledFrom([]int{0, 1, 25781, 53125}).Draw(t, "rate")),
				PCIeGen:    rapid.IntRange(0, 6).Draw(t, "gen"),
				NearestNIC: rapid.SampledFrom([]string{"", "mlx5_0", "NIC3"}).Draw(t, "nic"),
			}
			for j := range i {
				links := uint8(rapid.IntRange(0, topology.MaxLinks).Draw(t, "links"))
				class := topology.PCIe(rapid.IntRange(int(topology.PIX), int(topology.SYS)).Draw(t, "class"))
				m.NVLinks[i][j], m.NVLinks[j][i] = links, links
				m.PCIe[i][j], m.PCIe[j][i] = class, class
				linked = linked || links > 0
			}
		}
		m.Switched = linked && rapid.Bool().Draw(t, "switched")
		return m
	})
}

// TestRoundTrip: any machine comes back exactly, whatever order devices are in.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := machineGenerator().Draw(t, "machine")
		encoded, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		order := rapid.Permutation(positions(m.N())).Draw(t, "order")
		var devices []Device
		for _, i := range order {
			for name, value := range encoded[i] {
				if value.StringValue != nil && len(*value.StringValue) > resourceapi.DeviceAttributeMaxValueLength {
					t.Fatalf("%s is %d bytes long", name, len(*value.StringValue))
				}
			}
			devices = append(devices, Device{Name: fmt.Sprintf("gpu-%d", (i*37)%101), Attributes: encoded[i]})
		}
		got, err := Decode("drawn", devices, api.OwnMapping())
		if err != nil {
			t.Fatal(err)
		}
		want := &Decoded{Machine: m, Positions: order, Present: topology.FullMask(m.N())}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestHoles: a missing GPU changes nothing for the others, and what they say
// about it is kept.
func TestHoles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := machineGenerator().Draw(t, "machine")
		encoded, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		keep := topology.Mask(0)
		var devices []Device
		for i := range m.N() {
			if i == 0 || rapid.Bool().Draw(t, "keep") {
				keep = keep.With(i)
				devices = append(devices, Device{Name: fmt.Sprint(i), Attributes: encoded[i]})
			}
		}
		got, err := Decode("drawn", devices, api.OwnMapping())
		if err != nil {
			t.Fatal(err)
		}
		want := m.Clone()
		switched := false
		for i := range m.N() {
			switched = switched || keep.Has(i) && linked(m, i)
			if !keep.Has(i) {
				want.GPUs[i] = topology.GPUInfo{NUMA: topology.NoNUMA}
			}
			for j := range m.N() {
				if i != j && !keep.Has(i) && !keep.Has(j) {
					want.NVLinks[i][j], want.PCIe[i][j] = 0, topology.SYS
				}
			}
		}
		want.Switched = m.Switched && switched
		if diff := cmp.Diff(&Decoded{Machine: want, Positions: keep.Positions(), Present: keep}, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// linked reports whether GPU i has any NVLink.
func linked(m *topology.Machine, i int) bool {
	for _, links := range m.NVLinks[i] {
		if links > 0 {
			return true
		}
	}
	return false
}

// positions returns 0 to n-1.
func positions(n int) []int { return topology.FullMask(n).Positions() }

func TestDecodeSkipsMIGDevices(t *testing.T) {
	t.Parallel()
	devices := devicesOf(t, quad())[1:]
	for i := range devices {
		devices[i].Attributes[api.AttrType] = stringAttribute("gpu")
	}
	mig := Device{Name: "mig-a", Attributes: Attributes{api.AttrType: stringAttribute("mig"), api.AttrIndex: intAttribute(0)}}
	got, err := Decode("quad", append([]Device{mig}, devices...), api.OwnMapping())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{NoPosition, 1, 2, 3}, got.Positions); diff != "" {
		t.Error(diff)
	}
	if got.Present != topology.MaskOf(1, 2, 3) || got.Machine.N() != 4 {
		t.Errorf("present %s of %d", got.Present, got.Machine.N())
	}
	_, err = Decode("quad", []Device{mig}, api.OwnMapping())
	if !errors.Is(err, ErrNoGPUs) {
		t.Errorf("only MIG devices: got error %v, want %v", err, ErrNoGPUs)
	}
}

func TestDecodeContradictions(t *testing.T) {
	t.Parallel()
	devices := devicesOf(t, quad())
	devices[1].Attributes[api.AttrNVLinks] = stringAttribute("4x00")
	devices[2].Attributes[api.AttrPCIe] = stringAttribute("ssxn")
	devices[1].Attributes[api.AttrNVLinkSwitched] = resourceapi.DeviceAttribute{BoolValue: new(true)}
	want := quad()
	want.NVLinks[0][1], want.NVLinks[1][0] = 4, 4
	want.PCIe[2][3], want.PCIe[3][2] = topology.NODE, topology.NODE
	warnings := []topology.Warning{
		`device "gpu-00" has 12 NVLinks to position 1, device "gpu-01" has 4 to position 0: 4 count`,
		`device "gpu-02" is NODE from position 3, device "gpu-03" is PIX from position 2: NODE counts`,
		`device "gpu-01" says that NVLinks go into a switch, device "gpu-00" that they do not: no switch is assumed`,
	}
	for range 5 {
		rand.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
		got, err := Decode("quad", devices, api.OwnMapping())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Machine); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(warnings, got.Warnings); diff != "" {
			t.Error(diff)
		}
	}
}
