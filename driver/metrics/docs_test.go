// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// repository is the root of the module.
var repository = filepath.Join("..", "..")

// told is a metric that a program tells or a page documents.
type told struct {
	Kind   string
	Labels []string
}

// constructors make metrics; what follows the kind in their names does not matter.
var constructors = regexp.MustCompile(`^New(Counter|Gauge|Histogram)(Vec|Func)?$`)

// defined finds the metrics that the source files below a directory define by
// literals, without running them.
func defined(t *testing.T, dir string) map[string]told {
	t.Helper()
	out := map[string]told{}
	err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		constants := stringConstants(file)
		ast.Inspect(file, func(node ast.Node) bool {
			if name, metric, ok := metricOf(node, constants); ok {
				out[name] = metric
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// stringConstants returns the file's constants that are texts.
func stringConstants(file *ast.File) map[string]string {
	out := map[string]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
			for i, value := range spec.Values {
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					out[spec.Names[i].Name], _ = strconv.Unquote(literal.Value)
				}
			}
		}
		return true
	})
	return out
}

// metricOf reads a call that makes a metric.
func metricOf(node ast.Node, constants map[string]string) (name string, metric told, ok bool) {
	call, isCall := node.(*ast.CallExpr)
	if !isCall || len(call.Args) == 0 {
		return "", told{}, false
	}
	selector, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector {
		return "", told{}, false
	}
	match := constructors.FindStringSubmatch(selector.Sel.Name)
	if match == nil {
		return "", told{}, false
	}
	argument := call.Args[0]
	if pointer, isPointer := argument.(*ast.UnaryExpr); isPointer {
		argument = pointer.X
	}
	options, isLiteral := argument.(*ast.CompositeLit)
	if !isLiteral {
		return "", told{}, false
	}
	var parts []string
	for _, part := range []string{"Namespace", "Subsystem", "Name"} {
		for _, element := range options.Elts {
			pair, isPair := element.(*ast.KeyValueExpr)
			if !isPair {
				continue
			}
			if key, isName := pair.Key.(*ast.Ident); isName && key.Name == part {
				parts = append(parts, textOf(pair.Value, constants))
			}
		}
	}
	metric.Kind = strings.ToLower(match[1])
	if match[2] == "Vec" && len(call.Args) > 1 {
		if labels, isLiteral := call.Args[1].(*ast.CompositeLit); isLiteral {
			for _, label := range labels.Elts {
				metric.Labels = append(metric.Labels, textOf(label, constants))
			}
		}
	}
	slices.Sort(metric.Labels)
	return strings.Join(parts, "_"), metric, true
}

// textOf returns the value of a literal or constant.
func textOf(expression ast.Expr, constants map[string]string) string {
	switch expression := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(expression.Value)
		if err != nil {
			return expression.Value
		}
		return text
	case *ast.Ident:
		return constants[expression.Name]
	default:
		return "?"
	}
}

// all returns everything that the driver, the scheduler and the webhook tell by our
// own names.
func all(t *testing.T) map[string]told {
	t.Helper()
	out := map[string]told{}
	for _, dir := range []string{"driver", "plugins", "cmd"} {
		maps.Copy(out, defined(t, dir))
	}
	for _, family := range own() {
		metric := told{Kind: "gauge", Labels: family.Labels}
		if family.Counter {
			metric.Kind = "counter"
		}
		out[family.Name] = metric
	}
	return out
}

// page reads the documentation.
func page(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// codes returns what is in backquotes.
func codes(cell string) []string {
	var out []string
	for _, match := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cell, -1) {
		out = append(out, match[1])
	}
	return out
}

// rows returns the cells of table rows with so many columns whose second cell is
// accepted.
func rows(text string, columns int, accept func(second string) bool) [][]string {
	var out [][]string
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) == columns && strings.HasPrefix(cells[0], "| ") && accept(cells[1]) {
			cells[0] = strings.TrimPrefix(cells[0], "| ")
			out = append(out, cells)
		}
	}
	return out
}

// units are what the end of a name says about the unit.
var units = []struct{ suffix, unit string }{{"_bytes", "bytes"}, {"_seconds", "seconds"}, {"_ratio", "ratio"}, {"_info", "–"}, {"_state", "–"}, {"", "count"}}

