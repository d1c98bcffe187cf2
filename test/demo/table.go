// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Widths of the table's columns, in characters; together they stay below 120.
const (
	numberWidth = 3
	wantsWidth  = 22
	nodeWidth   = 10
	gpusWidth   = 7
	ringsWidth  = 5
	gbpsWidth   = 6
	bestWidth   = 6
	tierWidth   = 4
	sideWidth   = nodeWidth + gpusWidth + ringsWidth + gbpsWidth + bestWidth + tierWidth + 5
	tableWidth  = numberWidth + wantsWidth + 2*sideWidth + 2 + 2*2
)

// WriteReport prints the whole report for a person: the nodes, the jobs, what is pending and why, the totals.
func WriteReport(w io.Writer, r *Report, style Style) error {
	var b strings.Builder
	writeNodes(&b, r, style)
	writeJobs(&b, r, style)
	writePending(&b, r, style)
	writeTotals(&b, r, style)
	note := r.Note
	if r.Seconds > 0 {
		note += fmt.Sprintf(" The demo took %.1f s.", r.Seconds)
	}
	for _, line := range wrap(note, tableWidth) {
		b.WriteString(style.paint(ansiDim, line) + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func writeNodes(b *strings.Builder, r *Report, style Style) {
	b.WriteString(style.paint(ansiBold, "Nodes") + "\n")
	for _, n := range r.Nodes {
		fmt.Fprintf(b, "  %s %s GPUs  %s  %s\n", padRight(n.Name, nodeWidth), padLeft(strconv.Itoa(n.GPUs), 2),
			padRight(n.Machine, 26), n.Links)
	}
	b.WriteString("\n")
}

// writeJobs prints one line per job with a block of columns per run.
func writeJobs(b *strings.Builder, r *Report, style Style) {
	if len(r.Runs) == 0 {
		return
	}
	titles := []string{padRight("", numberWidth+wantsWidth)}
	heads := []string{padLeft("#", numberWidth-1) + " " + padRight("job", wantsWidth)}
	for _, run := range r.Runs {
		titles = append(titles, padRight(run.Scheduler, sideWidth))
		heads = append(heads, sideHeads())
	}
	b.WriteString(style.paint(ansiBold, joinColumns(titles)) + "\n")
	b.WriteString(style.paint(ansiBold, joinColumns(heads)) + "\n")
	b.WriteString(style.paint(ansiDim, strings.Repeat("─", tableWidth)) + "\n")
	for i, job := range r.Runs[0].Jobs {
		if len(job.Finished) > 0 {
			b.WriteString(style.paint(ansiDim, strings.Repeat(" ", numberWidth)+finishedText(job.Finished)) + "\n")
		}
		b.WriteString(jobLine(r, i, style) + "\n")
	}
	for _, line := range wrap(legend(r), tableWidth-numberWidth) {
		b.WriteString(style.paint(ansiDim, strings.Repeat(" ", numberWidth)+line) + "\n")
	}
	b.WriteString("\n")
}

// jobLine renders one job under every scheduler.
func jobLine(r *Report, i int, style Style) string {
	columns := []string{padLeft(strconv.Itoa(i+1), numberWidth-1) + " " + padRight(r.Runs[0].Jobs[i].Wants, wantsWidth)}
	for _, run := range r.Runs {
		if i < len(run.Jobs) {
			columns = append(columns, side(run.Jobs[i], style))
		}
	}
	return joinColumns(columns)
}

func joinColumns(columns []string) string { return strings.TrimRight(strings.Join(columns, "  "), " ") }

func legend(r *Report) string {
	return fmt.Sprintf("best: GB/s of the best set of free GPUs on any node at the moment the job arrived, found by brute force under each scheduler "+
		"on its own state. tier 0: within %d %% of it. !: the job's guarantee is broken. A single GPU has no links to compare.", r.TierPercent)
}

func finishedText(jobs []string) string {
	if len(jobs) == 1 {
		return "– " + jobs[0] + " ends –"
	}
	return "– " + strings.Join(jobs[:len(jobs)-1], ", ") + " and " + jobs[len(jobs)-1] + " end –"
}

func sideHeads() string {
	return strings.Join([]string{
		padRight("node", nodeWidth), padRight("GPUs", gpusWidth), padLeft("rings", ringsWidth),
		padLeft("GB/s", gbpsWidth), padLeft("best", bestWidth), padLeft("tier", tierWidth),
	}, " ")
}

// side renders the columns of one job under one scheduler.
func side(o Outcome, style Style) string {
	if o.Placed == nil {
		return style.paint(pendingColour(o), padRight(pendingText(o), sideWidth))
	}
	left := padRight(o.Placed.Node, nodeWidth) + " " + padRight(FormatGPUs(o.Placed.GPUs), gpusWidth) + " "
	if o.GPUsWanted < 2 { // one GPU has no links to compare
		return left + style.paint(ansiDim, padLeft("·", ringsWidth)+" "+padLeft("·", gbpsWidth)+" "+
			padLeft("·", bestWidth)+" "+padLeft("·", tierWidth))
	}
	best, tier := "none", "·"
	if o.Optimum != nil {
		best, tier = formatGBps(o.Optimum.GBps), strconv.Itoa(o.Tier)
	}
	if o.Violated {
		tier += "!"
	}
	got := padLeft(strconv.Itoa(o.Placed.Rings), ringsWidth) + " " + padLeft(formatGBps(o.Placed.GBps), gbpsWidth)
	return left + style.paint(verdictColour(o), got) + " " + padLeft(best, bestWidth) + " " + padLeft(tier, tierWidth)
}

// verdictColour is green at the best tier, yellow below it, and red from half of the optimum downwards or when a guarantee is broken.
func verdictColour(o Outcome) string {
	share, ok := o.Achieved()
	switch {
	case o.Violated:
		return ansiRed
	case o.Tier == 0:
		return ansiGreen
	case ok && share < 0.5:
		return ansiRed
	default:
		return ansiYellow
	}
}

// pendingText says whether waiting is right.
func pendingText(o Outcome) string {
	switch {
	case o.Optimum != nil:
		return "pending, although " + o.Optimum.Node + " had " + formatGBps(o.Optimum.GBps) + " GB/s"
	case o.BestNow == nil:
		return "pending: no node has enough free GPUs"
	default:
		return "pending: the guarantee cannot be kept now"
	}
}

func pendingColour(o Outcome) string {
	if o.Optimum == nil {
		return ansiGreen
	}
	return ansiRed
}

// writePending prints the events of the jobs that had to wait, and names the guarantees that were broken.
func writePending(b *strings.Builder, r *Report, style Style) {
	wrote := false
	for _, run := range r.Runs {
		for i, o := range run.Jobs {
			texts := remarks(o)
			if len(texts) == 0 {
				continue
			}
			wrote = true
			fmt.Fprintf(b, "%s %s under %s\n", padLeft(strconv.Itoa(i+1), numberWidth-1), o.Job, style.paint(ansiBold, run.Scheduler))
			for _, text := range texts {
				for _, line := range wrap(text, tableWidth-numberWidth) {
					b.WriteString(strings.Repeat(" ", numberWidth) + line + "\n")
				}
			}
		}
	}
	if wrote {
		b.WriteString("\n")
	}
}

// remarks says what the columns cannot about a job.
func remarks(o Outcome) []string {
	switch {
	case o.Violated:
		return []string{"placed although the job's guarantee (" + o.Wants + ") does not hold there"}
	case o.Placed != nil || o.Message == "":
		return nil
	case o.Guaranteed:
		return []string{
			"pending, its event: " + o.Message,
			"by brute force: best now " + describe(o.BestNow) + "; best if every GPU were free " + describe(o.BestWhenFree),
		}
	default:
		return []string{"pending, its event: " + o.Message}
	}
}

// describe names a set in running text.
func describe(p *Placement) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%s GB/s over %s on %s", formatGBps(p.GBps), p.Link, p.Node)
}

func writeTotals(b *strings.Builder, r *Report, style Style) {
	b.WriteString(style.paint(ansiBold, padRight("Jobs with 2 GPUs or more", numberWidth+wantsWidth+4)+
		padLeft("at the optimum", 16)+padLeft("mean of optimum", 18)+padLeft("mean GB/s", 12)+padLeft("guarantees broken", 20)) + "\n")
	for _, run := range r.Runs {
		t := run.Totals
		line := padRight("  "+run.Scheduler, numberWidth+wantsWidth+4) +
			padLeft(fmt.Sprintf("%d of %d", t.AtOptimum, t.Communicating), 16) +
			padLeft(fmt.Sprintf("%.1f %%", 100*t.MeanOfOptimum), 18) +
			padLeft(formatGBps(t.MeanGBps), 12) +
			padLeft(strconv.Itoa(t.GuaranteesBroken), 20)
		b.WriteString(line + "\n")
	}
	b.WriteString("\n")
}

// formatGBps prints a bandwidth with as many digits as the column needs.
func formatGBps(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }

// FormatGPUs prints ascending GPU positions as people write them: "0-3,6".
func FormatGPUs(gpus []int) string {
	var parts []string
	for i := 0; i < len(gpus); {
		j := i
		for j+1 < len(gpus) && gpus[j+1] == gpus[j]+1 {
			j++
		}
		switch j {
		case i:
			parts = append(parts, strconv.Itoa(gpus[i]))
		case i + 1:
			parts = append(parts, strconv.Itoa(gpus[i]), strconv.Itoa(gpus[j]))
		default:
			parts = append(parts, strconv.Itoa(gpus[i])+"-"+strconv.Itoa(gpus[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
