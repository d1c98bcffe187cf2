// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/topodra/topodra/sim/study"
)

// Measures of plots in pixels.
const (
	plotWidth  = 720
	leftMargin = 130
	barHeight  = 16
	barStep    = 24
	topMargin  = 36
	lineHeight = 300
	rightSpace = 120
)

// ours is the policy that plots point out.
const ours = "topodra"

// colours of series, distinguishable with impaired colour vision as well.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"}

const muted = "#8a94a0"

// svg collects the elements of a plot.
type svg struct {
	body          strings.Builder
	width, height int
	title         string
}

func newSVG(title string, height int) *svg {
	s := &svg{width: plotWidth, height: height, title: title}
	s.text(12, 20, "start", title, "font-weight:600;font-size:14px")
	return s
}

func (s *svg) text(x, y float64, anchor, text, style string) {
	fmt.Fprintf(&s.body, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" style=\"%s\">%s</text>\n", x, y, anchor, style, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(&s.body, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" style=\"%s\"/>\n", x1, y1, x2, y2, style)
}

// String returns the plot. It has a background of its own, so that it can be read on
// any page.
func (s *svg) String() string {
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "+
		"font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"#1f2328\">\n<title>%s</title>\n"+
		"<rect width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#ffffff\"/>\n%s</svg>\n",
		s.width, s.height, s.width, s.height, html.EscapeString(s.title), s.width, s.height, s.body.String())
}

// bar is one bar of a chart.
type bar struct {
	label string
	study.Estimate
}

// bars draws horizontal bars from 0 with their confidence intervals.
func bars(title string, list []bar, digits int) string {
	s := newSVG(title, topMargin+barStep*len(list)+28)
	top := 0.0
	for _, b := range list {
		top = max(top, b.Mean+b.Half)
	}
	step := niceStep(top)
	top = max(step, math.Ceil(top/step-1e-9)*step)
	x := func(v float64) float64 { return leftMargin + v/top*(plotWidth-leftMargin-rightSpace) }
	bottom := float64(topMargin + barStep*len(list))
	for _, v := range (axis{to: top, step: step}).ticks() {
		s.line(x(v), topMargin-4, x(v), bottom, "stroke:#d8dee4")
		s.text(x(v), bottom+16, "middle", label(v, step), "fill:#57606a")
	}
	for i, b := range list {
		y := float64(topMargin + barStep*i)
		colour, weight := muted, ""
		if b.label == ours {
			colour, weight = colours[0], "font-weight:600"
		}
		s.text(leftMargin-8, y+12, "end", b.label, weight)
		fmt.Fprintf(&s.body, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>\n", x(0), y, max(0, x(b.Mean)-x(0)), barHeight, colour)
		if b.Count > 1 {
			s.line(x(b.Mean-b.Half), y+barHeight/2, x(b.Mean+b.Half), y+barHeight/2, "stroke:#1f2328;stroke-width:1.5")
		}
		s.text(x(b.Mean+b.Half)+6, y+12, "start", fmt.Sprintf("%.*f", digits, b.Mean), weight)
	}
	return s.String()
}

// point is a value of two dimensions.
type point struct {
	label string
	x, y  study.Estimate
}

// axis names a dimension.
type axis struct {
	title    string
	from, to float64
	step     float64
}

// axisOf covers the values, rounded outwards.
func axisOf(title string, values []study.Estimate) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, v.Mean-v.Half), max(high, v.Mean+v.Half)
	}
	switch {
	case len(values) == 0:
		low, high = 0, 1
	case high-low <= math.Abs(high)*1e-9: // all alike
		low, high = low-math.Abs(low)/2, high+math.Abs(high)/2
		if low == high {
			high = low + 1
		}
	}
	step := niceStep(high - low)
	return axis{title, math.Floor(low/step+1e-9) * step, math.Ceil(high/step-1e-9) * step, step}
}

// ticks returns where an axis has its lines: there are at most maxTicks of them, whatever
// the numbers are.
func (a axis) ticks() []float64 {
	count := min(maxTicks, int(math.Round((a.to-a.from)/a.step))+1)
	out := make([]float64, 0, count)
	for i := range count {
		out = append(out, a.from+float64(i)*a.step)
	}
	return out
}

// maxTicks bounds the lines of an axis; a nice step needs twelve.
const maxTicks = 14

