// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/topodra/topodra/sim/policy"
)

const recordings = "../../topology/topotest/machines"

// call runs a command line.
func call(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(t.Context(), args, &o, &e)
	return status, o.String(), e.String()
}

func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "jobs.csv")
	if err := os.WriteFile(file, []byte("name,gpus,arrival_s,duration_s\na,2,0,10\nb,4,1,10\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errOut := call(t, "run", "--machines", recordings, "--out", filepath.Join(dir, "out"), "--cluster", "1*a30_4x_pairs",
		"--jobs", file, "--seeds", "2", "--warm-up", "0", "--audit", "--policies", "topodra,first-fit")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	if !strings.Contains(out, "| topodra | 1.000 ± 0.000 |") || !strings.Contains(errOut, "100 %") {
		t.Errorf("output:\n%s\n%s", out, errOut)
	}
	runs, err := os.ReadFile(filepath.Join(dir, "out", "runs.csv"))
	if err != nil || !strings.Contains(string(runs), "run,first-fit,2,wait_s_k4,9\n") {
		t.Errorf("runs (%v):\n%s", err, runs)
	}
	for _, name := range []string{"summary.csv", "times.csv", "tables.md", "report.html", "sim-run-quality.svg"} {
		if info, err := os.Stat(filepath.Join(dir, "out", name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGenerated(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--mix", "shared", "--count", "50", "--bandwidth", "--fifo"}, {"--mix", "whole", "--count", "50", "--load", "0.5"}, {"--fill", "default", "--at", "90"},
	} {
		args = append([]string{"run", "--machines", recordings, "--out", t.TempDir(), "--cluster", "4*dgx1v_8xv100", "--seeds", "1", "--policies", "topodra"}, args...)
		if status, out, errOut := call(t, args...); status != 0 || !strings.Contains(out, "| topodra |") {
			t.Errorf("%v: status %d\n%s\n%s", args, status, out, errOut)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"run"}, "[jobs mix fill]"},
		{[]string{"run", "--mix", "odd"}, "expected whole or shared"},
		{[]string{"run", "--mix", "whole", "--seeds", "0"}, "at least one seed"},
		{[]string{"run", "--mix", "whole", "--policies", "odd"}, `there is none, known are topodra`},
		{[]string{"run", "--mix", "whole", "--cluster", "odd"}, "COUNT*MACHINE"},
		{[]string{"run", "--jobs", "nowhere.csv"}, "nowhere.csv"},
		{[]string{"study", "--only", "odd"}, "no scenario starts with odd"},
		{[]string{"study", "--write"}, "--document"},
		{[]string{"odd"}, "odd"},
	} {
		args := tc.args
		if args[0] == "run" {
			args = append(args, "--machines", recordings, "--out", t.TempDir())
		}
		if status, _, errOut := call(t, args...); status != 1 || !strings.Contains(errOut, tc.want) {
			t.Errorf("%v: status %d, %q, want %q", args, status, errOut, tc.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	status, out, _ := call(t, "policies")
	if status != 0 || strings.Count(out, "\n") != len(policy.Names()) || !strings.Contains(out, "fgd ") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if status, out, _ := call(t); status != 0 || !strings.Contains(out, "study") {
		t.Errorf("without arguments: status %d:\n%s", status, out)
	}
}