// TestDocs: docs/metrics.md has every metric with its type, labels and unit, and
// none besides.
func TestDocs(t *testing.T) {
	t.Parallel()
	want := all(t)
	got := map[string]told{}
	for _, cells := range rows(page(t), 6, func(second string) bool { return slices.Contains([]string{"gauge", "counter", "histogram"}, second) }) {
		name := codes(cells[0])[0]
		labels := codes(cells[2])
		slices.Sort(labels)
		if _, twice := got[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		got[name] = told{Kind: cells[1], Labels: labels}
		for _, unit := range units {
			if strings.HasSuffix(name, unit.suffix) {
				if cells[3] != unit.unit {
					t.Errorf("%s: its unit is %q by its name, %q by its row", name, unit.unit, cells[3])
				}
				break
			}
		}
	}
	if len(want) < 40 {
		t.Fatalf("found only %d metrics", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs (-) and docs/metrics.md (+) differ; add, change or remove rows there: %s", diff)
	}
}

// TestDocsOfAliases: the same for HAMi's names.
func TestDocsOfAliases(t *testing.T) {
	t.Parallel()
	want, got := map[string][]string{}, map[string][]string{}
	for _, family := range hamiFamilies() {
		want[family.Name] = slices.DeleteFunc(slices.Clone(family.Labels), func(label string) bool { return label == "zone" })
	}
	for _, cells := range rows(page(t), 5, func(second string) bool { return second == "–" || strings.HasPrefix(second, "`") }) {
		names, former, labels := codes(cells[0]), codes(cells[1]), codes(cells[2])
		slices.Sort(labels)
		switch {
		case len(names) > 0:
			got[names[0]] = labels
			if len(former) > 0 {
				got[former[0]] = want[former[0]] // Its labels are in the text below.
			}
		case len(former) > 0:
			got[former[0]] = labels
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("driver (-) and docs/metrics.md (+) differ: %s", diff)
	}
}

// dashboard is what of a dashboard matters here.
type dashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		ID          int    `json:"id"`
		Type        string `json:"type"`
		Title       string `json:"title"`
		Description string `json:"description"`
		GridPos     struct{ H, W, X, Y int }
		FieldConfig struct {
			Defaults struct {
				Unit string `json:"unit"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
			Query      any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

// names are metrics in an expression, without what a histogram adds to them.
var names = regexp.MustCompile(`\btopodra_[a-z_]+`)

// TestDashboards: every dashboard can be read, keeps its identity, and asks only
// for metrics and labels that there are.
func TestDashboards(t *testing.T) {
	t.Parallel()
	known := all(t)
	paths, err := filepath.Glob(filepath.Join(repository, "manifests", "dashboards", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]string{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var board dashboard
		if err := json.Unmarshal(content, &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		uids[filepath.Base(path)] = board.UID
		checkDashboard(t, &board, known)
	}
	// Links and bookmarks of people have them.
	if diff := cmp.Diff(map[string]string{"gpus.json": "topodra-gpus", "scheduling.json": "topodra-scheduling"}, uids); diff != "" {
		t.Error(diff)
	}
}

// checkDashboard checks panels and variables.
func checkDashboard(t *testing.T, board *dashboard, known map[string]told) {
	t.Helper()
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, variable := range board.Templating.List {
		checkExpression(t, board.Title+", variable "+variable.Name, variable.Definition, known)
	}
	for _, panel := range board.Panels {
		what := board.Title + ", panel " + panel.Title
		place := [2]int{panel.GridPos.X, panel.GridPos.Y}
		if ids[panel.ID] || places[place] || panel.Title == "" || panel.GridPos.W == 0 || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("%s: its ID, place or title is not its own", what)
		}
		ids[panel.ID], places[place] = true, true
		if panel.Type == "row" {
			continue
		}
		if panel.Description == "" || len(panel.Targets) == 0 || panel.FieldConfig.Defaults.Unit == "" {
			t.Errorf("%s: it asks nothing, or does not say what or in which unit", what)
		}
		for _, target := range panel.Targets {
			if found := checkExpression(t, what, target.Expr, known); found == 0 {
				t.Errorf("%s: no metric in %q", what, target.Expr)
			}
		}
	}
}

// checkExpression looks for metrics that do not exist and counts the others.
func checkExpression(t *testing.T, what, expression string, known map[string]told) int {
	t.Helper()
	found := 0
	for _, name := range names.FindAllString(expression, -1) {
		metric, ok := known[name]
		if !ok {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if metric, ok = known[strings.TrimSuffix(name, suffix)]; ok && metric.Kind == "histogram" {
					break
				}
				ok = false
			}
		}
		if !ok {
			t.Errorf("%s: there is no metric %s", what, name)
		}
		if counts := strings.HasSuffix(name, "_total") || metric.Kind == "histogram"; ok && counts && !strings.Contains(expression, "rate(") && !strings.Contains(expression, "increase(") {
			t.Errorf("%s: %s only grows, and is not taken as a rate in %q", what, name, expression)
		}
		found++
	}
	if strings.Count(expression, "(") != strings.Count(expression, ")") || strings.Count(expression, "{") != strings.Count(expression, "}") {
		t.Errorf("%s: parentheses do not match in %q", what, expression)
	}
	return found
}
