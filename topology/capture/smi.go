// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/topology"
)

// smiKind is Recorded.Kind of machines read from text.
const smiKind = "nvidia-smi topo -m"

var (
	// CSI, OSC (titles, links) up to BEL or ST, and other escapes.
	ansiEscape = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])`)
	quoteMark  = regexp.MustCompile(`^[ \t]*(?:>[ \t]?)+`)
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

// headings are the words over the columns behind the links.
var headings = [][]string{tailCPU: {"CPU", "Affinity"}, tailNUMA: {"NUMA", "Affinity"}, tailGPUNUMA: {"GPU", "NUMA", "ID"}}

// String returns the heading.
func (k tail) String() string { return strings.Join(headings[k], " ") }

// smiTable is the text taken apart.
type smiTable struct {
	columns []string       // labels of the link columns
	at      map[string]int // where each label is in columns
	tails   []tail         // the columns behind them
	cut     bool           // the header ends in the middle of a heading
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
	if err := checkInput(data); err != nil {
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

// cleanText leaves plain lines that end in newlines.
var cleanText = strings.NewReplacer(byteOrderMark, "", "\r\n", "\n", "\r", "\n")

func splitSMI(text string) (*smiTable, error) {
	t := &smiTable{rows: map[string][]string{}, legend: map[string]string{}}
	number := 0
	for line := range strings.Lines(cleanText.Replace(ansiEscape.ReplaceAllString(text, ""))) {
		number++
		line = quoteMark.ReplaceAllString(strings.TrimSuffix(line, "\n"), "")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if err := t.readLine(line, fields); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if t.columns == nil {
		return nil, errors.New(`found no header line, which starts with "GPU0", and no recorded machine, which starts with "{": ` +
			`pass on all that nvidia-smi topo -m prints`)
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
	if t.continuesHeader(fields) {
		return t.readHeader(fields)
	}
	if t.startsAgain(fields) {
		return errors.New("a second table starts here: pass on the table of one machine")
	}
	if m := nicLegend.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
		t.legend[m[1]] = m[2]
		return nil
	}
	t.ended = t.ended || strings.HasPrefix(fields[0], "Legend")
	if t.ended {
		return nil
	}
	return t.readRow(line, fields)
}

// continuesHeader recognises the rest of a header that a terminal broke: in front of
// the first row, labels that are new, or headings.
func (t *smiTable) continuesHeader(fields []string) bool {
	if _, known := t.at[fields[0]]; known || len(t.rows) > 0 || len(t.tails) > 0 {
		return false
	}
	for i, label := range fields {
		if _, words := tailAt(fields[i:]); words > 0 {
			return true
		}
		if !nicLabel.MatchString(label) || isLink(label) {
			return false
		}
	}
	return true
}

// startsAgain recognises the header of another table.
func (t *smiTable) startsAgain(fields []string) bool {
	if !isHeader(fields) {
		return false
	}
	if len(fields) == 1 || len(t.columns) == 1 {
		_, words := tailAt(append(fields[1:], ""))
		return len(t.rows) > 0 && words > 0
	}
	return gpuLabel.MatchString(fields[1]) || fields[1] == t.columns[1]
}

// isHeader tells the header, which goes on with another label, from the row of a
// GPU, which goes on with a link, and from sentences.
func isHeader(fields []string) bool {
	if !gpuLabel.MatchString(fields[0]) {
		return isHeaderOfNICs(fields)
	}
	if len(fields) == 1 {
		return true
	}
	if _, words := tailAt(fields[1:]); words > 0 {
		return true
	}
	if len(fields) == 2 && (strings.HasPrefix("GPU", fields[1]) || strings.HasPrefix("NIC", fields[1])) {
		return true // cut off
	}
	return !isLink(fields[1]) && nicLabel.MatchString(fields[1])
}

// isHeaderOfNICs recognises a header in which network cards come first: labels
// only, one of a GPU among them.
func isHeaderOfNICs(fields []string) bool {
	gpus := 0
	for i, label := range fields {
		if _, words := tailAt(fields[i:]); words > 0 {
			break
		}
		if !nicLabel.MatchString(label) || isLink(label) {
			return false
		}
		if gpuLabel.MatchString(label) {
			gpus++
		}
	}
	return gpus > 0
}

func isLink(cell string) bool {
	_, err := parseLink(cell)
	return err == nil
}

// readHeader tells link columns, which are single words, from the phrases behind
// them: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID".
func (t *smiTable) readHeader(fields []string) error {
	if t.at == nil {
		t.at = map[string]int{}
	}
	for i := 0; i < len(fields); {
		kind, used := tailAt(fields[i:])
		if used == 0 && i == len(fields)-1 {
			kind, used = t.cutTail(fields[i])
		}
		if used > 0 {
			t.tails = append(t.tails, kind)
			t.cut = strings.Join(fields[i:i+used], " ") != kind.String()
			i += used
			continue
		}
		label := fields[i]
		_, twice := t.at[label]
		switch {
		case len(t.tails) > 0:
			return fmt.Errorf("header: link column %s behind the affinity columns", short(label))
		case twice:
			return fmt.Errorf("header: column %s appears twice", short(label))
		case !nicLabel.MatchString(label) && (i < len(fields)-1 || !cutLabel.MatchString(label)):
			return fmt.Errorf("header: %s, column %d, is not the name of a GPU or network card", short(label), i)
		case len(t.columns) >= topology.MaxGPUs+MaxNICs:
			return fmt.Errorf("header: more than %d columns", topology.MaxGPUs+MaxNICs)
		}
		t.at[label] = len(t.columns)
		t.columns = append(t.columns, label)
		i++
	}
	return nil
}

// cutTail recognises the first letters of a heading at the end of the header. Behind
// the links "N" begins NUMA; among them it begins the name of a network card.
func (t *smiTable) cutTail(word string) (kind tail, words int) {
	for k := range headings {
		if strings.HasPrefix(headings[k][0], word) && (len(t.tails) > 0 || tail(k) == tailCPU) {
			return tail(k), 1
		}
	}
	return 0, 0
}

// tailAt recognises a heading behind the links, also one that is cut off behind its
// first word.
func tailAt(fields []string) (kind tail, words int) {
	for k, heading := range headings {
		if fields[0] != heading[0] {
			continue
		}
		words := 1
		for words < min(len(heading), len(fields)) && fields[words] == heading[words] {
			words++
		}
		switch {
		case words == len(heading) || words == len(fields):
			return tail(k), words
		case words == len(fields)-1 && strings.HasPrefix(heading[words], fields[words]):
			return tail(k), words + 1
		case words > 1 && k == int(tailGPUNUMA):
			return tail(k), words
		}
	}
	return 0, 0
}

func (t *smiTable) readRow(line string, fields []string) error {
	label := fields[0]
	if _, known := t.at[label]; !known {
		if gpuLabel.MatchString(label) {
			return fmt.Errorf("row %s has no column in the header: is its right side cut off?", short(label))
		}
		return nil // text around the table
	}
	if _, twice := t.rows[label]; twice {
		return fmt.Errorf("row %q appears twice", label)
	}
	cells := fields[1:]
	if t.blankCPU(line) {
		cells = slices.Insert(slices.Clone(cells), len(t.columns), notPrinted)
	}
	t.rows[label] = cells
	return nil
}

// notPrinted is what nvidia-smi prints for what it does not know.
const notPrinted = "N/A"

// blankCPU reports whether a row that is separated by tabs has nothing in the first
// column behind the links. Other blanks mean nothing: nvidia-smi prints some.
func (t *smiTable) blankCPU(line string) bool {
	cells := strings.Split(strings.TrimLeft(line, " "), "\t")
	behind := 1 + len(t.columns)
	if len(t.tails) == 0 || len(cells) <= behind || strings.TrimSpace(cells[behind]) != "" {
		return false
	}
	for _, cell := range cells[:behind] {
		if len(strings.Fields(cell)) != 1 {
			return false
		}
	}
	return true
}

// raw checks shapes and turns the table into the form both readers share. GPUs come
// in the order of their numbers.
func (t *smiTable) raw(name string) (*rawMachine, error) {
	r := &rawMachine{name: name, kind: smiKind}
	var gpuColumns, nicColumns []int
	index := map[int]int{} // by column
	for at, label := range t.columns {
		m := gpuLabel.FindStringSubmatch(label)
		if m == nil {
			nicColumns = append(nicColumns, at)
			continue
		}
		number, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, fmt.Errorf("header: column %q: %w", label, err)
		}
		index[at] = number
		gpuColumns = append(gpuColumns, at)
	}
	if len(gpuColumns) > topology.MaxGPUs || len(nicColumns) > MaxNICs {
		return nil, fmt.Errorf("header: %d GPUs and %d network cards, the limits are %d and %d",
			len(gpuColumns), len(nicColumns), topology.MaxGPUs, MaxNICs)
	}
	slices.SortFunc(gpuColumns, func(a, b int) int { return cmp.Compare(index[a], index[b]) })
	for i, at := range gpuColumns {
		if i > 0 && index[at] == index[gpuColumns[i-1]] {
			return nil, fmt.Errorf("header: columns %q and %q are the same GPU", t.columns[gpuColumns[i-1]], t.columns[at])
		}
		r.labels = append(r.labels, t.columns[at])
		r.gpus = append(r.gpus, RecordedGPU{Index: index[at], GPUNUMAID: topology.NoNUMA})
	}
	for i, at := range gpuColumns {
		links, err := t.readGPU(r, t.columns[at], gpuColumns, &r.gpus[i])
		if err != nil {
			return nil, err
		}
		r.links = append(r.links, links)
	}
	return r, t.readNICs(r, gpuColumns, nicColumns)
}

// readGPU reads the row of a GPU: its links to the GPUs, and the columns behind them.
func (t *smiTable) readGPU(r *rawMachine, row string, gpuColumns []int, g *RecordedGPU) ([]string, error) {
	cells, ok := t.rows[row]
	if !ok {
		return nil, fmt.Errorf("row %q is missing: pass on the whole table", row)
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
	return links, t.readTail(r, row, cells, g)
}

// readTail reads the affinity columns of a row. Values that are missing are those
// at the right.
func (t *smiTable) readTail(r *rawMachine, row string, cells []string, g *RecordedGPU) error {
	if len(cells) <= len(t.columns) {
		return nil
	}
	values := cells[len(t.columns):]
	if len(values) > len(t.tails) && t.cut {
		values = values[:len(t.tails)] // of columns whose headings are cut off
	}
	if len(values) > len(t.tails) {
		return fmt.Errorf("row %q has %d cells for %d columns: the header looks cut off: pass on whole lines",
			row, len(cells), len(t.columns)+len(t.tails))
	}
	for i, value := range values {
		whole := value
		if i == len(values)-1 {
			whole = strings.TrimRight(value, ",-")
		}
		if strings.HasPrefix(notPrinted, whole) { // also one that is cut
			continue
		}
		if !validList(whole) && t.tails[i] == tailCPU && i == len(values)-1 {
			r.warnings = append(r.warnings, topology.Warning(fmt.Sprintf(
				"row %q, column %q: %s is cut off: taken as not recorded", row, tailCPU, short(value))))
			continue
		}
		if !validList(whole) {
			return fmt.Errorf("row %q, column %q: %s is not a number or a list such as \"0,3-5\"", row, t.tails[i], short(value))
		}
		if whole != value {
			r.warnings = append(r.warnings, topology.Warning(fmt.Sprintf(
				"row %q, column %q: %q is cut off: %q is used", row, t.tails[i], value, whole)))
		}
		switch t.tails[i] {
		case tailCPU:
			g.CPUAffinity = whole
		case tailNUMA:
			g.NUMAText = whole
		case tailGPUNUMA:
			g.GPUNUMAID, _ = firstNUMA(whole)
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
