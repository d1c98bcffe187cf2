// SPDX-License-Identifier: Apache-2.0

package capture_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/topotest"
)

// style is a way of printing the table.
type style struct {
	separator string
	escapes   bool // underline the header as nvidia-smi does on terminals
	legend    bool // name network cards in a legend below
	around    bool // a prompt above and the explanation of the classes below
	crlf      bool
	numbered  bool // with legend: names of network cards are in the legend only
}

var plainStyle = style{separator: "\t"}

var numberedNIC = regexp.MustCompile(`^NIC[0-9]+$`)

// smiText prints a recording as nvidia-smi prints a machine. Recordings without
// affinities get no such columns.
func smiText(r *capture.Recorded, s style) string {
	m := r.Machine
	labels, legend := nicLabels(r, s)
	var rows [][]string
	header := []string{""}
	for i := range m.GPUs {
		header = append(header, fmt.Sprintf("GPU%d", i))
	}
	header = append(append(header, labels...), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
	if s.escapes {
		header[1] = "\x1b[4m" + header[1]
		header[len(header)-1] += "\x1b[0m"
	}
	rows = append(rows, header)
	for i := range m.GPUs {
		row := []string{fmt.Sprintf("GPU%d", i)}
		for j := range m.GPUs {
			row = append(row, " "+m.LinkName(i, j)+" ")
		}
		for _, nic := range r.NICs {
			row = append(row, orSYS(nic.ToGPU[i]))
		}
		id := "N/A"
		if v := r.GPUs[i].GPUNUMAID; v != topology.NoNUMA {
			id = strconv.Itoa(v)
		}
		rows = append(rows, append(row, orNA(r.GPUs[i].CPUAffinity), orNA(r.GPUs[i].NUMAText), id))
	}
	for i, nic := range r.NICs {
		row := []string{labels[i]}
		for _, cell := range append(append([]string(nil), nic.ToGPU...), nic.ToNIC...) {
			row = append(row, orSYS(cell))
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	if s.around {
		b.WriteString("user@host:~$ nvidia-smi topo -m\n\n")
	}
	for _, row := range rows {
		b.WriteString(strings.Join(row, s.separator) + "\n")
	}
	if s.around {
		b.WriteString("\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n  NV#  = Connection traversing a bonded set of # NVLinks\n")
	}
	if s.legend {
		b.WriteString("\nNIC Legend:\n\n" + legend)
	}
	if s.crlf {
		return strings.ReplaceAll(b.String(), "\n", "\r\n")
	}
	return b.String()
}

func nicLabels(r *capture.Recorded, s style) (labels []string, legend string) {
	for i, nic := range r.NICs {
		label := nic.Name
		if s.legend && (s.numbered || !numberedNIC.MatchString(nic.Name)) {
			label = fmt.Sprintf("NIC%d", i)
			legend += fmt.Sprintf("  %s: %s\n", label, nic.Name)
		}
		labels = append(labels, label)
	}
	return labels, legend
}

func orSYS(cell string) string {
	if cell == "" {
		return "SYS"
	}
	return cell
}

func orNA(text string) string {
	if text == "" {
		return "N/A"
	}
	return text
}

// TestTextRoundTrip prints every recorded machine in several styles and reads the
// text again. Lost are only what nvidia-smi does not print: rates, generations and
// the classes under NVLinks.
func TestTextRoundTrip(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]style{
		"tabs": plainStyle, "terminal": {separator: "\t", escapes: true, legend: true, around: true},
		"columns of spaces": {separator: "   ", around: true, legend: true}, "crlf": {separator: "\t", crlf: true, escapes: true},
	} {
		for _, machine := range topotest.Names() {
			r, err := topotest.Load(machine)
			if err != nil {
				t.Fatal(err)
			}
			text := smiText(r, s)
			got, err := capture.Parse([]byte(text), machine)
			if err != nil {
				t.Errorf("%s, %s: %v\n%s", name, machine, err, text)
				continue
			}
			if diff := cmp.Diff(printable(r.Machine), printable(got.Machine)); diff != "" {
				t.Errorf("%s, %s (-recorded +read):\n%s", name, machine, diff)
			}
			if diff := cmp.Diff(r.GPUs, got.GPUs); diff != "" {
				t.Errorf("%s, %s: affinities (-recorded +read):\n%s", name, machine, diff)
			}
		}
	}
}

// printable is the machine without what nvidia-smi does not print.
func printable(m *topology.Machine) *topology.Machine {
	m = m.Clone()
	for i := range m.GPUs {
		m.GPUs[i].NVLinkMBps, m.GPUs[i].PCIeGen = 0, 0
		for j := range m.GPUs {
			if m.NVLinks[i][j] > 0 {
				m.PCIe[i][j] = topology.PIX
			}
		}
	}
	return m
}

const smiBase = `	GPU0	GPU1	NIC0	mlx5_1	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV2	PIX	SYS	0-7	0		N/A
GPU1	NV2	 X 	SYS	PIX	8-15	1		N/A
NIC0	PIX	SYS	 X 	SYS
mlx5_1	SYS	PIX	SYS	 X

Legend:

  X    = Self
GPU9 is not in the table
`

func TestSMIShapes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, old, new, want string }{
		{"as it is", "", "", ""},
		{"no affinity columns", "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "", "row \"GPU0\" has 7 cells for 4 columns"},
		{"older driver", "\tGPU NUMA ID", "", "row \"GPU0\" has 7 cells for 6 columns"},
		{"no header", "\tGPU0\tGPU1\tNIC0", "\tGPUs: NIC0", "no header line"},
		{"missing row", "GPU1\tNV2", "gpu1\tNV2", `row "GPU1" is missing`},
		{"extra row", "GPU1\tNV2", "GPU2\tNV2\nGPU1\tNV2", `row "GPU2" has no column`},
		{"row twice", "GPU1\tNV2", "GPU0\tNV2", `row "GPU0" appears twice`},
		{"column twice", "GPU1\tNIC0", "GPU0\tNIC0", `column "GPU0" appears twice`},
		{"bad cell", "NV2\tPIX", "NVX\tPIX", `row "GPU0", column "GPU1": "NVX"`},
		{"NVLink to a card", "NV2\tPIX", "NV2\tNV1", `row "GPU0", column "NIC0": "NV1"`},
		{"bad NIC cell", "NV2\tPIX", "NV2\tPIZ", `row "GPU0", column "NIC0": "PIZ"`},
		{"bad NUMA", "0-7\t0", "0-7\tzero", `row "GPU0", column "NUMA Affinity": "zero"`},
		{"bad GPU NUMA", "0\t\tN/A", "0\t\tfour", `row "GPU0", column "GPU NUMA ID": "four"`},
		{"off diagonal", "GPU1\tNV2\t X ", "GPU1\tNV2\tSYS", `links: row "GPU1", column "GPU1": "SYS"`},
		{"short row", "GPU1\tNV2\t X \tSYS\tPIX\t8-15\t1\t\tN/A", "GPU1\tNV2", `row "GPU1" ends before column "GPU1"`},
		{"column behind affinities", "GPU NUMA ID", "GPU NUMA ID\tGPU3", `link column "GPU3" behind`},
		{"strange column", "NIC0\tmlx5_1\tCPU", "=\tmlx5_1\tCPU", `"=", column 2`},
		{"bad CPUs", "0-7\t0", "0-7;\t0", `row "GPU0", column "CPU Affinity": "0-7;"`},
		{"same number", "\tGPU1\tNIC0", "\tGPU1\tGPU01\tNIC0", `columns "GPU1" and "GPU01" are the same GPU`},
		{"second table", "\nLegend", "\n\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\nLegend", "line 7: a second table starts here"},
		{"second table behind the legend", "GPU9 is", "\tGPU0\tGPU1\nGPU9 is", "a second table starts here"},
		{"names twice", "GPU9 is", "NIC0: mlx5_1\nGPU9 is", `two are called "mlx5_1"`},
		{"header cut off", smiBase, "\tGPU0\tG\nGPU0\tX\tN\nGPU1\tNV\tX\n", `row "GPU1" has no column in the header: is its right side cut off?`},
		{"header cut before a heading", "\tGPU NUMA ID", "", "the header looks cut off"},
		{"X to a card", "GPU0\t X \tNV2\tPIX", "GPU0\t X \tNV2\tX", "a NIC is not a GPU"},
	} {
		text := strings.Replace(smiBase, tc.old, tc.new, 1)
		_, err := capture.ParseSMI([]byte(text), "box")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
	}
}

