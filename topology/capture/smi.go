// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/topodra/topodra/topology"
)

// smiKind is Recorded.Kind of machines read from text.
const smiKind = "nvidia-smi topo -m"

var (
	ansiEscape = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
	gpuLabel   = regexp.MustCompile(`^GPU([0-9]{1,4})$`)
	nicLabel   = regexp.MustCompile(`^[A-Za-z][A-Za-z_.-]*[0-9][A-Za-z0-9_.-]*$`)
	cutLabel   = regexp.MustCompile(`^[A-Za-z][A-Za-z_.-]*$`)
	nicLegend  = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.-]*)\s*:\s*(\S+)$`)
)

// tail is a column behind the links.
type tail uint8

const (
	tailCPU tail = iota
	tailNUMA
	tailGPUNUMA
)

// smiTable is the text taken apart.
type smiTable struct {
	columns []string // labels of the link columns
	tails   []tail   // the columns behind them
	rows    map[string][]string
	legend  map[string]string // label of a network card to its name
	ended   bool              // the legend has begun
}

// ParseSMI reads the text that `nvidia-smi topo -m` prints: columns separated by
// tabs or spaces, with or without terminal escapes, network cards, affinity
// columns and the legend; text around the table is ignored. Cells of network cards
// that are cut off at the right, and missing rows of network cards, count as not
// recorded; a GPU must have its row and a cell for every GPU.
func ParseSMI(data []byte, name string) (*Recorded, error) {
	r, err := parseSMI(data, name)
	if err != nil {
		return nil, fmt.Errorf("reading nvidia-smi topology of %q: %w", name, err)
	}
	return r, nil
}

func parseSMI(data []byte, name string) (*Recorded, error) {
	if err := checkSize(data); err != nil {
		return nil, err
	}
	table, err := splitSMI(string(data))
	if err != nil {
		return nil, err
	}
	raw, err := table.raw(name)
	if err != nil {
		return nil, err
	}
	return raw.build()
}

func splitSMI(text string) (*smiTable, error) {
	t := &smiTable{rows: map[string][]string{}, legend: map[string]string{}}
	for line := range strings.Lines(ansiEscape.ReplaceAllString(text, "")) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if err := t.readLine(strings.TrimSpace(line), fields); err != nil {
			return nil, err
		}
	}
	if t.columns == nil {
		return nil, errors.New(`found no header line, which starts with "GPU0"`)
	}
	return t, nil
}

func (t *smiTable) readLine(line string, fields []string) error {
	if t.columns == nil {
		if isHeader(fields) {
			return t.readHeader(fields)
		}
		return nil // text above the table
	}
	if m := nicLegend.FindStringSubmatch(line); m != nil {
		t.legend[m[1]] = m[2]
		return nil
	}
	t.ended = t.ended || strings.HasPrefix(fields[0], "Legend")
	if t.ended {
		return nil
	}
	return t.readRow(fields)
}

// isHeader tells the header, which goes on with another label, from the row of a
// GPU, which goes on with a link, and from sentences.
func isHeader(fields []string) bool {
	if !gpuLabel.MatchString(fields[0]) {
		return false
	}
	if len(fields) == 1 {
		return true
	}
	if _, words := tailAt(fields[1:]); words > 0 {
		return true
	}
	_, err := parseLink(fields[1])
	return err != nil && nicLabel.MatchString(fields[1])
}

// readHeader tells link columns, which are single words, from the phrases behind
// them: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID".
func (t *smiTable) readHeader(fields []string) error {
	seen := map[string]bool{}
	for i := 0; i < len(fields); {
		kind, used := tailAt(fields[i:])
		if used > 0 {
			t.tails = append(t.tails, kind)
			i += used
			continue
		}
		label := fields[i]
		switch {
		case len(t.tails) > 0:
			return fmt.Errorf("header: link column %q behind the affinity columns", label)
		case seen[label]:
			return fmt.Errorf("header: column %q appears twice", label)
		case !nicLabel.MatchString(label) && (i < len(fields)-1 || !cutLabel.MatchString(label)):
			return fmt.Errorf("header: %q, column %d, is not the name of a GPU or network card", label, i)
		}
		seen[label] = true
		t.columns = append(t.columns, label)
		i++
	}
	return nil
}

// tailAt recognises a heading behind the links, also one that is cut off.
func tailAt(fields []string) (kind tail, words int) {
	second := ""
	if len(fields) > 1 {
		second = fields[1]
	}
	switch {
	case fields[0] == "CPU" && strings.HasPrefix("Affinity", second):
		return tailCPU, min(2, len(fields))
	case fields[0] == "NUMA" && strings.HasPrefix("Affinity", second):
		return tailNUMA, min(2, len(fields))
	case fields[0] == "GPU" && strings.HasPrefix("NUMA", second):
		return tailGPUNUMA, min(3, len(fields))
	}
	return 0, 0
}

func (t *smiTable) readRow(fields []string) error {
	label := fields[0]
	known := false
	for _, c := range t.columns {
		known = known || c == label
	}
	if !known {
		if gpuLabel.MatchString(label) {
			return fmt.Errorf("row %q has no column", label)
		}
		return nil // text around the table
	}
	if _, twice := t.rows[label]; twice {
		return fmt.Errorf("row %q appears twice", label)
	}
	t.rows[label] = fields[1:]
	return nil
}

// raw checks shapes and turns the table into the form both readers share.
func (t *smiTable) raw(name string) (*rawMachine, error) {
	r := &rawMachine{name: name, kind: smiKind}
	var gpuColumns, nicColumns []int
	for at, label := range t.columns {
		m := gpuLabel.FindStringSubmatch(label)
		if m == nil {
			nicColumns = append(nicColumns, at)
			continue
		}
		index, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, fmt.Errorf("header: column %q: %w", label, err)
		}
		gpuColumns = append(gpuColumns, at)
		r.gpus = append(r.gpus, RecordedGPU{Index: index, GPUNUMAID: topology.NoNUMA})
	}
	if len(gpuColumns) > topology.MaxGPUs {
		return nil, fmt.Errorf("header: %d GPUs, the limit is %d", len(gpuColumns), topology.MaxGPUs)
	}
	for i, at := range gpuColumns {
		links, err := t.readGPU(t.columns[at], gpuColumns, &r.gpus[i])
		if err != nil {
			return nil, err
		}
		r.links = append(r.links, links)
	}
	return r, t.readNICs(r, gpuColumns, nicColumns)
}

// readGPU reads the row of a GPU: its links to the GPUs, and the columns behind them.
func (t *smiTable) readGPU(row string, gpuColumns []int, g *RecordedGPU) ([]string, error) {
	cells, ok := t.rows[row]
	if !ok {
		return nil, fmt.Errorf("row %q is missing", row)
	}
	links := make([]string, len(gpuColumns))
	for j, column := range gpuColumns {
		if column >= len(cells) {
			return nil, fmt.Errorf("row %q ends before column %q", row, t.columns[column])
		}
		if _, err := parseLink(cells[column]); err != nil {
			return nil, fmt.Errorf("row %q, column %q: %w", row, t.columns[column], err)
		}
		links[j] = cells[column]
	}
	return links, t.readTail(row, cells, g)
}

// readTail reads the affinity columns of a row. Values that are missing are those
// at the right.
func (t *smiTable) readTail(row string, cells []string, g *RecordedGPU) error {
	if len(cells) <= len(t.columns) {
		return nil
	}
	values := cells[len(t.columns):]
	if len(values) > len(t.tails) {
		return fmt.Errorf("row %q has %d cells for %d columns", row, len(cells), len(t.columns)+len(t.tails))
	}
	for i, value := range values {
		if value == "N/A" {
			continue
		}
		node, isNode := firstNUMA(value)
		switch t.tails[i] {
		case tailCPU:
			g.CPUAffinity = value
		case tailNUMA:
			if !isNode {
				return fmt.Errorf("row %q, column \"NUMA Affinity\": %q is neither a node nor a list of nodes", row, value)
			}
			g.NUMAText = value
		case tailGPUNUMA:
			if !isNode {
				return fmt.Errorf("row %q, column \"GPU NUMA ID\": %q is not a NUMA node", row, value)
			}
			g.GPUNUMAID = node
		}
	}
	return nil
}

// readNICs joins what the rows of the GPUs and the rows of the network cards say.
func (t *smiTable) readNICs(r *rawMachine, gpuColumns, nicColumns []int) error {
	for _, at := range nicColumns {
		label := t.columns[at]
		nic := NIC{Name: label}
		if name, ok := t.legend[label]; ok {
			nic.Name = name
		}
		for _, column := range gpuColumns {
			cell, err := t.nicToGPU(r, at, column)
			if err != nil {
				return err
			}
			nic.ToGPU = append(nic.ToGPU, cell)
		}
		var err error
		if nic.ToNIC, err = t.nicToNICs(r, label, nicColumns); err != nil {
			return err
		}
		r.nics = append(r.nics, nic)
	}
	return nil
}

// nicToNICs returns the cells towards the network cards, none when the row is missing.
func (t *smiTable) nicToNICs(r *rawMachine, row string, nicColumns []int) ([]string, error) {
	if _, ok := t.rows[row]; !ok {
		return nil, nil
	}
	out := make([]string, 0, len(nicColumns))
	for _, column := range nicColumns {
		cell, err := t.nicCell(r, row, column)
		if err != nil {
			return nil, err
		}
		out = append(out, cell)
	}
	return out, nil
}

// nicToGPU returns the worse of the two cells between a network card and a GPU.
func (t *smiTable) nicToGPU(r *rawMachine, nicColumn, gpuColumn int) (string, error) {
	nic, gpu := t.columns[nicColumn], t.columns[gpuColumn]
	mine, err := t.nicCell(r, nic, gpuColumn)
	if err != nil {
		return "", err
	}
	theirs, err := t.nicCell(r, gpu, nicColumn)
	if err != nil {
		return "", err
	}
	if self := topology.PCIeSelf.String(); mine == self || theirs == self {
		return "", fmt.Errorf("rows %q and %q: %q: a NIC is not a GPU", gpu, nic, self)
	}
	return r.worseNIC(nic, gpu, mine, theirs), nil
}

// nicCell returns the cell of a row and column of which one is a network card, ""
// when it was not recorded. A last cell that is not a link was cut in the middle.
func (t *smiTable) nicCell(r *rawMachine, row string, column int) (string, error) {
	cells := t.rows[row]
	if column >= len(cells) {
		return "", nil
	}
	cell := cells[column]
	_, bad := parseNICCell(cell)
	last := column == len(cells)-1
	switch {
	case bad == nil:
		return cell, nil
	case last && !strings.HasPrefix(cell, "NV"):
		r.warnings = append(r.warnings, topology.Warning(fmt.Sprintf(
			"row %q, column %q: %q is cut off: taken as not recorded", row, t.columns[column], cell)))
		return "", nil
	default:
		return "", fmt.Errorf("row %q, column %q: %w", row, t.columns[column], bad)
	}
}

// worseNIC joins the two directions between a network card and a GPU.
func (r *rawMachine) worseNIC(nic, gpu, a, b string) string {
	if a == b || b == "" {
		return a
	}
	if a == "" {
		return b
	}
	classA, errA := topology.ParsePCIe(a)
	classB, errB := topology.ParsePCIe(b)
	if errA != nil || errB != nil || classA == classB {
		return a
	}
	worse := max(classA, classB)
	r.warnings = append(r.warnings, topology.Warning(fmt.Sprintf(
		"row %q, column %q says %s, the opposite direction says %s: using %s", nic, gpu, a, b, worse)))
	return worse.String()
}
