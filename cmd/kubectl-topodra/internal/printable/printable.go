// SPDX-License-Identifier: Apache-2.0

// Package printable makes texts from elsewhere, such as names in recordings and attributes of devices, safe to print on a
// terminal.
//
// Invariant: what it returns moves no cursor and changes no colour or reading direction.
//
// Concurrency: functions without state. Allowed imports: the standard library.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line replaces everything that is not visible, also line breaks, by its number as in Go: "\x1b", "\u202e".
func Line(text string) string { return escape(text, false) }

// Lines does what Line does but keeps line breaks and tabs.
func Lines(text string) string { return escape(text, true) }

func escape(text string, breaks bool) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case unicode.IsPrint(r) && r != utf8.RuneError || breaks && (r == '\n' || r == '\t'):
			b.WriteRune(r)
		case r == utf8.RuneError:
			_, size := utf8.DecodeRuneInString(text[i:])
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[i:i+size]), `"`))
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
