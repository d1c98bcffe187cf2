// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/status"
)

// manyNodes is how many nodes with one reason are named.
const manyNodes = 5

// WriteJSON writes the explanation as one JSON document.
func WriteJSON(w io.Writer, e *Explanation) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// WriteText writes the explanation for people.
func WriteText(w io.Writer, e *Explanation) error {
	var b strings.Builder
	where := "has no node yet"
	if e.Node != "" {
		where = "is on node " + e.Node
	}
	fmt.Fprintf(&b, "Pod %s/%s %s: %s, scheduler %s\n", e.Namespace, e.Pod, where, e.Phase, e.Scheduler)
	for i := range e.Claims {
		writeClaim(&b, &e.Claims[i])
	}
	if e.Placed != nil {
		e.Placed.write(&b)
	}
	if e.Pending != nil {
		e.Pending.write(&b)
	}
	if len(e.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, note := range e.Notes {
		b.WriteString("note: " + printable.Line(note) + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the explanation: %w", err)
	}
	return nil
}

func writeClaim(b *strings.Builder, c *Claim) {
	name := c.Name
	if name == "" {
		name = "(not made yet)"
	}
	source := c.Source
	if c.Template != "" {
		source += " " + c.Template
	}
	fmt.Fprintf(b, "\nClaim %s, %s", name, source)
	if c.AllocatedAt != "" {
		fmt.Fprintf(b, ", allocated %s", c.AllocatedAt)
	}
	b.WriteString("\n")
	for _, line := range c.Asks {
		b.WriteString("  asks   " + printable.Line(line) + "\n")
	}
	for _, line := range gotLines(c.Devices) {
		b.WriteString("  got    " + line + "\n")
	}
}

// gotLines sums the devices of a claim up: GPUs of one request alike on one line.
func gotLines(devices []Device) []string {
	type group struct {
		head string
		gpus []int
		tail string
	}
	var groups []group
	for _, d := range devices {
		switch {
		case d.Driver != api.DriverName:
			groups = append(groups, group{head: fmt.Sprintf("%s: device %s of pool %s, driver %s", d.Request, d.Device, d.Pool, d.Driver)})
			continue
		case d.GPU < 0:
			groups = append(groups, group{head: fmt.Sprintf("%s: device %s of node %s, not published any more", d.Request, d.Device, d.Pool)})
			continue
		case d.Part != "":
			groups = append(groups, group{head: fmt.Sprintf("%s: MIG device %s (%s) of GPU %d on node %s", d.Request, d.Device, printable.Line(d.Part), d.GPU, d.Pool)})
			continue
		}
		head, tail := d.Request+": GPUs", " on node "+d.Pool+": "+d.Use
		if n := len(groups); n > 0 && groups[n-1].head == head && groups[n-1].tail == tail {
			groups[n-1].gpus = append(groups[n-1].gpus, d.GPU)
			continue
		}
		groups = append(groups, group{head: head, gpus: []int{d.GPU}, tail: tail})
	}
	var lines []string
	for _, g := range groups {
		if g.gpus == nil {
			lines = append(lines, g.head)
			continue
		}
		head := g.head
		if len(g.gpus) == 1 {
			head = strings.TrimSuffix(head, "s")
		}
		lines = append(lines, head+" "+gpuList(g.gpus)+g.tail)
	}
	return lines
}

func (p *Placed) write(b *strings.Builder) {
	if len(p.GPUs) < 2 {
		b.WriteString("\n" + p.Verdict + "\n")
		return
	}
	b.WriteString("\nLinks between its GPUs\n")
	writeTable(b, func(w io.Writer) {
		for _, g := range p.GPUs {
			_, _ = fmt.Fprintf(w, "\tGPU%d", g)
		}
		_, _ = fmt.Fprintln(w)
		for i, row := range p.Links {
			_, _ = fmt.Fprintf(w, "GPU%d\t%s\n", p.GPUs[i], strings.Join(row, "\t"))
		}
	})
	b.WriteString("\n")
	writeTable(b, func(w io.Writer) {
		_, _ = fmt.Fprintln(w, "SET\tGPUS\tRINGS\tGB/S\tOVER")
		p.Got.row(w, "the pod's", false)
		p.Then.row(w, "best then, at most", false)
		p.Now.row(w, "best now, its own and free ones", false)
		p.Empty.row(w, "best if the node were empty", false)
		p.Elsewhere.row(w, "best now on another node", true)
	})
	fmt.Fprintf(b, "Then: %s.\nVerdict: %s.\n", p.ThenText, p.Verdict)
}

func (s *Set) row(w io.Writer, name string, node bool) {
	if s == nil {
		return
	}
	where := gpuList(s.GPUs)
	if node {
		where += " of " + s.Node
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", name, where, s.Rings, strconv.FormatFloat(s.GBps, 'f', 1, 64), s.Over)
}

func (p *Pending) write(b *strings.Builder) {
	if p.Said != "" {
		fmt.Fprintf(b, "\nThe scheduler said at %s:\n  %s\n", p.SaidTime, printable.Line(p.Said))
	}
	if len(p.Problems) > 0 {
		b.WriteString("\nIn the way on every node:\n")
	}
	for _, problem := range p.Problems {
		b.WriteString("  - " + printable.Line(problem) + "\n")
	}
	if len(p.Nodes) > 0 {
		b.WriteString("\n")
		writeTable(b, func(w io.Writer) {
			_, _ = fmt.Fprintln(w, "NODE\tWHY NOT")
			for _, group := range sortRefusals(p.Nodes) {
				_, _ = fmt.Fprintf(w, "%s\t%s\n", namesOf(group), printable.Line(group[0].Why))
			}
		})
	}
	b.WriteString("\nTo free for it: " + p.FreeText + "\n")
	for i, r := range p.Free {
		word := "or"
		if i == 0 {
			word = "free"
		}
		r.write(b, word)
	}
}

func namesOf(group []Refusal) string {
	var names []string
	for i, r := range group {
		if i == manyNodes {
			names = append(names, fmt.Sprintf("and %d more", len(group)-i))
			break
		}
		names = append(names, r.Node)
	}
	return strings.Join(names, ", ")
}

func (r *Release) write(b *strings.Builder, word string) {
	fmt.Fprintf(b, "  %s on node %s", word, r.Node)
	if r.Gives != nil {
		fmt.Fprintf(b, ", which gives GPUs %s, %s", gpuList(r.Gives.GPUs), status.FormatQuality(r.Gives.quality))
	}
	if !r.Smallest {
		b.WriteString(" (cut short: another list may be shorter)")
	}
	b.WriteString(":\n")
	for _, c := range r.Claims {
		pods := "used by no pod"
		if len(c.Pods) > 0 {
			pods = "used by " + strings.Join(c.Pods, ", ")
		}
		fmt.Fprintf(b, "    claim %s/%s on GPUs %s, %s\n", c.Namespace, c.Name, gpuList(c.GPUs), pods)
	}
}

// writeTable writes aligned columns, two spaces in, without spaces at the ends of lines.
func writeTable(b *strings.Builder, rows func(io.Writer)) {
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	rows(tw)
	_ = tw.Flush() // a strings.Builder takes everything
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight("  "+line, " \n") + "\n")
	}
}
