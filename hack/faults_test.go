// SPDX-License-Identifier: Apache-2.0

package hack

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultsHeading is the heading above the table in docs/node.md.
const faultsHeading = "## Faults seen in other drivers"

// minReason is shorter than any reason that says something.
const minReason = 30

var (
	testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	// numbers are those at the beginning of a name: TestD05V03_… and TestD11_D16_… have two.
	numbers = regexp.MustCompile(`^Test((?:[DV][0-9]{2}_?)+)`)
	number  = regexp.MustCompile(`[DV][0-9]{2}`)
)

// fault is a row of the table.
type fault struct{ number, what, answer string }

// readFaults returns the rows below the heading.
func readFaults(t *testing.T, text string) []fault {
	t.Helper()
	_, after, found := strings.Cut(text, faultsHeading+"\n")
	if !found {
		t.Fatalf("the heading %q is missing", faultsHeading)
	}
	var out []fault
	scanner := bufio.NewScanner(strings.NewReader(after))
	for scanner.Scan() {
		line := scanner.Text()
		if strings.HasPrefix(line, "## ") {
			break
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) == 3 && number.MatchString(cells[0]) {
			out = append(out, fault{number: cells[0], what: cells[1], answer: cells[2]})
		}
	}
	return out
}

// testsOf returns the test functions of the repository.
func testsOf(t *testing.T, root string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range testFunc.FindAllSubmatch(content, -1) {
			out[string(match[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// check says what is wrong with a row; "" when nothing is.
func (f *fault) check(tests map[string]bool) string {
	covered := false
	for _, match := range testName.FindAllStringSubmatch(f.answer, -1) {
		if !tests[match[1]] {
			return fmt.Sprintf("%s: there is no test function %s", f.number, match[1])
		}
		covered = covered || slices.Contains(number.FindAllString(numbers.FindString(match[1]), -1), f.number)
	}
	reason, given := strings.CutPrefix(f.answer, "Reason: ")
	switch {
	case len(f.what) < minReason/2:
		return f.number + ": the fault is not described"
	case !covered && (!given || len(reason) < minReason):
		return f.number + ": neither a test with that number in its name nor a reason"
	}
	return ""
}

// TestFaults: every fault that was found in other drivers has a test of its
// number, or a reason, in docs/node.md.
func TestFaults(t *testing.T) {
	text, err := os.ReadFile("../docs/node.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for i := range 19 {
		want = append(want, fmt.Sprintf("D%02d", i+1))
	}
	for i := range 10 {
		want = append(want, fmt.Sprintf("V%02d", i+1))
	}
	tests := testsOf(t, "..")
	for _, f := range readFaults(t, string(text)) {
		got = append(got, f.number)
		if wrong := f.check(tests); wrong != "" {
			t.Error(wrong)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table has the rows %q, want %q", got, want)
	}
}

// TestFaultsAreNoticed: the check fails where it should.
func TestFaultsAreNoticed(t *testing.T) {
	rows := readFaults(t, "# x\n"+faultsHeading+"\n\n| # | fault | test |\n|---|---|---|\n"+
		"| D01 | something that went wrong | `TestD01_Right` |\n"+
		"| D02 | something that went wrong | `TestD01V02_Other` and `TestPlain` |\n"+
		"| V02 | something that went wrong | `TestD01V02_Other` |\n"+
		"| D03 | something that went wrong | `TestD03_Missing` |\n"+
		"| D04 | something that went wrong | Reason: it cannot, since `TestPlain` shows that |\n"+
		"| D05 | something that went wrong | Reason: no |\n"+
		"| D06 | | `TestD06` |\n"+
		"| D07 | something that went wrong | nobody knows, but the text is long enough |\n"+
		"## Next\n| D08 | something that went wrong | `TestD01_Right` |\n")
	tests := map[string]bool{"TestD01_Right": true, "TestD01V02_Other": true, "TestPlain": true, "TestD06": true}
	var got []string
	for _, f := range rows {
		if wrong := f.check(tests); wrong != "" {
			got = append(got, f.number)
		}
	}
	if want := []string{"D02", "D03", "D05", "D07"}; len(rows) != 7 || !slices.Equal(got, want) {
		t.Errorf("of %d rows, %q are found wrong, want %q of 7", len(rows), got, want)
	}
}
