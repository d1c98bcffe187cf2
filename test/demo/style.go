// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"unicode/utf8"
)

// Style colours text, or leaves it alone when Enabled is false.
type Style struct{ Enabled bool }

// ANSI parameters; the terminal's own palette decides how they look.
const (
	ansiBold   = "1"
	ansiDim    = "2"
	ansiRed    = "31"
	ansiGreen  = "32"
	ansiYellow = "33"
)

func (s Style) paint(code, text string) string {
	if !s.Enabled || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// UseColour decides from facts about the output: colours only on a terminal that can show them, and never when NO_COLOR is set.
// Empty counts as not set, as no-color.org has it.
func UseColour(isTerminal bool, noColor, term string) bool {
	return isTerminal && noColor == "" && term != "dumb"
}

// padRight fills text with spaces up to width runes. Longer text is cut and ends in an ellipsis.
func padRight(text string, width int) string {
	text = cut(text, width)
	return text + strings.Repeat(" ", width-utf8.RuneCountInString(text))
}

// padLeft is padRight with the text at the right edge.
func padLeft(text string, width int) string {
	text = cut(text, width)
	return strings.Repeat(" ", width-utf8.RuneCountInString(text)) + text
}

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}

// wrap breaks text into lines of at most width runes, between words only: a longer word stays whole.
func wrap(text string, width int) []string {
	var lines, line []string
	used := -1 // no space before the first word
	for word := range strings.FieldsSeq(text) {
		length := 1 + utf8.RuneCountInString(word)
		if len(line) > 0 && used+length > width {
			lines, line, used = append(lines, strings.Join(line, " ")), nil, -1
		}
		line, used = append(line, word), used+length
	}
	if len(line) > 0 {
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}
