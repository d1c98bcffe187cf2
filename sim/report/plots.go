// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"strings"

	"github.com/topodra/topodra/sim/study"
)

// Plot is a picture of results.
type Plot struct {
	// Name is good for a file; Scenario says where it belongs, "" to none alone.
	Name, Scenario string
	SVG            string
}

// Plots draws what there is: for each scenario its main measure, and waiting against
// quality; and for scenarios that differ in load alone, both over the load.
func Plots(scenarios []study.Scenario, summaries []study.Summary) []Plot {
	d := newData(summaries)
	var out []Plot
	for i := range scenarios {
		s := &scenarios[i]
		if s.Load() {
			continue
		}
		if s.List != "" {
			out = append(out, d.fillPlots(s)...)
			continue
		}
		out = append(out, d.queuePlots(s)...)
	}
	return append(out, d.loadPlots(scenarios)...)
}

func fileName(scenario, what string) string {
	return "sim-" + strings.NewReplacer("/", "-", "_", "-", " ", "-").Replace(scenario) + "-" + what
}

func (d data) queuePlots(s *study.Scenario) []Plot {
	var out []Plot
	if list := d.bars(s, "quality", 1); len(list) > 0 {
		out = append(out, Plot{fileName(s.Name, "quality"), s.Name,
			bars(s.Title+": link quality of sensitive jobs, 1 = empty node", list, 3)})
	}
	if list := d.points(s, column{metric: "quality", unit: 1}, column{metric: "wait_s_k8", unit: meanRun}); len(list) > 0 {
		out = append(out, Plot{fileName(s.Name, "wait"), s.Name,
			scatter(s.Title+": right and low is better", "link quality of sensitive jobs", "wait of 8-GPU jobs, mean run times", list)})
	}
	return out
}

func (d data) fillPlots(s *study.Scenario) []Plot {
	list := d.points(s, column{metric: "at_100/link_gbps", unit: 1}, column{metric: "at_100/allocation_rate", unit: 0.01})
	if len(list) == 0 {
		return nil
	}
	return []Plot{{fileName(s.Name, "allocation"), s.Name,
		scatter(s.Title+": right and high is better", "mean link bandwidth of multi-GPU pods, GB/s", "GPUs allocated at 100 % arrivals, %", list)}}
}

// loadPlots draws the scenarios of one cluster and several loads.
func (d data) loadPlots(scenarios []study.Scenario) []Plot {
	var some []*study.Scenario
	for i := range scenarios {
		if scenarios[i].Load() {
			some = append(some, &scenarios[i])
		}
	}
	if len(some) < 2 {
		return nil
	}
	title, _, _ := strings.Cut(some[0].Title, ", load")
	return []Plot{
		{"sim-load-quality", "", lines(title+": link quality over load", "load", "link quality of sensitive jobs", d.series(some, column{metric: "quality", unit: 1}))},
		{"sim-load-wait", "", lines(title+": wait of 8-GPU jobs over load", "load", "mean run times", d.series(some, column{metric: "wait_s_k8", unit: meanRun}))},
	}
}

func (d data) bars(s *study.Scenario, metric string, unit float64) []bar {
	var out []bar
	for _, v := range s.Policies {
		if e, ok := d[[3]string{s.Name, v.Name, metric}]; ok {
			out = append(out, bar{v.Name, scaled(e, unit)})
		}
	}
	return out
}

func (d data) points(s *study.Scenario, horizontal, vertical column) []point {
	var out []point
	for _, v := range s.Policies {
		x, okX := d[[3]string{s.Name, v.Name, horizontal.metric}]
		y, okY := d[[3]string{s.Name, v.Name, vertical.metric}]
		if okX && okY {
			out = append(out, point{v.Name, scaled(x, horizontal.unit), scaled(y, vertical.unit)})
		}
	}
	return out
}

func (d data) series(scenarios []*study.Scenario, c column) []series {
	var out []series
	for _, v := range scenarios[0].Policies {
		l := series{label: v.Name}
		for _, s := range scenarios {
			if e, ok := d[[3]string{s.Name, v.Name, c.metric}]; ok {
				l.at, l.value = append(l.at, s.Mix.Load), append(l.value, scaled(e, c.unit))
			}
		}
		out = append(out, l)
	}
	return out
}

func scaled(e study.Estimate, unit float64) study.Estimate {
	e.Mean /= unit
	e.Half /= unit
	return e
}

// seedsText says over how many seeds a scenario ran.
func seedsText(s *study.Scenario) string {
	if s.Seeds == 1 {
		return "one seed"
	}
	return strconv.Itoa(s.Seeds) + " seeds"
}