// TestSMICutOff: posts often lose the right side and the last rows of the table.
func TestSMICutOff(t *testing.T) {
	t.Parallel()
	text := "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Aff\n" +
		"GPU0\tX\tNV2\tPIX\tSYS\t0-7\n" +
		"GPU1\tNV2\tX\tSYS\tPI\n" +
		"NIC0\tPIX\tSYS\n"
	r, err := capture.ParseSMI([]byte(text), "box")
	if err != nil {
		t.Fatal(err)
	}
	want := []capture.NIC{{Name: "NIC0", ToGPU: []string{"PIX", "SYS"}, ToNIC: []string{"", ""}}, {Name: "NIC1", ToGPU: []string{"SYS", ""}}}
	if diff := cmp.Diff(want, r.NICs); diff != "" {
		t.Errorf("network cards (-want +got):\n%s", diff)
	}
	if len(r.Warnings) != 1 || !strings.Contains(string(r.Warnings[0]), `row "GPU1", column "NIC1": "PI" is cut off`) {
		t.Errorf("warnings %v", r.Warnings)
	}
	if r.GPUs[0].CPUAffinity != "0-7" || r.Machine.GPUs[0].NearestNIC != "NIC0" {
		t.Errorf("%+v, %+v", r.GPUs, r.Machine.GPUs)
	}
}

