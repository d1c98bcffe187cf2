// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// TestDecodeRejects changes one attribute of a good pool at a time. The error
// must name the pool, the device and what is wrong.
func TestDecodeRejects(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0", 65)
	for name, tc := range map[string]struct {
		attribute resourceapi.QualifiedName
		value     resourceapi.DeviceAttribute
		want      string
	}{
		"nvlinks as int":    {api.AttrNVLinks, intAttribute(5), `attribute "nvlinks": must be a string`},
		"nvlinks too long":  {api.AttrNVLinks, stringAttribute(long), `attribute "nvlinks": 65 bytes are more than the limit of 64`},
		"nvlinks capital":   {api.AttrNVLinks, stringAttribute("0Cx0"), `attribute for NVLinks: row 2, column 1: 'C' is not a base-36 digit`},
		"nvlinks space":     {api.AttrNVLinks, stringAttribute("0 x0"), `attribute for NVLinks: row 2, column 1: ' ' is not a base-36 digit`},
		"nvlinks too short": {api.AttrNVLinks, stringAttribute("0x"), `attribute for NVLinks has 2 columns, attribute for PCIe has 4`},
		"nvlinks self":      {api.AttrNVLinks, stringAttribute("0000"), `attribute for NVLinks: row 2, column 2: '0' where its own position needs 'x'`},
		"pcie letter":       {api.AttrPCIe, stringAttribute("ssxq"), `attribute for PCIe: row 2, column 3: unknown PCIe class letter 'q'`},
		"pcie two selves":   {api.AttrPCIe, stringAttribute("sxxs"), `attribute for PCIe: row 2, column 1: 'x' is only for its own position`},
		"pcie self":         {api.AttrPCIe, stringAttribute("ssss"), `attribute for PCIe: row 2, column 2: 's' where its own position needs 'x'`},
		"index as string":   {api.AttrIndex, stringAttribute("2"), `attribute "index": must be an int`},
		"index negative":    {api.AttrIndex, intAttribute(-1), `attribute "index": -1 is not between 0 and 63`},
		"index too large":   {api.AttrIndex, intAttribute(64), `attribute "index": 64 is not between 0 and 63`},
		"index elsewhere":   {api.AttrIndex, intAttribute(1), `attribute for PCIe: row 1, column 1: 's' where its own position needs 'x'`},
		"index past row":    {api.AttrIndex, intAttribute(9), `attribute for PCIe: row 9 has only 4 columns`},
		"rate as string":    {api.AttrNVLinkMBps, stringAttribute("fast"), `attribute "nvlinkMBps": must be an int`},
		"rate negative":     {api.AttrNVLinkMBps, intAttribute(-5), `attribute "nvlinkMBps": -5 is not between 0 and 100000000`},
		"switched as int":   {api.AttrNVLinkSwitched, intAttribute(1), `attribute "nvlinkSwitched": must be a bool`},
		"numa as string":    {api.AttrNUMANode, stringAttribute("0"), `attribute "resource.kubernetes.io/numaNode": must be an int`},
		"numa too large":    {api.AttrNUMANode, intAttribute(1 << 40), `attribute "resource.kubernetes.io/numaNode": 1099511627776 is not between 0 and 32767`},
		"gen negative":      {api.AttrPCIeGen, intAttribute(-4), `attribute "pcieGen": -4 is not between 0 and 100`},
		"NIC as bool":       {api.AttrNearestNIC, resourceapi.DeviceAttribute{BoolValue: new(true)}, `attribute "nearestNIC": must be a string`},
		"type as int":       {api.AttrType, intAttribute(1), `attribute "type": must be a string`},
		"empty value":       {api.AttrPCIeRoot, resourceapi.DeviceAttribute{}, `attribute "resource.kubernetes.io/pcieRoot": must be a string`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			devices := devicesOf(t, quad())
			devices[2].Attributes[tc.attribute] = tc.value
			requireError(t, devices, api.OwnMapping(), `pool "quad": device "gpu-02": `+tc.want)
		})
	}
}

// requireError decodes and compares the end of the message.
func requireError(t *testing.T, devices []Device, mapping api.DriverMapping, want string) {
	t.Helper()
	got, err := Decode("quad", devices, mapping)
	if err == nil {
		t.Fatalf("accepted: %+v", got.Machine)
	}
	if !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got error %q, want it to end in %q", err, want)
	}
}

func TestDecodeRejectsPools(t *testing.T) {
	t.Parallel()
	twice := devicesOf(t, quad())
	twice[3] = Device{Name: "gpu-99", Attributes: twice[2].Attributes}
	requireError(t, twice, api.OwnMapping(), `device "gpu-99": position 2 is taken by device "gpu-02"`)

	sameName := devicesOf(t, quad())
	sameName[3].Name = "gpu-01"
	requireError(t, sameName, api.OwnMapping(), `device "gpu-01" is there twice`)

	wide := devicesOf(t, quad())
	wide[3].Attributes = devicesOf(t, topology.New("wide", 5))[3].Attributes
	requireError(t, wide, api.OwnMapping(), `device "gpu-03": its rows have 5 columns, those of device "gpu-00" have 4`)

	past := devicesOf(t, quad())
	past[3].Attributes = Attributes{api.AttrIndex: intAttribute(7)}
	requireError(t, past, api.OwnMapping(), `device "gpu-03": index 7, but rows of other devices have 4 columns`)

	extra := devicesOf(t, quad())
	extra = append(extra, Device{Name: "other"})
	requireError(t, extra, api.OwnMapping(), `device "other": no position is left among 4`)

	unplaced := []Device{{Name: "a", Attributes: Attributes{api.AttrNVLinks: stringAttribute("00")}}}
	requireError(t, unplaced, api.OwnMapping(), `device "a": attribute for NVLinks: without an index, one column must be 'x'`)
	unplaced[0].Attributes[api.AttrNVLinks] = stringAttribute("x0x")
	requireError(t, unplaced, api.OwnMapping(), `device "a": attribute for NVLinks: without an index, 'x' in columns 0 and 2 is ambiguous`)

	many := make([]Device, 65)
	for i := range many {
		many[i].Name = strings.Repeat("x", i+1)
	}
	requireError(t, many, api.DriverMapping{Driver: "other.example.com"}, `65 GPUs are more than the limit of 64`)
}
