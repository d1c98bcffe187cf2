// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
)

// WriteJSON writes the report as one JSON document.
func WriteJSON(w io.Writer, r *Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// marks stand in front of findings.
var marks = map[Level]string{OK: "ok", Info: "info", NotChecked: "?", Warning: "WARNING", Error: "ERROR"}

// WriteText writes the report for people.
func WriteText(w io.Writer, r *Report) error {
	var b strings.Builder
	for _, f := range r.Findings {
		text := f.Problem
		if f.Object != "" {
			text = f.Object + ": " + text
		}
		if f.Level == NotChecked {
			text = "not checked: " + text
		}
		fmt.Fprintf(&b, "%-7s  %-16s  %s\n", marks[f.Level], f.Check, printable.Line(text))
		if f.Level == OK || f.Level == NotChecked {
			continue
		}
		if f.Why != "" {
			fmt.Fprintf(&b, "%27s%s\n", "why:  ", printable.Line(f.Why))
		}
		if f.Mend != "" {
			fmt.Fprintf(&b, "%27s%s\n", "mend: ", printable.Line(f.Mend))
		}
	}
	fmt.Fprintf(&b, "\n%s, %s, %s not checked\n", several(r.Errors, "error"), several(r.Warnings, "warning"), itoa(r.NotChecked))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
