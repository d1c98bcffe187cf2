// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/topotest"
)

// objectiveTable returns the rows, without the header, of the table in
// docs/objective.md whose header is the given one.
func objectiveTable(t *testing.T, header string) [][]string {
	t.Helper()
	data, err := os.ReadFile("../../docs/objective.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), header+"\n|---")
	if !ok {
		t.Fatalf("docs/objective.md has no table %q", header)
	}
	var rows [][]string
	for i, line := range strings.Split(rest, "\n") {
		if i == 0 {
			continue // the rest of the rule below the header
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	if len(rows) == 0 {
		t.Fatalf("the table %q is empty", header)
	}
	return rows
}

// TestObjectiveExample recomputes the example of docs/objective.md.
func TestObjectiveExample(t *testing.T) {
	t.Parallel()
	m := machine(t, "dgx1v_8xv100")
	c := classOf(t, m)
	idle := mask(t, "0,1,3,4,6,7")
	r := plan(t, planner(t, placement.Options{MaxSets: 100}), placement.WholeGPUs(c, idle), wholes(4))
	var want [][]string
	for _, s := range r.Sets {
		left := idle &^ s.GPUs
		want = append(want, []string{
			s.GPUs.String(), strconv.Itoa(s.Quality.Rings), fmt.Sprint(s.Quality.MBps), strconv.Itoa(s.Tier),
			left.String(), fmt.Sprint(c.Pack(2, left)), fmt.Sprint(s.DeltaV), fmt.Sprint(s.Keys.PairMBps),
		})
	}
	got := objectiveTable(t, "| set | rings | Q | tier | left | Pack(2, left) | ΔV | sum of pairs |")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table of the example (-code +document):\n%s", diff)
	}
	v := 50*c.Pack(1, idle) + 22*c.Pack(2, idle) + 20*c.Pack(4, idle) + 8*c.Pack(8, idle)
	if v != 5_151_530 || c.Pack(1, idle) != 36_000 || c.Pack(2, idle) != 128_905 || c.Pack(4, idle) != 25_781 {
		t.Errorf("V now is %d, Pack(1) %d, Pack(2) %d, Pack(4) %d", v, c.Pack(1, idle), c.Pack(2, idle), c.Pack(4, idle))
	}
	var links [][]string
	for i := range idle.All() {
		row := []string{strconv.Itoa(i)}
		for j := range idle.All() {
			row = append(row, m.LinkName(i, j))
		}
		links = append(links, row)
	}
	if diff := cmp.Diff(links, objectiveTable(t, "|   | 0 | 1 | 3 | 4 | 6 | 7 |")); diff != "" {
		t.Errorf("the links of the example (-code +document):\n%s", diff)
	}
	d := wholes(4)
	d.Communicates = placement.No
	if s := plan(t, planner(t, placement.Options{}), placement.WholeGPUs(c, idle), d).Sets[0]; s.GPUs.String() != "{0,1,3,4}" {
		t.Errorf("a claim that does not communicate takes %s", s.GPUs)
	}
}

// TestObjectiveConstants compares the tables of weights and models with the code.
func TestObjectiveConstants(t *testing.T) {
	t.Parallel()
	w := topology.DefaultWeights()
	var want [][]string
	for gen := range w {
		row := []string{strconv.Itoa(gen)}
		if gen == 0 {
			row[0] = "unknown"
		}
		for class := topology.PIX; class <= topology.SYS; class++ {
			row = append(row, fmt.Sprint(w[gen][class]))
		}
		want = append(want, row)
	}
	if diff := cmp.Diff(want, objectiveTable(t, "| PCIe generation | PIX | PXB | PHB | NODE | SYS |")); diff != "" {
		t.Errorf("weights (-code +document):\n%s", diff)
	}
	undocumented := map[string]bool{}
	for _, model := range topology.Models() {
		undocumented[strings.TrimPrefix(model, "RTX")] = true
	}
	for _, row := range objectiveTable(t, "| models | MB/s per link | links | PCIe |") {
		for model := range strings.SplitSeq(row[0], ", ") {
			p, ok := topology.FindProduct(model)
			got := []string{fmt.Sprint(p.NVLinkMBps), strconv.Itoa(p.NVLinkPorts), strconv.Itoa(p.PCIeGen)}
			if diff := cmp.Diff(got, row[1:]); diff != "" || !ok {
				t.Errorf("%s (-code +document):\n%s", model, diff)
			}
			delete(undocumented, strings.TrimPrefix(p.Name, "RTX"))
		}
	}
	if len(undocumented) > 0 {
		t.Errorf("models that the document leaves out: %v", undocumented)
	}
}

// TestObjectiveSumMisses counts on a DGX-1V how often the set with the largest sum of
// bandwidths, the lowest one on ties, has fewer rings than the best set.
func TestObjectiveSumMisses(t *testing.T) {
	t.Parallel()
	c := classOf(t, machine(t, "dgx1v_8xv100"))
	var want [][]string
	for k := 2; k <= 7; k++ {
		masks, misses := 0, 0
		for free := topology.Mask(0); free <= 255; free++ {
			if free.Count() <= k {
				continue
			}
			masks++
			var largest topology.Mask
			rings := 0
			for _, s := range topotest.Subsets(free, k) {
				rings = max(rings, c.Of(s).Rings)
				if largest == 0 || c.PairMBps(s) > c.PairMBps(largest) {
					largest = s
				}
			}
			if c.Of(largest).Rings < rings {
				misses++
			}
		}
		want = append(want, []string{strconv.Itoa(k), strconv.Itoa(masks), strconv.Itoa(misses)})
	}
	if diff := cmp.Diff(want, objectiveTable(t, "| GPUs asked | free sets | largest sum misses |")); diff != "" {
		t.Errorf("misses (-code +document):\n%s", diff)
	}
}
