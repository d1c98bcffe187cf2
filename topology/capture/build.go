// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/topodra/topodra/topology"
)

// rawMachine is what both readers produce: checked shapes, cells still as text.
type rawMachine struct {
	name, hardware, source, kind string
	nvl72                        bool
	linkRate                     topology.MBps // 0 when not recorded
	gpus                         []RecordedGPU
	links, pcie                  [][]string // pcie is nil when not recorded
	nics                         []NIC
	warnings                     []topology.Warning
	labels                       []string // of rows and columns; nil when they have none
}

// row names a row or, with another word for what it is, a column.
func (r *rawMachine) row(what string, i int) string {
	if r.labels == nil {
		return what + " " + strconv.Itoa(i)
	}
	return what + " " + strconv.Quote(r.labels[i])
}

// cell names a cell of a matrix.
func (r *rawMachine) cell(i, j int) string { return r.row("row", i) + ", " + r.row("column", j) }

// link is one parsed cell.
type link struct {
	nvlinks uint8
	class   topology.PCIe
	known   bool // class was printed
}

// mostPorts is the largest number of NVLinks any known GPU model has.
const mostPorts = 18

func (r *rawMachine) build() (*Recorded, error) {
	n := len(r.gpus)
	m := topology.New(r.name, n)
	product, _ := topology.FindProduct(r.hardware)
	for i := range m.GPUs {
		m.GPUs[i] = topology.GPUInfo{NUMA: topology.NoNUMA, NVLinkMBps: r.linkRate, PCIeGen: product.PCIeGen}
		if m.GPUs[i].NVLinkMBps == 0 {
			m.GPUs[i].NVLinkMBps = product.NVLinkMBps
		}
		if node, ok := firstNUMA(r.gpus[i].NUMAText); ok {
			m.GPUs[i].NUMA = node
		}
	}
	if err := r.fillLinks(m); err != nil {
		return nil, err
	}
	if err := r.fillNICs(m); err != nil {
		return nil, err
	}
	m.Switched = switched(m, product)
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return &Recorded{
		Machine: m, Hardware: r.hardware, Source: r.source, Kind: r.kind, Product: product, NVL72: r.nvl72,
		GPUs: r.gpus, NICs: r.nics, Warnings: r.warnings,
	}, nil
}

func (r *rawMachine) fillLinks(m *topology.Machine) error {
	cells, err := r.parseCells("links", r.links)
	if err != nil {
		return err
	}
	var classes [][]link
	if r.pcie != nil {
		if classes, err = r.parseCells("pcieClass", r.pcie); err != nil {
			return err
		}
		for i := range classes {
			for j, l := range classes[i] {
				if !l.known {
					return fmt.Errorf("pcieClass: %s: %s is not a PCIe class", r.cell(i, j), l)
				}
			}
		}
	}
	for i := range cells {
		for j := range i {
			pair := r.worse(i, j, cells[i][j], cells[j][i], "links")
			m.NVLinks[i][j], m.NVLinks[j][i] = pair.nvlinks, pair.nvlinks
			class := pair.class
			if classes != nil {
				class = r.worse(i, j, classes[i][j], classes[j][i], "pcieClass").class
			} else if !pair.known {
				class = r.inferClass(m, i, j)
			}
			m.PCIe[i][j], m.PCIe[j][i] = class, class
		}
	}
	return nil
}

// worse joins the two directions of a pair.
func (r *rawMachine) worse(i, j int, a, b link, field string) link {
	if a == b {
		return a
	}
	out := link{nvlinks: min(a.nvlinks, b.nvlinks), class: max(a.class, b.class), known: a.known || b.known}
	r.warnings = append(r.warnings, topology.Warning(fmt.Sprintf(
		"%s: %s says %s, but %s says %s: using %s", field, r.cell(i, j), a, r.cell(j, i), b, out)))
	return out
}

// String prints the link as nvidia-smi does.
func (l link) String() string {
	if l.nvlinks > 0 {
		return "NV" + strconv.Itoa(int(l.nvlinks))
	}
	return l.class.String()
}

func (r *rawMachine) inferClass(m *topology.Machine, i, j int) topology.PCIe {
	a, b := m.GPUs[i].NUMA, m.GPUs[j].NUMA
	if a != topology.NoNUMA && b != topology.NoNUMA {
		if a == b {
			return topology.NODE
		}
		return topology.SYS
	}
	if cpus := r.gpus[i].CPUAffinity; cpus != "" && cpus == r.gpus[j].CPUAffinity {
		return topology.NODE
	}
	return topology.SYS
}

// parseCells reads a square matrix of link names.
func (r *rawMachine) parseCells(field string, rows [][]string) ([][]link, error) {
	out := make([][]link, len(rows))
	for i, row := range rows {
		out[i] = make([]link, len(row))
		for j, cell := range row {
			l, err := parseLink(cell)
			if err == nil && (i == j) != (l.known && l.class == topology.PCIeSelf) {
				err = fmt.Errorf("%s: the diagonal is X and nothing else is", short(cell))
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", field, r.cell(i, j), err)
			}
			out[i][j] = l
		}
	}
	return out, nil
}

