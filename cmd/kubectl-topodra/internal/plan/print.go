// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// document is the JSON form of an answer. Its fields are an interface to other programs: the agreed ones are
// never left out, and the doubt about a search that was not exact comes on top.
type document struct {
	Machine      string        `json:"machine"`
	GPUs         []int         `json:"gpus"`
	Rings        int           `json:"rings"`
	GBps         float64       `json:"gbps"`
	Tier         int           `json:"tier"`
	Inexact      bool          `json:"inexact,omitempty"`
	Alternatives []alternative `json:"alternatives"`
}

type alternative struct {
	GPUs  []int   `json:"gpus"`
	Rings int     `json:"rings"`
	GBps  float64 `json:"gbps"`
	Tier  int     `json:"tier"`
	Lost  string  `json:"lost"`
}

// WriteJSON writes the answer as one JSON document.
func WriteJSON(w io.Writer, machine string, numbers Numbers, a *Answer) error {
	doc := document{
		Machine: machine, GPUs: numbers.Of(a.Best.GPUs), Rings: a.Best.Quality.Rings,
		GBps: a.Best.Quality.MBps.GBps(), Tier: a.Best.Tier, Inexact: !a.Exact, Alternatives: []alternative{},
	}
	for _, c := range a.Alternatives {
		doc.Alternatives = append(doc.Alternatives, alternative{
			GPUs: numbers.Of(c.GPUs), Rings: c.Quality.Rings, GBps: c.Quality.MBps.GBps(), Tier: c.Tier, Lost: c.Lost,
		})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// WriteText writes the answer for people.
func WriteText(w io.Writer, m *topology.Machine, job Job, state State, a *Answer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s on %d free of %d GPUs {%s}, %s\n\n", printable.Line(m.Name), Describe(job), state.Free.Count(), m.N(),
		state.Numbers.List(state.Free),
		plural(a.Considered, "possible set"))
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\tGPUS\tRINGS\tGB/S\tOVER\tTIER\tWHY IT LOST")
	row(table, "best", a.Best, state.Numbers)
	for i, c := range a.Alternatives {
		row(table, strconv.Itoa(i+2), c, state.Numbers)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing a table: %w", err)
	}
	if job.Share {
		fmt.Fprintf(&b, "\nEach GPU is taken to have %s of memory (--gpu-memory); free GPUs are idle, the others have nothing left.\n",
			FormatMiB(state.GPUMemoryMiB))
	}
	_, err := io.WriteString(w, trimLines(b.String()))
	if err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

func row(w io.Writer, rank string, c Choice, numbers Numbers) {
	rings, gbps, over := "-", "-", "-"
	if c.Quality.Bottleneck != quality.None {
		rings, gbps = strconv.Itoa(c.Quality.Rings), strconv.FormatFloat(c.Quality.MBps.GBps(), 'f', 1, 64)
		over = c.Quality.Bottleneck.String()
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", rank, numbers.List(c.GPUs), rings, gbps, over, c.Tier, c.Lost)
}

// Doubt says why the answer may not be the best one; "" when it is.
func Doubt(m *topology.Machine, a *Answer) string {
	switch {
	case a.Exact:
		return ""
	case m.N() > topology.MaxExactGPUs:
		return fmt.Sprintf("the machine has more than %d GPUs: the search is not exact there, a better set may exist",
			topology.MaxExactGPUs)
	default:
		return "the search was cut short: a better set may exist"
	}
}

// Describe says in words what the job asks for.
func Describe(job Job) string {
	text := amount(job)
	switch {
	case job.Communicates == placement.No && job.GPUs > 1:
		text += " that exchange no data"
	case job.Communicates == placement.Yes && job.GPUs == 1:
		text += " that exchanges data"
	}
	return text
}

// amount says what of how many GPUs the job takes.
func amount(job Job) string {
	if !job.Share {
		return plural(job.GPUs, "whole GPU")
	}
	memory := "all memory"
	if job.MemoryMiB > 0 {
		memory = FormatMiB(job.MemoryMiB)
	}
	cores := "best-effort cores"
	if job.CoresPercent > 0 {
		cores = strconv.FormatInt(job.CoresPercent, 10) + " % of the cores"
	}
	return plural(job.GPUs, "share") + " of " + memory + " and " + cores
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// trimLines removes the spaces that a table leaves at the ends of lines.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
