// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/report"
	"github.com/topodra/topodra/sim/study"
	"github.com/topodra/topodra/sim/workload"
)

// example has one scenario of each kind.
func example() ([]study.Scenario, []study.Record) {
	policies := study.Named("topodra", "<b>")
	scenarios := []study.Scenario{
		{Name: "queue", Title: "A & B", Mix: &workload.Mix{}, Policies: policies, Seeds: 2},
		{Name: "fill", Title: "Fill", List: "default", Policies: policies, Seeds: 1},
		{Name: "load/0.50", Title: "X, load 0.50", Mix: &workload.Mix{Load: 0.5}, Policies: policies, Seeds: 1},
		{Name: "load/0.90", Title: "X, load 0.90", Mix: &workload.Mix{Load: 0.9}, Policies: policies, Seeds: 1},
	}
	var records []study.Record
	add := func(scenario, policy string, seed uint64, metrics ...engine.Metric) {
		records = append(records, study.Record{Scenario: scenario, Policy: policy, Seed: seed, Metrics: metrics, DecisionMicros: 1.25})
	}
	m := func(name string, value float64) engine.Metric { return engine.Metric{Name: name, Value: value} }
	for _, p := range policies {
		add("queue", p.Name, 1, m("quality", 0.9), m("wait_s_k8", 1800), m("allocation_rate", 0.5))
		add("queue", p.Name, 2, m("quality", 0.92), m("wait_s_k8", 3600), m("allocation_rate", 0.75))
	}
	for _, p := range policies {
		add("fill", p.Name, 1, m("at_100/allocation_rate", 1./3), m("at_100/link_gbps", 40))
	}
	for _, s := range []string{"load/0.50", "load/0.90"} {
		for _, p := range policies {
			add(s, p.Name, 1, m("quality", 0.8), m("wait_s_k8", 360))
		}
	}
	return scenarios, records
}

func TestCSV(t *testing.T) {
	t.Parallel()
	_, records := example()
	var b bytes.Buffer
	if err := report.Runs(&b, records[4:5]); err != nil {
		t.Fatal(err)
	}
	want := "scenario,policy,seed,metric,value\nfill,topodra,1,at_100/allocation_rate,0.3333333333333333\nfill,topodra,1,at_100/link_gbps,40\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	b.Reset()
	if err := report.Summaries(&b, study.Summarise(records[:2])); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(rows) != 4 || rows[3][2] != "allocation_rate" || rows[3][3] != "2" || rows[3][4] != "0.625" {
		t.Errorf("summaries: %v (%v)", rows, err)
	}
	b.Reset()
	if err := report.Times(&b, study.Summarise(records[:2])); err != nil || b.String() != "scenario,policy,metric,seeds,mean,ci95\nqueue,topodra,decision_us,2,1.25,0\n" {
		t.Errorf("times: %q (%v)", b.String(), err)
	}
	if err := report.Runs(brokenWriter{}, records); err == nil {
		t.Error("a writer that fails was not noticed")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestTables(t *testing.T) {
	t.Parallel()
	scenarios, records := example()
	verdicts := []study.Verdict{{Target: "t", Scenario: "queue", Measured: "1", Outcome: study.Met}}
	got := report.Tables(scenarios[:2], study.Summarise(records), verdicts)
	want := `### Targets

| target | scenario | measured | verdict |
|---|---|---|---|
| t | queue | 1 | met |

### A & B

Scenario ` + "`queue`" + `, 2 seeds.

| policy | quality | wait, 8 GPUs | allocated % |
|---|---|---|---|
| topodra | 0.910 ± 0.127 | 0.75 ± 3.18 | 62.5 ± 158.8 |
| <b> | 0.910 ± 0.127 | 0.75 ± 3.18 | 62.5 ± 158.8 |

### Fill

Scenario ` + "`fill`" + `, one seed.

| policy | allocated % | links GB/s |
|---|---|---|
| topodra | 33.33 | 40.0 |
| <b> | 33.33 | 40.0 |

`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	times := report.TimeTable(scenarios[:2], study.Summarise(records))
	if !strings.Contains(times, "| topodra | 1.2 ± 0.0 | 1.2 |") {
		t.Errorf("times:\n%s", times)
	}
}

// TestHTMLStandsAlone checks that the page refers to nothing and escapes names.
func TestHTMLStandsAlone(t *testing.T) {
	t.Parallel()
	scenarios, records := example()
	var b bytes.Buffer
	verdicts := []study.Verdict{{Target: "<i>", Outcome: study.Missed}}
	if err := report.HTML(&b, scenarios, study.Summarise(records), verdicts); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, never := range []string{"src=", "href=", "<script", "@import", "url(", "<b>", "<i>"} {
		if strings.Contains(page, never) {
			t.Errorf("the page has %q", never)
		}
	}
	// Two plots of the queue, one of the filled cluster, two over the load.
	if n := strings.Count(page, "<svg "); n != 5 {
		t.Errorf("%d plots, want 5", n)
	}
	for _, always := range []string{"&lt;b&gt;", "A &amp; B", `class="missed"`, "Over the load"} {
		if !strings.Contains(page, always) {
			t.Errorf("the page lacks %q", always)
		}
	}
	if err := report.HTML(brokenWriter{}, scenarios, nil, nil); err == nil {
		t.Error("a writer that fails was not noticed")
	}
}

// TestPlotsAreWellFormed reads every plot as XML and looks for numbers that are none.
func TestPlotsAreWellFormed(t *testing.T) {
	t.Parallel()
	scenarios, records := example()
	odd := append([]study.Record(nil), records...)
	odd[0].Metrics = []engine.Metric{{Name: "quality", Value: 0}, {Name: "wait_s_k8", Value: math.MaxFloat32}}
	for _, list := range [][]study.Record{records, odd, records[:2]} {
		plots := report.Plots(scenarios, study.Summarise(list))
		if len(plots) == 0 {
			t.Error("there are no plots")
		}
		names := map[string]bool{}
		for _, p := range plots {
			if names[p.Name] || strings.ContainsAny(p.Name, "/ _") {
				t.Errorf("plot name %q is taken or no good for a file", p.Name)
			}
			names[p.Name] = true
			decoder := xml.NewDecoder(strings.NewReader(p.SVG))
			for {
				if _, err := decoder.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("plot %q: %v", p.Name, err)
				}
			}
			for _, never := range []string{"NaN", "Inf", "%!"} {
				if strings.Contains(p.SVG, never) {
					t.Errorf("plot %q has %s", p.Name, never)
				}
			}
		}
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- tables: generated by `make sim` -->\n", "<!-- end of tables -->\n"
	const beginTimes, endTimes = "<!-- times: generated by `make sim` -->\n", "<!-- end of times -->\n"
	document := "before\n" + begin + "old\n" + end + "between\n" + beginTimes + endTimes + "after\n"
	got, same, err := report.Update(document, "new\n", "times\n")
	want := "before\n" + begin + "new\n" + end + "between\n" + beginTimes + "times\n" + endTimes + "after\n"
	if err != nil || same || got != want {
		t.Errorf("same: %t, %v:\n%s", same, err, got)
	}
	if again, same, err := report.Update(got, "new\n", "other\n"); err != nil || !same || !strings.Contains(again, "other") {
		t.Errorf("the same tables, other times: %t, %v", same, err)
	}
	for _, broken := range []string{"", begin, begin + end, begin + end + beginTimes} {
		if _, _, err := report.Update(broken, "", ""); err == nil {
			t.Errorf("document %q was updated", broken)
		}
	}
}
