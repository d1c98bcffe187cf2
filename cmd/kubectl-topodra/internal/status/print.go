// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// dash stands where there is nothing to say.
const dash = "-"

// WriteText writes the report for people; wide adds every GPU with its device, UUID and product.
func WriteText(w io.Writer, r *Report, wide bool) error {
	var b strings.Builder
	table(&b, func(tw io.Writer) { r.writeNodes(tw) })
	r.writeTotals(&b)
	if len(r.Claims) == 0 {
		b.WriteString("\nNo claim holds any of them.\n")
	} else {
		b.WriteString("\n")
		table(&b, func(tw io.Writer) { r.writeClaims(tw) })
	}
	if wide {
		b.WriteString("\n")
		table(&b, func(tw io.Writer) { r.writeGPUs(tw) })
	}
	for _, n := range r.Nodes {
		for _, warning := range n.Warnings {
			fmt.Fprintf(&b, "warning: node %s: %s\n", n.Name, printable.Line(warning))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// table writes aligned columns without spaces at the ends of lines.
func table(b *strings.Builder, rows func(io.Writer)) {
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	rows(tw)
	_ = tw.Flush() // a strings.Builder takes everything
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

func (r *Report) writeNodes(w io.Writer) {
	_, _ = fmt.Fprint(w, "NODE\tGPUS\tIDLE\tSHARED\tTAKEN\tBLOCKED\tMIG HELD")
	for _, size := range Sizes {
		_, _ = fmt.Fprintf(w, "\t%d GPUS", size)
	}
	_, _ = fmt.Fprintln(w)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		name := n.Name
		if n.Simulated {
			name += " (simulated)"
		}
		writeCounts(w, name, n.Counts)
		for _, o := range n.Offers {
			_, _ = fmt.Fprint(w, "\t"+offerCell(o))
		}
		_, _ = fmt.Fprintln(w)
	}
	if len(r.Nodes) != 1 {
		writeCounts(w, "total", r.Total.Counts)
		for _, o := range r.Total.Offers {
			_, _ = fmt.Fprintf(w, "\t%d of %s", o.Jobs, plural(o.EmptyJobs, "job"))
		}
		_, _ = fmt.Fprintln(w)
	}
}

func writeCounts(w io.Writer, name string, c Counts) {
	parts := dash
	if c.Parts > 0 {
		parts = fmt.Sprintf("%d of %d", c.HeldParts, c.Parts)
	}
	_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s", name, c.GPUs, c.Idle, c.Shared, c.Taken, c.Blocked, parts)
}

// offerCell says what there is now of what the empty node has.
func offerCell(o Offer) string {
	switch {
	case o.Empty == nil:
		return dash
	case o.Now == nil:
		return "none of " + rate(o.Empty.Quality)
	default:
		return rate(o.Now.Quality) + " of " + rate(o.Empty.Quality)
	}
}

// rate prints a bandwidth in GB/s.
func rate(q quality.Quality) string { return strconv.FormatFloat(q.MBps.GBps(), 'f', 1, 64) }

func (r *Report) writeTotals(b *strings.Builder) {
	b.WriteString("\nN GPUS: GB/s of the best-linked set that is idle now, of that of the empty node. Anywhere:\n")
	for i, size := range Sizes {
		o := r.Total.Offers[i]
		switch {
		case o.EmptyJobs == 0:
			fmt.Fprintf(b, "  %d GPUs: no node has so many\n", size)
		case o.Jobs == 0:
			fmt.Fprintf(b, "  %d GPUs: no job fits now; %s would if all were idle, the best with %s\n", size, plural(o.EmptyJobs, "job"), FormatQuality(o.Empty))
		default:
			fmt.Fprintf(b, "  %d GPUs: %s now, the best with %s on node %s", size, fitting(o.Jobs, o.EmptyJobs), FormatQuality(o.Now), o.NowNode)
			if quality.Compare(o.Empty, o.Now) > 0 {
				fmt.Fprintf(b, " instead of %s", FormatQuality(o.Empty))
			}
			b.WriteString("\n")
		}
	}
}

func fitting(now, empty int) string {
	if empty == 1 {
		return "1 of 1 job fits"
	}
	if now == 1 {
		return fmt.Sprintf("1 of %d jobs fits", empty)
	}
	return fmt.Sprintf("%d of %d jobs fit", now, empty)
}

// FormatQuality prints a set's links, such as "NVLink 51.6 GB/s".
func FormatQuality(q quality.Quality) string {
	if q.Bottleneck == quality.None {
		return "one GPU"
	}
	return q.Bottleneck.String() + " " + rate(q) + " GB/s"
}

func (r *Report) writeClaims(w io.Writer) {
	_, _ = fmt.Fprintln(w, "NAMESPACE\tCLAIM\tPODS\tNODE\tGPUS\tOF EACH")
	for _, c := range r.Claims {
		pods := strings.Join(c.Pods, ",")
		if pods == "" {
			pods = dash
		}
		for i, h := range c.Holds {
			if i > 0 {
				_, _ = fmt.Fprintf(w, "\t\t\t\t%s\t%s\n", FormatGPUs(h.GPUs), r.use(c.Node, h))
				continue
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Namespace, c.Name, pods, c.Node, FormatGPUs(h.GPUs), r.use(c.Node, h))
		}
	}
}

// use says what a claim has of a GPU; of a part, its profile.
func (r *Report) use(node string, h Hold) string {
	if h.Device == "" {
		return nodes.DescribeUse(h.Holder)
	}
	text := "MIG " + h.Device
	if h.Admin {
		text = "admin access to " + text
	}
	for _, n := range r.Nodes {
		if n.Name != node {
			continue
		}
		for _, p := range n.GPUs[h.GPUs.Lowest()].Parts {
			if p.Device == h.Device && p.Profile != "" {
				text += " (" + printable.Line(p.Profile) + ")"
			}
		}
	}
	return text
}

// FormatGPUs prints a set without its braces.
func FormatGPUs(s topology.Mask) string { return strings.Trim(s.String(), "{}") }

func (r *Report) writeGPUs(w io.Writer) {
	_, _ = fmt.Fprintln(w, "NODE\tGPU\tDEVICE\tUUID\tPRODUCT\tSTATE\tFREE MEMORY\tFREE CORES\tTAINTS")
	for _, n := range r.Nodes {
		for i := range n.GPUs {
			g := &n.GPUs[i]
			if g.Device != "" {
				taints := strings.Join(g.Taints, ",")
				_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s of %s\t%d of %d %%\t%s\n", n.Name, g.Position, g.Device,
					orDash(printable.Line(g.UUID)), orDash(printable.Line(g.Product)), StateOf(g), nodes.FormatMiB(g.Free.MemoryMiB),
					nodes.FormatMiB(g.Total.MemoryMiB), g.Free.CoresPercent, g.Total.CoresPercent, orDash(taints))
			}
			for _, p := range g.Parts {
				_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\tMIG %s\t%s\t%s\t%s\t%s\n", n.Name, g.Position, p.Device, dash,
					orDash(printable.Line(p.Profile)), partState(g, p), nodes.FormatMiB(p.MemoryMiB), dash, dash)
			}
		}
	}
}

func orDash(text string) string {
	if text == "" {
		return dash
	}
	return text
}

// StateOf is one of idle, shared, taken, blocked.
func StateOf(g *livestate.GPU) string {
	c := count(&livestate.Node{GPUs: []livestate.GPU{*g}})
	switch {
	case c.Blocked > 0:
		return "blocked"
	case c.Shared > 0:
		return "shared"
	case c.Taken > 0:
		return "taken"
	default:
		return "idle"
	}
}

func partState(g *livestate.GPU, p livestate.Part) string {
	for _, h := range g.Holders {
		if h.Device == p.Device && fit.Holds(h) {
			return "taken"
		}
	}
	return "idle"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
