// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// measured is a run with one figure for latency and one for throughput.
func measured(milliseconds, podsPerSecond, heap float64) *Figures {
	return &Figures{MeanMilliseconds: milliseconds, P99Milliseconds: 2 * milliseconds, PodsPerSecond: podsPerSecond, CPUMilliseconds: 1, HeapMiB: heap}
}

func TestRatioOf(t *testing.T) {
	t.Parallel()
	latency := Measures()[0]
	pairs := []Pair{
		{measured(100, 10, 1), measured(50, 20, 1)}, {measured(200, 5, 1), measured(20, 20, 1)}, {measured(10, 100, 1), measured(10, 100, 1)},
	}
	if got, want := RatioOf(pairs, latency), (Ratio{Median: 0.5, Low: 0.1, High: 1}); got != want {
		t.Errorf("three pairs: got %v, want %v", got, want)
	}
	if got, want := RatioOf(pairs[:2], latency), (Ratio{Median: 0.3, Low: 0.1, High: 0.5}); got != want {
		t.Errorf("two pairs: got %v, want %v", got, want)
	}
	if got := RatioOf(nil, latency); !math.IsNaN(got.Median) {
		t.Errorf("no pair: got %v", got)
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	got := Targets(map[Key][]Pair{
		{"quads", 500}:  {{measured(100, 10, 100), measured(20, 60, 100)}},
		{"quads", 2000}: {{measured(200, 10, 100), measured(40, 20, 131)}},
		{"quads", 5000}: {{measured(400, 5, 100), measured(41, 15, 100)}},
		{"full", 100}:   {{measured(100, math.NaN(), 100), measured(111, math.NaN(), 100)}},
	})
	want := []Target{
		{Text: "full, 100 nodes: not slower than in-tree", Ratio: 1.11, Limit: 1.1},
		{Text: "full, 100 nodes: memory against in-tree", Ratio: 1, Limit: 1.3},
		{Text: "quads, 500 nodes: not slower than in-tree", Ratio: 0.2, Limit: 1.1},
		{Text: "quads, 500 nodes: memory against in-tree", Ratio: 1, Limit: 1.3},
		{Text: "quads, 2000 nodes: attempt latency against in-tree", Ratio: 0.2, Limit: 0.2},
		{Text: "quads, 2000 nodes: throughput against in-tree", Ratio: 2, Limit: 2, AtLeast: true},
		{Text: "quads, 2000 nodes: not slower than in-tree", Ratio: 0.2, Limit: 1.1},
		{Text: "quads, 2000 nodes: memory against in-tree", Ratio: 1.31, Limit: 1.3},
		{Text: "quads, 5000 nodes: not slower than in-tree", Ratio: 0.1025, Limit: 1.1},
		{Text: "quads, 5000 nodes: memory against in-tree", Ratio: 1, Limit: 1.3},
		{Text: "quads, 5000 nodes: attempt latency against our own at 500", Ratio: 2.05, Limit: 2},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	var met []bool
	for _, target := range got {
		met = append(met, target.Met())
	}
	if diff := cmp.Diff([]bool{false, true, true, true, true, true, true, false, true, true, false}, met); diff != "" {
		t.Errorf("met (-want +got):\n%s", diff)
	}
	if (Target{Ratio: math.NaN(), Limit: 2, AtLeast: true}).Met() || (Target{Ratio: math.NaN(), Limit: 2}).Met() {
		t.Error("what was not measured is met")
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	const attempts = `{"data":{"Average":12.5,"Perc99":40},"unit":"ms","labels":{"Metric":"scheduler_scheduling_attempt_duration_seconds","result":"scheduled"}}`
	const failures = `{"data":{"Average":99},"unit":"ms","labels":{"Metric":"scheduler_scheduling_attempt_duration_seconds","result":"unschedulable"}}`
	const throughput = `{"data":{"Average":30},"unit":"pods/s","labels":{"Metric":"SchedulingThroughput"}}`
	const used = `{"cpuSeconds":3,"heapBytes":2097152,"goroutinesGrown":4,"scheduled":60}`
	for name, tc := range map[string]struct {
		data, usage string
		want        *Figures
		message     string
	}{
		"all": {attempts + "," + failures + "," + throughput, used,
			&Figures{PodsPerSecond: 30, MeanMilliseconds: 12.5, P99Milliseconds: 40, CPUMilliseconds: 50, HeapMiB: 2, GoroutinesGrown: 4, Pods: 60}, ""},
		"too short for a throughput": {attempts, used,
			&Figures{PodsPerSecond: math.NaN(), MeanMilliseconds: 12.5, P99Milliseconds: 40, CPUMilliseconds: 50, HeapMiB: 2, GoroutinesGrown: 4, Pods: 60}, ""},
		"nothing placed": {failures + "," + throughput, used, nil, "no attempt that placed a pod"},
		"another unit":   {strings.Replace(attempts, `"ms"`, `"s"`, 1), used, nil, `in "s", want ms`},
		"no JSON":        {"{", used, nil, "reading"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, usage := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "usage")
			for path, content := range map[string]string{data: `{"version":"v1","dataItems":[` + tc.data + `]}`, usage: tc.usage} {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Read(data, usage)
			if tc.message != "" {
				if err == nil || !strings.Contains(err.Error(), tc.message) {
					t.Errorf("got error %v, want %q in it", err, tc.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("figures (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := Print(&out, map[Key][]Pair{{"quads", 100}: {{measured(100, 10, 10), measured(50, 20, 20)}}}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| quads | 100   | attempt mean, ms   | 100     | 50      | 0.500 | 0.500 | 0.500 |",
		"| quads | 100   | throughput, pods/s | 10      | 20      | 2.000 | 2.000 | 2.000 |",
		"met     quads, 100 nodes: not slower than in-tree: 0.500, wanted at most 1.1",
		"MISSED  quads, 100 nodes: memory against in-tree: 2.000, wanted at most 1.3",
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("the line %q is missing in\n%s", line, out.String())
		}
	}
}