// TestSMIDisagreement: two directions between a GPU and a network card.
func TestSMIDisagreement(t *testing.T) {
	t.Parallel()
	text := strings.Replace(smiBase, "NIC0\tPIX", "NIC0\tNODE", 1)
	text = strings.Replace(text, "GPU1\tNV2", "GPU1\tNV1", 1)
	r, err := capture.ParseSMI([]byte(text), "box")
	if err != nil {
		t.Fatal(err)
	}
	if r.NICs[0].ToGPU[0] != "NODE" || r.Machine.NVLinks[0][1] != 1 || len(r.Warnings) != 2 {
		t.Errorf("%+v, %s, warnings %v", r.NICs, r.Machine.LinkName(0, 1), r.Warnings)
	}
}

// TestSMIGaps: a GPU that fell off the bus leaves a gap in the numbers.
func TestSMIGaps(t *testing.T) {
	t.Parallel()
	r, err := capture.ParseSMI([]byte("\tGPU0\tGPU2\nGPU0\tX\tPSB\nGPU2\tPSB\tX\n"), "box")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := capture.ParseSMI([]byte("\tGPU0\tGPU2\nGPU0\tX\tPSB\nGPU2\tPSB\tPIX\n"), "box"); err == nil || !strings.Contains(err.Error(), `row "GPU2", column "GPU2"`) {
		t.Errorf("error %v, want one with the numbers as printed", err)
	}
	if r.GPUs[1].Index != 2 || r.Machine.PCIe[0][1] != topology.PIX || r.Machine.GPUs[0].PCIeGen != 0 {
		t.Errorf("%+v %+v", r.GPUs, r.Machine)
	}
}

// TestSMIOrder: columns in another order give the machine in the order of numbers.
func TestSMIOrder(t *testing.T) {
	t.Parallel()
	r, err := capture.ParseSMI([]byte("\tGPU3\tGPU1\tGPU2\nGPU1\tNV4\tX\tPIX\nGPU3\tX\tNV4\tSYS\nGPU2\tSYS\tPIX\tX\n"), "box")
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"X", "PIX", "NV4"}, {"PIX", "X", "SYS"}, {"NV4", "SYS", "X"}}
	if diff := cmp.Diff(want, matrixOf(r.Machine)); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if r.GPUs[0].Index != 1 || r.GPUs[1].Index != 2 || r.GPUs[2].Index != 3 {
		t.Errorf("numbers %+v", r.GPUs)
	}
}

