// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"fmt"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// Attributes are the attributes of one device.
type Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// Encode returns the topology attributes of every GPU of a machine, by
// position. The machine must be valid.
func Encode(m *topology.Machine) ([]Attributes, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("encoding topology: %w", err)
	}
	domains := domainNames(m)
	out := make([]Attributes, m.N())
	for i := range out {
		out[i] = encodeGPU(m, i, domains[i])
	}
	return out, nil
}

// encodeGPU writes down what is known about the GPU at position i.
func encodeGPU(m *topology.Machine, i int, domain string) Attributes {
	gpu := &m.GPUs[i]
	attributes := Attributes{
		api.AttrIndex:   intAttribute(i),
		api.AttrNVLinks: stringAttribute(nvlinksRow(m, i)),
		api.AttrPCIe:    stringAttribute(pcieRow(m, i)),
	}
	if gpu.NUMA != topology.NoNUMA {
		attributes[api.AttrNUMANode] = intAttribute(gpu.NUMA)
	}
	if gpu.NVLinkMBps > 0 {
		attributes[api.AttrNVLinkMBps] = intAttribute(int(gpu.NVLinkMBps))
	}
	if domain != "" {
		attributes[api.AttrNVLinkDomain] = stringAttribute(domain)
		attributes[api.AttrNVLinkSwitched] = resourceapi.DeviceAttribute{BoolValue: new(m.Switched)}
	}
	if gpu.PCIeGen > 0 {
		attributes[api.AttrPCIeGen] = intAttribute(gpu.PCIeGen)
	}
	if nic := gpu.NearestNIC; nic != "" && len(nic) <= resourceapi.DeviceAttributeMaxValueLength {
		attributes[api.AttrNearestNIC] = stringAttribute(nic)
	}
	return attributes
}

// ownPosition marks a GPU in its own rows.
const ownPosition = 'x'

// nvlinksRow writes the links of GPU i in base 36.
func nvlinksRow(m *topology.Machine, i int) string {
	row := make([]byte, 0, m.N())
	for j, links := range m.NVLinks[i] {
		if j == i {
			row = append(row, ownPosition)
		} else {
			row = strconv.AppendUint(row, uint64(links), 36)
		}
	}
	return string(row)
}

// pcieRow writes the PCIe classes of GPU i as letters.
func pcieRow(m *topology.Machine, i int) string {
	row := make([]byte, m.N())
	for j, class := range m.PCIe[i] {
		row[j] = class.Letter()
	}
	return string(row)
}

// domainNames names the NVLink domain of each GPU after its lowest member; ""
// without NVLinks.
func domainNames(m *topology.Machine) []string {
	names := make([]string, m.N())
	byDomain := map[int]string{}
	for i, domain := range m.Domains() {
		if domain < 0 {
			continue
		}
		if byDomain[domain] == "" {
			byDomain[domain] = "nvlink-" + strconv.Itoa(i)
		}
		names[i] = byDomain[domain]
	}
	return names
}

// intAttribute wraps an int.
func intAttribute(value int) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: new(int64(value))}
}

// stringAttribute wraps a string.
func stringAttribute(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}