// frame draws two axes and returns the functions that place values.
func (s *svg) frame(horizontal, vertical axis) (x, y func(float64) float64) {
	const left, bottom = 64, 44
	width, height := float64(s.width-left-rightSpace), float64(s.height-topMargin-bottom)
	x = func(v float64) float64 { return left + (v-horizontal.from)/(horizontal.to-horizontal.from)*width }
	y = func(v float64) float64 {
		return topMargin + height - (v-vertical.from)/(vertical.to-vertical.from)*height
	}
	for _, v := range horizontal.ticks() {
		s.line(x(v), topMargin, x(v), topMargin+height, "stroke:#d8dee4")
		s.text(x(v), topMargin+height+16, "middle", label(v, horizontal.step), "fill:#57606a")
	}
	for _, v := range vertical.ticks() {
		s.line(left, y(v), left+width, y(v), "stroke:#d8dee4")
		s.text(left-6, y(v)+4, "end", label(v, vertical.step), "fill:#57606a")
	}
	s.text(left+width/2, float64(s.height)-8, "middle", horizontal.title, "fill:#57606a")
	fmt.Fprintf(&s.body, "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\" fill=\"#57606a\">%s</text>\n",
		topMargin+height/2, html.EscapeString(vertical.title))
	return x, y
}

// scatter draws policies as points with their intervals.
func scatter(title, xTitle, yTitle string, list []point) string {
	s := newSVG(title, lineHeight+40)
	var xs, ys []study.Estimate
	for _, p := range list {
		xs, ys = append(xs, p.x), append(ys, p.y)
	}
	x, y := s.frame(axisOf(xTitle, xs), axisOf(yTitle, ys))
	var taken labels
	for _, p := range list {
		colour, weight := muted, ""
		if p.label == ours {
			colour, weight = colours[0], "font-weight:600"
		}
		stroke := "stroke-width:1.5;stroke:" + colour
		s.line(x(p.x.Mean-p.x.Half), y(p.y.Mean), x(p.x.Mean+p.x.Half), y(p.y.Mean), stroke)
		s.line(x(p.x.Mean), y(p.y.Mean-p.y.Half), x(p.x.Mean), y(p.y.Mean+p.y.Half), stroke)
		fmt.Fprintf(&s.body, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>\n", x(p.x.Mean), y(p.y.Mean), colour)
		at := taken.free(x(p.x.Mean)+8, y(p.y.Mean)-6, p.label)
		s.text(x(p.x.Mean)+8, at, "start", p.label, weight)
	}
	return s.String()
}

// labels are the places of texts, to keep them apart.
type labels [][3]float64 // left, right, base line

// Sizes of letters, about.
const (
	letterWidth = 7
	textHeight  = 13
)

// free returns the base line for a text that starts at x, the first one from y upwards
// where it covers no other.
func (l *labels) free(x, y float64, text string) float64 {
	right := x + letterWidth*float64(len(text))
	for again := true; again; {
		again = false
		for _, o := range *l {
			if x < o[1] && o[0] < right && math.Abs(y-o[2]) < textHeight {
				y, again = o[2]-textHeight, true
			}
		}
	}
	*l = append(*l, [3]float64{x, right, y})
	return y
}

// series is a line through points.
type series struct {
	label string
	at    []float64
	value []study.Estimate
}

// lines draws series over one dimension.
func lines(title, xTitle, yTitle string, list []series) string {
	s := newSVG(title, lineHeight)
	var xs, ys []study.Estimate
	for _, l := range list {
		ys = append(ys, l.value...)
		for _, v := range l.at {
			xs = append(xs, study.Estimate{Mean: v})
		}
	}
	x, y := s.frame(axisOf(xTitle, xs), axisOf(yTitle, ys))
	last := math.Inf(-1)
	for i, l := range list {
		colour := colours[i%len(colours)]
		var path strings.Builder
		for k, v := range l.at {
			fmt.Fprintf(&path, "%.1f,%.1f ", x(v), y(l.value[k].Mean))
			s.line(x(v), y(l.value[k].Mean-l.value[k].Half), x(v), y(l.value[k].Mean+l.value[k].Half), "stroke-width:1.5;stroke:"+colour)
		}
		fmt.Fprintf(&s.body, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", strings.TrimSpace(path.String()), colour)
		// The legend, each name beside the middle of the plot's right edge.
		last = max(last+18, topMargin+12)
		s.line(plotWidth-rightSpace+10, last-4, plotWidth-rightSpace+26, last-4, "stroke-width:3;stroke:"+colour)
		s.text(plotWidth-rightSpace+32, last, "start", l.label, "")
	}
	return s.String()
}

// niceStep returns a step of 1, 2 or 5 times a power of ten that divides a span into
// four to ten parts.
func niceStep(span float64) float64 {
	if !(span > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(span)))
	switch rest := span / power; {
	case rest >= 5:
		return power
	case rest >= 2:
		return power / 2
	default:
		return power / 5
	}
}

// label prints a value on an axis with the digits that its step needs.
func label(v, step float64) string {
	digits := max(0, int(math.Ceil(-math.Log10(step)-1e-9)))
	text := fmt.Sprintf("%.*f", digits, v)
	if strings.Trim(text, "-0.") == "" {
		return "0"
	}
	return text
}
