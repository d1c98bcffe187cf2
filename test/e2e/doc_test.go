// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocNamesAllTests: doc.go says what is tested where, and about nothing that is not there.
func TestDocNamesAllTests(t *testing.T) {
	t.Parallel()
	find := func(pattern *regexp.Regexp, file string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, match := range pattern.FindAllSubmatch(text, -1) {
			names = append(names, string(match[1]))
		}
		return names
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, file := range append(files, filepath.Join("..", "node", "node_e2e_test.go")) {
		for _, name := range find(regexp.MustCompile(`(?m)^func (Test\w+)\(`), file) {
			// Of package node, only what is of interest here; and this test is not about a node.
			if name != "TestNode" && name != "TestDocNamesAllTests" {
				want = append(want, name)
			}
		}
	}
	got := find(regexp.MustCompile(`\b(Test[A-Z]\w+)`), "doc.go")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(slices.Compact(want), slices.Compact(got)); diff != "" {
		t.Errorf("tests in doc.go (-there are +it names):\n%s", diff)
	}
}
