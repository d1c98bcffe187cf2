// SPDX-License-Identifier: Apache-2.0

package hack

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// lines runs a command and returns the lines of its standard output.
func lines(t *testing.T, name string, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return strings.Fields(string(out))
}

// TestPackages checks that `make test` leaves no package out, and that packages are where they belong.
func TestPackages(t *testing.T) {
	groups := map[string][]string{}
	var all []string
	for _, group := range []string{"pure", "kube", "process"} {
		groups[group] = lines(t, "./packages.sh", group)
		all = append(all, groups[group]...)
	}
	slices.Sort(all)
	want := lines(t, "go", "list", module+"...")
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Errorf("packages of all groups:\n%s\nwant each one of\n%s\nonce", strings.Join(all, "\n"), strings.Join(want, "\n"))
	}
	for name, group := range map[string]string{
		"topology": "pure", "api": "pure", "hack": "pure", "cmd/driver": "pure",
		"cmd/scheduler": "kube", "plugins/topologydra": "kube", "plugins/internal/kube": "kube",
		"test/cluster": "process", "test/cluster/cmd/topodra-cluster": "process",
	} {
		if !slices.Contains(groups[group], module+name) {
			t.Errorf("package %s is not in group %q", name, group)
		}
	}
	libraries := lines(t, "./packages.sh", "kube-libraries")
	if slices.Contains(libraries, module+"cmd/scheduler") || !slices.Contains(libraries, module+"plugins/topologydra") {
		t.Errorf("libraries: got %q, want the plugins without the programs", libraries)
	}
}

// TestPackagesUsage checks that an unknown group is an error and not an empty list, which would pass every test.
func TestPackagesUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"no-such-group"}, {"pure", "kube"}} {
		if out, err := exec.CommandContext(t.Context(), "./packages.sh", args...).Output(); err == nil || len(out) > 0 {
			t.Errorf("%q: got %q, %v, want an error and no output", args, out, err)
		}
	}
}
