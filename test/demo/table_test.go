// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// sampleReport has every kind of row: placed best, worse and much worse, one GPU, waiting rightly and wrongly, a broken guarantee.
func sampleReport() *Report {
	best := &Placement{Node: "degraded", GPUs: []int{0, 1, 3, 4}, Rings: 9, GBps: 478.125, Link: "NVLink"}
	stock := []Outcome{
		{Job: "job-01", Wants: "4 GPUs", GPUsWanted: 4, Tier: 4, Optimum: best,
			Placed: &Placement{Node: "pcie-only", GPUs: []int{0, 1, 2, 3}, GBps: 8.04, Link: "NODE"}},
		{Job: "job-02", Wants: "1 × 6 Gi 30 %", GPUsWanted: 1, Placed: &Placement{Node: "cube-mesh", GPUs: []int{0}}},
		{Job: "job-03", Wants: "2 GPUs", GPUsWanted: 2, Tier: 1,
			Optimum: &Placement{Node: "nvswitch", GPUs: []int{0, 1}, Rings: 18, GBps: 478.116, Link: "NVLink"},
			Placed:  &Placement{Node: "nvl-pairs", GPUs: []int{0, 1}, Rings: 12, GBps: 318.744, Link: "NVLink"}},
		{Job: "job-04", Wants: "8 GPUs, NVLink only", GPUsWanted: 8, Guaranteed: true, Violated: true, Tier: 0, Finished: []string{"job-01"},
			Placed: &Placement{Node: "nvl-pairs", GPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}, GBps: 24, Link: "SYS"}},
		{Job: "job-05", Wants: "2 GPUs", GPUsWanted: 2, Tier: -1, Finished: []string{"job-02", "job-03"}, Message: "0/6 nodes are available.",
			Optimum: &Placement{Node: "cube-mesh", GPUs: []int{0, 3}, Rings: 2, GBps: 51.562, Link: "NVLink"}},
	}
	ours := []Outcome{
		{Job: "job-01", Wants: "4 GPUs", GPUsWanted: 4, Optimum: best, Placed: best},
		{Job: "job-02", Wants: "1 × 6 Gi 30 %", GPUsWanted: 1, Placed: &Placement{Node: "degraded", GPUs: []int{2}}},
		{Job: "job-03", Wants: "2 GPUs", GPUsWanted: 2,
			Optimum: &Placement{Node: "degraded", GPUs: []int{5, 6}, Rings: 18, GBps: 956.25, Link: "NVLink"},
			Placed:  &Placement{Node: "degraded", GPUs: []int{5, 7}, Rings: 18, GBps: 956.25, Link: "NVLink"}},
		{Job: "job-04", Wants: "8 GPUs, NVLink only", GPUsWanted: 8, Guaranteed: true, Tier: -1, BestNow: &Placement{Node: "pcie-only", GBps: 6, Link: "SYS"}, Finished: []string{"job-01"},
			Message: "0/6 nodes are available: no set of 8 GPUs reaches the level; " + strings.Repeat("word ", 30)},
		{Job: "job-05", Wants: "2 GPUs", GPUsWanted: 2, Finished: []string{"job-02", "job-03"},
			Optimum: &Placement{Node: "cube-mesh", GPUs: []int{0, 3}, Rings: 2, GBps: 51.562, Link: "NVLink"},
			Placed:  &Placement{Node: "cube-mesh", GPUs: []int{4, 7}, Rings: 2, GBps: 51.562, Link: "NVLink"}},
	}
	return &Report{
		Note:        "Simulated GPUs.",
		TierPercent: 10,
		Seconds:     20.9,
		Nodes: []NodeInfo{
			{Name: "cube-mesh", Machine: "dgx1v_8xv100", GPUs: 8, Links: "hybrid cube mesh"},
			{Name: "pcie-only", Machine: "pcie_8x_pix_node_sys", GPUs: 8, Links: "no NVLink"},
		},
		Runs: []RunResult{
			{Scheduler: "stock kube-scheduler", Jobs: stock, Totals: Total(stock)},
			{Scheduler: "topodra-scheduler", Jobs: ours, Totals: Total(ours)},
		},
	}
}

