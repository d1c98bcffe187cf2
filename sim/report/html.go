// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html/template"
	"io"

	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/study"
)

// page is what the template shows.
type page struct {
	Verdicts  []study.Verdict
	Scenarios []section
	Loads     []template.HTML
	Policies  []about
}

type section struct {
	Title, Name, Seeds string
	Header             []string
	Rows               [][]string
	Plots              []template.HTML
}

type about struct{ Name, Text string }

var pageTemplate = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>TopoDRA simulations</title>
<style>
:root{color-scheme:light dark;--line:#d0d7de;--muted:#57606a;--ok:#1a7f37;--warn:#9a6700;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--line:#3d444d;--muted:#9198a1;--ok:#3fb950;--warn:#d29922;--bad:#f85149}}
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child,table.text td,table.text th{text-align:left}
tr.ours td{font-weight:600}
svg{max-width:100%;height:auto;border:1px solid var(--line);border-radius:6px;margin:.5rem 0}
.muted{color:var(--muted)}.met{color:var(--ok)}.within{color:var(--warn)}.missed{color:var(--bad)}
h2{margin-top:2.5rem}
</style>
<h1>TopoDRA simulations</h1>
<p>Means over seeds with 95 % confidence intervals. Quality is the bandwidth that a job's GPUs have among each other, as a part
of the best that an empty node of the same kind could give (“in cluster”: that the best empty node could give). Times are in mean run times.
docs/results.md says how this was measured and what it leaves out.</p>
{{if .Verdicts}}<h2>Targets</h2>
<table class="text"><tr><th>target</th><th>scenario</th><th>measured</th><th>verdict</th></tr>
{{range .Verdicts}}<tr><td>{{.Target}}</td><td>{{.Scenario}}</td><td>{{.Measured}}</td><td class="{{.Outcome}}">{{.Outcome}}</td></tr>
{{end}}</table>{{end}}
{{range .Scenarios}}<h2>{{.Title}}</h2>
<p class="muted">Scenario {{.Name}}, {{.Seeds}}</p>
<table><tr>{{range .Header}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr{{if eq (index . 0) "topodra"}} class="ours"{{end}}>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{range .Plots}}{{.}}{{end}}
{{end}}
{{if .Loads}}<h2>Over the load</h2>{{range .Loads}}{{.}}{{end}}{{end}}
<h2>Policies</h2>
<table class="text">{{range .Policies}}<tr><td>{{.Name}}</td><td>{{.Text}}</td></tr>
{{end}}</table>
</html>
`))

// HTML writes the report as a page that needs nothing else.
func HTML(w io.Writer, scenarios []study.Scenario, summaries []study.Summary, verdicts []study.Verdict) error {
	d := newData(summaries)
	p := page{Verdicts: verdicts}
	plots := Plots(scenarios, summaries)
	for i := range scenarios {
		s := &scenarios[i]
		t := d.of(s)
		part := section{Title: s.Title, Name: s.Name, Seeds: seedsText(s), Header: t.header, Rows: t.rows}
		for _, plot := range plots {
			if plot.Scenario == s.Name {
				part.Plots = append(part.Plots, template.HTML(plot.SVG))
			}
		}
		p.Scenarios = append(p.Scenarios, part)
	}
	for _, plot := range plots {
		if plot.Scenario == "" {
			p.Loads = append(p.Loads, template.HTML(plot.SVG))
		}
	}
	for _, name := range policy.Names() {
		p.Policies = append(p.Policies, about{name, policy.About(name)})
	}
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
