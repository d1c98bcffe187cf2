// SPDX-License-Identifier: Apache-2.0

package printable

import "testing"

func TestEscapes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, line, lines string }{
		{"dgx-1 ΔV", "dgx-1 ΔV", "dgx-1 ΔV"},
		{"a\x1b[31mb", `a\x1b[31mb`, `a\x1b[31mb`},
		{"a\nb\tc\r", `a\nb\tc\r`, "a\nb\tc" + `\r`},
		{"a\u202eb\u009bc", `a\u202eb\u009bc`, `a\u202eb\u009bc`},
		{"a\xffb", `a\xffb`, `a\xffb`},
		{`it's "x"`, `it's "x"`, `it's "x"`},
	} {
		if got := Line(tc.text); got != tc.line {
			t.Errorf("Line(%q) = %s, want %s", tc.text, got, tc.line)
		}
		if got := Lines(tc.text); got != tc.lines {
			t.Errorf("Lines(%q) = %s, want %s", tc.text, got, tc.lines)
		}
	}
}
