// SPDX-License-Identifier: Apache-2.0

package hack

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/topodra/topodra/"

// verifyImports runs the script on the working tree with files planted in it, and returns the lines of its report.
func verifyImports(t *testing.T, planted map[string]string) (report []string, failed bool) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for path, text := range planted {
		file := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, path)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "./verify-imports.sh", "-overlay", overlayFile).CombinedOutput()
	report = strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	return report, err != nil
}

// file is the source of a package that imports the given paths; "./" stands for this module.
func file(name string, imports ...string) string {
	var text strings.Builder
	text.WriteString("package " + name + "\n")
	for _, path := range imports {
		if own, ok := strings.CutPrefix(path, "./"); ok {
			path = module + own
		}
		text.WriteString("import _ \"" + path + "\"\n")
	}
	return text.String()
}

// TestVerifyImportsClean checks that the tree as it is passes.
func TestVerifyImportsClean(t *testing.T) {
	report, failed := verifyImports(t, nil)
	if failed || len(report) != 1 || report[0] != "" {
		t.Errorf("got %q, failed = %t, want silent success", report, failed)
	}
}

// TestVerifyImportsPlanted plants at least one violation of each rule and checks that exactly those are reported.
func TestVerifyImportsPlanted(t *testing.T) {
	const (
		heavy = "k8s.io/kubernetes/pkg/util/slice" // small, but Kubernetes' own code
		alloc = "k8s.io/dynamic-resource-allocation/structured/schedulerapi"
		nvml  = "github.com/NVIDIA/go-nvml/pkg/nvml"
	)
	report, failed := verifyImports(t, map[string]string{
		"topology/planted/a.go":                  file("planted", "strings", "github.com/google/go-cmp/cmp"),
		"topology/planted2/a.go":                 file("planted2", "./internal/planted"),
		"topology/topotest/planted/a.go":         file("planted", "testing", "github.com/google/go-cmp/cmp"), // allowed
		"internal/planted/a.go":                  file("planted"),
		"api/planted.go":                         file("api", "./topology/planted3"),
		"topology/planted3/a.go":                 file("planted3"),
		"api/planted/a.go":                       file("planted", heavy),
		"driver/planted/a.go":                    file("planted"),
		"webhook/planted/a.go":                   file("planted", "./driver/planted"),
		"plugins/planted/a.go":                   file("planted", heavy, alloc, "./plugins/internal/planted"),
		"plugins/internal/planted/a.go":          file("planted", "./driver/planted"),
		"plugins/internal/kube/planted/a.go":     file("planted", heavy, alloc), // allowed
		"driver/planted2/a.go":                   file("planted2", nvml, "./plugins/planted2"),
		"plugins/planted2/a.go":                  file("planted2"),
		"driver/nvml/planted/a.go":               file("planted", nvml), // allowed
		"cmd/planted/a.go":                       file("main", "./driver/nvml/planted", "./topology/topotest/planted"),
		"cmd/scheduler/planted/a.go":             file("main", heavy, "./driver/planted"),
		"cmd/driver/planted/a.go":                file("main", "./plugins/planted2"),
		"topology/planted3/only_test.go":         file("planted3", "testing", heavy), // tests may
		"test/planted/a.go":                      file("planted", heavy, "./topology/topotest/planted", "./driver/planted", "./plugins/planted2"),
		"internal/planted/needs_test_package.go": file("planted", "./test/planted2"),
		"test/planted2/a.go":                     file("planted2"),
	})
	if !failed {
		t.Error("the script succeeded")
	}
	clean, _ := verifyImports(t, nil) // what is wrong without us is not this test's concern
	var got []string
	for _, line := range report {
		if slices.Contains(clean, line) && !strings.HasPrefix(line, "import directions") {
			continue
		}
		violation, _, _ := strings.Cut(line, ": ")
		got = append(got, violation)
	}
	want := []string{
		"./api depends on ./topology/planted3",
		"./api/planted depends on " + heavy, // by the rule for the wire contract
		"./api/planted depends on " + heavy, // and by the one for everything
		"./cmd/driver/planted depends on ./plugins/planted2",
		"./cmd/planted depends on ./topology/topotest/planted",
		"./cmd/scheduler/planted depends on ./driver/planted",
		"./driver/planted2 depends on ./plugins/planted2",
		"./driver/planted2 depends on " + nvml,
		"./internal/planted depends on ./test/planted2",
		"./plugins/internal/planted depends on ./driver/planted",
		"./plugins/planted depends on ./driver/planted",
		"./plugins/planted depends on " + alloc,
		"./topology/planted depends on github.com/google/go-cmp/cmp",
		"./topology/planted depends on github.com/google/go-cmp/cmp/internal/diff",
		"./topology/planted depends on github.com/google/go-cmp/cmp/internal/flags", // three are enough
		"./topology/planted2 depends on ./internal/planted",
		"./topology/planted2 depends on ./test/planted2",
		"./webhook/planted depends on ./driver/planted",
		"import directions are violated; see the rules in verify-imports.sh",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
