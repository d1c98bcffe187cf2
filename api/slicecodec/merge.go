// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"fmt"
	"strconv"

	"github.com/topodra/topodra/topology"
)

// merger builds the machine out of what the single devices say.
type merger struct {
	machine  *topology.Machine
	at       []*gpuDevice // by position, nil for a hole
	warnings []topology.Warning
}

// newMerger prepares a machine with n positions.
func newMerger(name string, n int, gpus []*gpuDevice) *merger {
	m := &merger{machine: topology.New(name, n), at: make([]*gpuDevice, n)}
	for _, gpu := range gpus {
		m.at[gpu.position] = gpu
		m.machine.GPUs[gpu.position] = gpu.info
	}
	return m
}

// run fills in all pairs and the properties of the whole machine.
func (m *merger) run() error {
	n := m.machine.N()
	for i := range n {
		for j := i + 1; j < n; j++ {
			if err := m.mergeNVLinks(i, j); err != nil {
				return err
			}
			if err := m.mergePCIe(i, j); err != nil {
				return err
			}
		}
	}
	m.mergeSwitched()
	return nil
}

// mergeNVLinks decides how many links join positions i and j.
func (m *merger) mergeNVLinks(i, j int) error {
	a, err := m.nvlinks(i, j)
	if err != nil {
		return err
	}
	b, err := m.nvlinks(j, i)
	if err != nil {
		return err
	}
	links := 0
	switch {
	case a >= 0 && b >= 0:
		links = min(a, b)
		if a != b {
			m.warn("device %q has %d NVLinks to position %d, device %q has %d to position %d: %d count",
				m.at[i].name, a, j, m.at[j].name, b, i, links)
		}
	case a >= 0 || b >= 0:
		links = max(a, b)
	case m.at[i] != nil && m.at[j] != nil && m.at[i].domain != "" && m.at[i].domain == m.at[j].domain:
		links = 1
	}
	m.machine.NVLinks[i][j], m.machine.NVLinks[j][i] = uint8(links), uint8(links)
	return nil
}

// nvlinks returns what the device at position i says about position j; -1 for
// nothing.
func (m *merger) nvlinks(i, j int) (int, error) {
	gpu := m.at[i]
	if gpu == nil || gpu.nvlinks == "" {
		return -1, nil
	}
	digit := gpu.nvlinks[j]
	// ParseUint would also take capital letters, signs and more than one digit.
	if (digit < '0' || digit > '9') && (digit < 'a' || digit > 'z') {
		return 0, fmt.Errorf("device %q: attribute for NVLinks: row %d, column %d: %q is not a base-36 digit", gpu.name, i, j, digit)
	}
	links, err := strconv.ParseUint(string(rune(digit)), 36, 8)
	if err != nil {
		return 0, fmt.Errorf("device %q: attribute for NVLinks: row %d, column %d: %w", gpu.name, i, j, err)
	}
	return int(links), nil
}

// mergePCIe decides how far apart positions i and j are.
func (m *merger) mergePCIe(i, j int) error {
	a, err := m.pcie(i, j)
	if err != nil {
		return err
	}
	b, err := m.pcie(j, i)
	if err != nil {
		return err
	}
	class := max(a, b)
	if class == topology.PCIeSelf {
		class = m.inferPCIe(i, j)
	} else if a != b && a != topology.PCIeSelf && b != topology.PCIeSelf {
		m.warn("device %q is %s from position %d, device %q is %s from position %d: %s counts",
			m.at[i].name, a, j, m.at[j].name, b, i, class)
	}
	m.machine.PCIe[i][j], m.machine.PCIe[j][i] = class, class
	return nil
}

// pcie returns what the device at position i says about position j; PCIeSelf
// for nothing.
func (m *merger) pcie(i, j int) (topology.PCIe, error) {
	gpu := m.at[i]
	if gpu == nil || gpu.pcie == "" {
		return topology.PCIeSelf, nil
	}
	class, err := topology.PCIeFromLetter(gpu.pcie[j])
	if err == nil && class == topology.PCIeSelf {
		err = fmt.Errorf("%q is only for its own position", ownPosition)
	}
	if err != nil {
		return 0, fmt.Errorf("device %q: attribute for PCIe: row %d, column %d: %w", gpu.name, i, j, err)
	}
	return class, nil
}

// inferPCIe applies the table of the package comment.
func (m *merger) inferPCIe(i, j int) topology.PCIe {
	a, b := m.at[i], m.at[j]
	switch {
	case a == nil || b == nil:
		return topology.SYS
	case a.pcieRoot != "" && a.pcieRoot == b.pcieRoot:
		return topology.PHB
	case a.info.NUMA != topology.NoNUMA && a.info.NUMA == b.info.NUMA:
		return topology.NODE
	default:
		return topology.SYS
	}
}

// mergeSwitched believes in a switch only when no GPU denies it: links of one's
// own are worth less than the same number into a switch.
func (m *merger) mergeSwitched() {
	var yes, no *gpuDevice
	for _, gpu := range m.at {
		switch {
		case gpu == nil || gpu.switched == nil:
		case *gpu.switched && yes == nil:
			yes = gpu
		case !*gpu.switched && no == nil:
			no = gpu
		}
	}
	if yes != nil && no != nil {
		m.warn("device %q says that NVLinks go into a switch, device %q that they do not: no switch is assumed", yes.name, no.name)
	}
	m.machine.Switched = yes != nil && no == nil
}

// warn keeps a warning.
func (m *merger) warn(format string, args ...any) {
	m.warnings = append(m.warnings, topology.Warning(fmt.Sprintf(format, args...)))
}