func TestWriteReport(t *testing.T) {
	t.Parallel()
	for name, style := range map[string]Style{"plain": {}, "colour": {Enabled: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if err := WriteReport(&out, sampleReport(), style); err != nil {
				t.Fatal(err)
			}
			golden(t, "report_"+name+".txt", out.String())
			if style.Enabled {
				return
			}
			for n, line := range strings.Split(out.String(), "\n") {
				if width := utf8.RuneCountInString(line); width > 120 {
					t.Errorf("line %d has %d columns, the terminal may have 120:\n%s", n+1, width, line)
				}
				if strings.TrimRight(line, " ") != line {
					t.Errorf("line %d ends in spaces: %q", n+1, line)
				}
			}
		})
	}
}

// TestColourChangesNothingElse removes the colours again and compares.
func TestColourChangesNothingElse(t *testing.T) {
	t.Parallel()
	var plain, colour strings.Builder
	if err := WriteReport(&plain, sampleReport(), Style{}); err != nil {
		t.Fatal(err)
	}
	if err := WriteReport(&colour, sampleReport(), Style{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	stripped := colour.String()
	for _, code := range []string{"0", ansiBold, ansiDim, ansiRed, ansiGreen, ansiYellow} {
		stripped = strings.ReplaceAll(stripped, "\x1b["+code+"m", "")
	}
	// A coloured cell keeps its padding, which at the end of a line shows as spaces.
	lines := strings.Split(stripped, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if diff := cmp.Diff(plain.String(), strings.Join(lines, "\n")); diff != "" {
		t.Errorf("coloured text differs (-plain +colour):\n%s", diff)
	}
}

func TestTotal(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	// Stock: 8.04/478.125 and 318.744/478.116 count; the single GPU, the broken guarantee and the waiting job do not.
	want := Totals{Communicating: 3, AtOptimum: 0, MeanOfOptimum: (8.04/478.125 + 318.744/478.116 + 0) / 3,
		MeanGBps: (8.04 + 318.744 + 0) / 3, GuaranteesBroken: 1}
	rounding := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-12 })
	if diff := cmp.Diff(want, r.Runs[0].Totals, rounding); diff != "" {
		t.Errorf("totals of the stock run (-want +got):\n%s", diff)
	}
	want = Totals{Communicating: 3, AtOptimum: 3, MeanOfOptimum: 1, MeanGBps: (478.125 + 956.25 + 51.562) / 3}
	if diff := cmp.Diff(want, r.Runs[1].Totals, rounding); diff != "" {
		t.Errorf("totals of our run (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Totals{}, Total(nil)); diff != "" {
		t.Errorf("totals of nothing (-want +got):\n%s", diff)
	}
}

func TestFormatGPUs(t *testing.T) {
	t.Parallel()
	for want, gpus := range map[string][]int{
		"": nil, "3": {3}, "0,1": {0, 1}, "0-2": {0, 1, 2}, "0,2,4,5,7-9": {0, 2, 4, 5, 7, 8, 9}, "0-15": firstGPUs(16),
	} {
		if got := FormatGPUs(gpus); got != want {
			t.Errorf("FormatGPUs(%v) = %q, want %q", gpus, got, want)
		}
	}
}

func firstGPUs(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestPadAndWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{padRight("ab", 4), "ab  "},
		{padLeft("ab", 4), "  ab"},
		{padRight("× é", 4), "× é "},
		{padRight("abcdef", 4), "abc…"},
		{padLeft("abcdef", 4), "abc…"},
		{padRight("abc", 0), ""},
		{strings.Join(wrap("one two  three", 7), "|"), "one two|three"},
		{strings.Join(wrap("extraordinarily long", 5), "|"), "extraordinarily|long"},
		{strings.Join(wrap("  ", 5), "|"), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestUseColour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal      bool
		noColor, term string
		want          bool
	}{
		{true, "", "xterm", true},
		{false, "", "xterm", false},
		{true, "1", "xterm", false},
		{true, "", "dumb", false},
	} {
		if got := UseColour(c.terminal, c.noColor, c.term); got != c.want {
			t.Errorf("UseColour(%v, %q, %q) = %v, want %v", c.terminal, c.noColor, c.term, got, c.want)
		}
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("reading the golden file (write it with -update): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update accepts it:\n%s", path, diff)
	}
}