func parseLink(cell string) (link, error) {
	cell = strings.TrimSpace(cell)
	if digits, ok := strings.CutPrefix(cell, "NV"); ok {
		v, err := strconv.ParseUint(digits, 10, 8)
		if err != nil || v == 0 || digits[0] == '0' || v > topology.MaxLinks {
			return link{}, fmt.Errorf("%s is not a link: expected NV1 to NV%d", short(cell), topology.MaxLinks)
		}
		return link{nvlinks: uint8(v)}, nil
	}
	class, err := topology.ParsePCIe(cell)
	if err != nil {
		return link{}, fmt.Errorf("%s is not a link: expected X, NVn, PIX, PXB, PHB, NODE or SYS", short(cell))
	}
	return link{class: class, known: true}, nil
}

// fillNICs checks the cells of the network cards and finds each GPU's nearest.
func (r *rawMachine) fillNICs(m *topology.Machine) error {
	best := make([]topology.PCIe, m.N())
	for i := range best {
		best[i] = topology.SYS
	}
	if err := r.checkNICNames(); err != nil {
		return err
	}
	for _, nic := range r.nics {
		for j, cell := range nic.ToNIC {
			if _, err := parseNICCell(cell); err != nil {
				return fmt.Errorf("nics: row %q, NIC column %d: %w", nic.Name, j, err)
			}
		}
		for i, cell := range nic.ToGPU {
			class, err := parseNICCell(cell)
			if err == nil && class == topology.PCIeSelf {
				err = fmt.Errorf("%q: a NIC is not a GPU", cell)
			}
			if err != nil {
				return fmt.Errorf("nics: row %q, %s: %w", nic.Name, r.row("column", i), err)
			}
			if class < best[i] {
				best[i], m.GPUs[i].NearestNIC = class, nic.Name
			}
		}
	}
	return nil
}

// checkNICNames wants well-formed names, each once.
func (r *rawMachine) checkNICNames() error {
	seen := map[string]bool{}
	for _, nic := range r.nics {
		if err := checkNICName(nic.Name); err != nil {
			return fmt.Errorf("nics: %w", err)
		}
		if seen[nic.Name] {
			return fmt.Errorf("nics: two are called %q: give each its own name", nic.Name)
		}
		seen[nic.Name] = true
	}
	return nil
}

// maxNICName is the length of the longest name of a network card; that of the
// longest text attribute of a device.
const maxNICName = 64

// checkNICName wants a word of printable ASCII.
func checkNICName(name string) error {
	if name == "" || len(name) > maxNICName {
		return fmt.Errorf("the name %s has %d bytes, expected 1 to %d", short(name), len(name), maxNICName)
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return fmt.Errorf("the name %s is not a word of ASCII characters", short(name))
		}
	}
	return nil
}

// parseNICCell reads a cell between a network card and something else; one that
// was not recorded counts as far away.
func parseNICCell(cell string) (topology.PCIe, error) {
	if cell == "" {
		return topology.SYS, nil
	}
	l, err := parseLink(cell)
	if err != nil {
		return 0, err
	}
	if !l.known {
		return 0, fmt.Errorf("%q: a NIC has no NVLinks", cell)
	}
	return l.class, nil
}

// switched applies the rule of the package comment. Every pair behind a switch shows
// the links of its end that has fewer, so one GPU that lost a link, or several
// domains of different width, do not hide it.
func switched(m *topology.Machine, product topology.Product) bool {
	ports := product.NVLinkPorts
	if ports == 0 {
		ports = mostPorts
	}
	for i := range m.NVLinks {
		sum := 0
		for _, links := range m.NVLinks[i] {
			sum += int(links)
		}
		if sum > ports {
			return true
		}
	}
	return false
}

// maxNUMA bounds node and CPU numbers.
const maxNUMA = 1<<15 - 1

// firstNUMA returns the first node of a list such as "0,3-9,11-17". On Grace the
// first node is the CPU's; the others are the memory of the GPUs.
func firstNUMA(text string) (int, bool) {
	text = strings.TrimSpace(text)
	if !validList(text) {
		return 0, false
	}
	end := strings.IndexAny(text, ",-")
	if end < 0 {
		end = len(text)
	}
	v, err := strconv.ParseUint(text[:end], 10, 15)
	if err != nil {
		return 0, false
	}
	return int(v), true
}

// validList reports whether the text is a list of numbers up to maxNUMA and ranges.
func validList(text string) bool {
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.ParseUint(first, 10, 15)
		to, errTo := strconv.ParseUint(last, 10, 15)
		if errFrom != nil || errTo != nil || from > to {
			return false
		}
	}
	return true
}