// TestSMIDisguises: the same table as it comes out of editors, terminals and mails.
func TestSMIDisguises(t *testing.T) {
	t.Parallel()
	want, err := capture.ParseSMI([]byte(smiBase), "box")
	if err != nil {
		t.Fatal(err)
	}
	want.NICs = nil
	for name, text := range map[string]string{
		"byte order mark":  "\ufeff" + smiBase,
		"CR alone":         strings.ReplaceAll(smiBase, "\n", "\r"),
		"quoted":           "> " + strings.ReplaceAll(smiBase, "\n", "\n> "),
		"quoted twice":     ">> " + strings.ReplaceAll(smiBase, "\n", "\n>> "),
		"title and link":   "\x1b]0;user@host GPU0 GPU1\x07\x1b]8;;http://x\x1b\\" + strings.Replace(smiBase, "GPU1\tNIC0", "\x1b(B\x1b[?25lGPU1\x1b[0m\tNIC0", 1),
		"broken header":    strings.Replace(smiBase, "\tCPU Affinity", "\n\tCPU Affinity", 1),
		"broken in links":  strings.Replace(smiBase, "\tNIC0\tmlx5_1\tCPU", "\n\tNIC0\tmlx5_1\tCPU", 1),
		"cut heading":      strings.Replace(smiBase, "\tGPU NUMA ID", "\tGPU NU", 1),
		"cut heading, G":   strings.Replace(smiBase, "\tGPU NUMA ID", "\tG", 1),
		"heading cut away": strings.Replace(smiBase, "\tNUMA Affinity\tGPU NUMA ID", "\tNUMA Aff", 1),
		"cards first": strings.NewReplacer("GPU0\tGPU1\tNIC0\tmlx5_1\t", "NIC0\tmlx5_1\tGPU0\tGPU1\t", "GPU0\t X \tNV2\tPIX\tSYS", "GPU0\tPIX\tSYS\tX\tNV2",
			"GPU1\tNV2\t X \tSYS\tPIX", "GPU1\tSYS\tPIX\tNV2\tX", "NIC0\tPIX\tSYS\t X \tSYS", "NIC0\tX\tSYS\tPIX\tSYS", "mlx5_1\tSYS\tPIX\tSYS\t X", "mlx5_1\tSYS\tX\tSYS\tPIX").Replace(smiBase),
	} {
		got, err := capture.Parse([]byte(text), "box")
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		got.NICs = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-plain +disguised):\n%s", name, diff)
		}
	}
}

// TestSMIBlankCPU: a blank CPU column does not move the columns behind it.
func TestSMIBlankCPU(t *testing.T) {
	t.Parallel()
	r, err := capture.ParseSMI([]byte(strings.NewReplacer("0-7", "", "8-15", "").Replace(smiBase)), "box")
	if err != nil {
		t.Fatal(err)
	}
	if r.GPUs[0].CPUAffinity != "" || r.Machine.GPUs[0].NUMA != 0 || r.Machine.GPUs[1].NUMA != 1 {
		t.Errorf("%+v, %+v", r.GPUs, r.Machine.GPUs)
	}
}

// TestSMICutValues: the last value of a row may end in the middle.
func TestSMICutValues(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"0-7,": "0-7", "0-": "0", "N": "", "N/": "", "0-7,1": "0-7,1", "8-1": ""} {
		r, err := capture.ParseSMI([]byte("\tGPU0\tCPU Affin\nGPU0\tX\t"+value+"\n"), "box")
		if err != nil || r.GPUs[0].CPUAffinity != want || (len(r.Warnings) > 0) != (strings.ContainsAny(value[len(value)-1:], ",-") || value == "8-1") {
			t.Errorf("%q: error %v, %+v", value, err, r)
		}
	}
}

// TestSMILimits: text that asks for much work is refused, not worked through.
func TestSMILimits(t *testing.T) {
	t.Parallel()
	wide := "\tGPU0"
	for i := range 8000 {
		wide += fmt.Sprintf("\tNIC%d", i)
	}
	for name, text := range map[string]string{
		"cards": wide + "\nGPU0\tX\n",
		"GPUs":  strings.ReplaceAll(wide, "NIC", "GPU1") + "\nGPU0\tX\n",
		"rows":  wide + strings.Repeat("\na b", 200_000),
	} {
		if _, err := capture.ParseSMI([]byte(text), "box"); err == nil || !strings.Contains(err.Error(), "header: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// FuzzParseSMI: whatever the text, no panic, and what is accepted is valid and has
// the same links when printed and read again.
func FuzzParseSMI(f *testing.F) {
	f.Add([]byte(smiBase))
	for _, name := range topotest.Names() {
		r, err := topotest.Load(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(smiText(r, style{separator: "\t", escapes: true, legend: true, around: true})))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := capture.ParseSMI(data, "fuzz")
		if err != nil {
			return
		}
		if err := r.Machine.Validate(); err != nil {
			t.Fatalf("accepted an invalid machine: %v", err)
		}
		again, err := capture.ParseSMI([]byte(r.Machine.Matrix()), "fuzz")
		if err != nil {
			t.Fatalf("reading its own matrix: %v\n%s", err, r.Machine.Matrix())
		}
		if diff := cmp.Diff(r.Machine.NVLinks, again.Machine.NVLinks); diff != "" {
			t.Fatalf("links (-first +second):\n%s", diff)
		}
	})
}
