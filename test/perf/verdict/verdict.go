// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
)

// Figures are what one run measured. NaN is what it did not.
type Figures struct {
	// PodsPerSecond that were scheduled.
	PodsPerSecond float64
	// MeanMilliseconds and P99Milliseconds of a scheduling attempt that placed a
	// pod. The p99 is read from a histogram and is as coarse as its buckets.
	MeanMilliseconds, P99Milliseconds float64
	// CPUMilliseconds per pod, of scheduler, API server and controllers together.
	CPUMilliseconds float64
	// HeapMiB that was live at the end, of all of these.
	HeapMiB float64
	// GoroutinesGrown is how many more there were at the end than at the start.
	GoroutinesGrown float64
	// Pods that were scheduled while it was measured.
	Pods float64
}

// dataItems is the file of scheduler_perf.
type dataItems struct {
	DataItems []struct {
		Data   map[string]float64 `json:"data"`
		Unit   string             `json:"unit"`
		Labels map[string]string  `json:"labels"`
	} `json:"dataItems"`
}

// usage is the file of our benchmark.
type usage struct {
	CPUSeconds      float64 `json:"cpuSeconds"`
	HeapBytes       float64 `json:"heapBytes"`
	GoroutinesGrown float64 `json:"goroutinesGrown"`
	Scheduled       float64 `json:"scheduled"`
}

// Read reads the two files of a run.
func Read(dataPath, usagePath string) (*Figures, error) {
	var data dataItems
	if err := decode(dataPath, &data); err != nil {
		return nil, err
	}
	var used usage
	if err := decode(usagePath, &used); err != nil {
		return nil, err
	}
	f := &Figures{
		PodsPerSecond: math.NaN(), MeanMilliseconds: math.NaN(), P99Milliseconds: math.NaN(),
		Pods: used.Scheduled, CPUMilliseconds: used.CPUSeconds * 1000 / used.Scheduled,
		HeapMiB: used.HeapBytes / (1 << 20), GoroutinesGrown: used.GoroutinesGrown,
	}
	for _, item := range data.DataItems {
		switch {
		case item.Labels["Metric"] == "SchedulingThroughput":
			// Runs of less than a few seconds have none.
			if average, ok := item.Data["Average"]; ok {
				f.PodsPerSecond = average
			}
		case item.Labels["Metric"] == "scheduler_scheduling_attempt_duration_seconds" && item.Labels["result"] == "scheduled":
			if item.Unit != "ms" {
				return nil, fmt.Errorf("reading %s: attempts are measured in %q, want ms", dataPath, item.Unit)
			}
			f.MeanMilliseconds, f.P99Milliseconds = item.Data["Average"], item.Data["Perc99"]
		}
	}
	if math.IsNaN(f.MeanMilliseconds) {
		return nil, fmt.Errorf("reading %s: no attempt that placed a pod is in it", dataPath)
	}
	return f, nil
}

// decode reads a JSON file.
func decode(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what a run measured: %w", err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// Pair is two runs of one case, one after the other.
type Pair struct {
	InTree, Ours *Figures
}

// Measure is one of the figures.
type Measure struct {
	Name, Unit string
	Of         func(*Figures) float64
	// MoreIsBetter is true for throughput only.
	MoreIsBetter bool
}

// Measures in the order in which they are printed.
func Measures() []Measure {
	return []Measure{
		{"attempt mean", "ms", func(f *Figures) float64 { return f.MeanMilliseconds }, false},
		{"attempt p99", "ms", func(f *Figures) float64 { return f.P99Milliseconds }, false},
		{"throughput", "pods/s", func(f *Figures) float64 { return f.PodsPerSecond }, true},
		{"CPU per pod", "ms", func(f *Figures) float64 { return f.CPUMilliseconds }, false},
		{"live heap", "MiB", func(f *Figures) float64 { return f.HeapMiB }, false},
	}
}

// Ratio is ours divided by in-tree.
type Ratio struct {
	Median, Low, High float64
}

// RatioOf compares the pairs by one measure. Without pairs all is NaN.
func RatioOf(pairs []Pair, m Measure) Ratio {
	ratios := make([]float64, len(pairs))
	for i, p := range pairs {
		ratios[i] = m.Of(p.Ours) / m.Of(p.InTree)
	}
	if len(ratios) == 0 {
		return Ratio{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(ratios)
	return Ratio{Median(ratios), ratios[0], ratios[len(ratios)-1]}
}

// Median of values, which need not be sorted; NaN without any.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Target is a bound for a ratio.
type Target struct {
	// Text says it in words.
	Text string
	// Ratio is what was measured.
	Ratio float64
	// Limit is the highest, or with AtLeast the lowest, ratio that meets it.
	Limit   float64
	AtLeast bool
}

// Met says whether the target is met. What was not measured is not met.
func (t Target) Met() bool {
	if t.AtLeast {
		return t.Ratio >= t.Limit
	}
	return t.Ratio <= t.Limit
}

// Key says which case was run on how many nodes.
type Key struct {
	Case  string
	Nodes int
}

// Targets compares all results with what is wanted: at 2,000 nodes a fifth of in-tree's
// latency and twice its throughput; a latency that at most doubles from 500 to 5,000
// nodes; no case slower than in-tree by more than a tenth; at most 1.3 times its memory.
// Only cases that were run are judged.
func Targets(results map[Key][]Pair) []Target {
	measures := Measures()
	latency, throughput, memory := measures[0], measures[2], measures[4]
	var targets []Target
	for _, key := range sortedKeys(results) {
		pairs := results[key]
		name := fmt.Sprintf("%s, %d nodes: ", key.Case, key.Nodes)
		if key.Nodes == 2000 {
			targets = append(targets,
				Target{Text: name + "attempt latency against in-tree", Ratio: RatioOf(pairs, latency).Median, Limit: 0.2},
				Target{Text: name + "throughput against in-tree", Ratio: RatioOf(pairs, throughput).Median, Limit: 2, AtLeast: true})
		}
		targets = append(targets,
			Target{Text: name + "not slower than in-tree", Ratio: RatioOf(pairs, latency).Median, Limit: 1.1},
			Target{Text: name + "memory against in-tree", Ratio: RatioOf(pairs, memory).Median, Limit: 1.3})
		if small := results[Key{key.Case, 500}]; key.Nodes == 5000 && len(small) > 0 {
			targets = append(targets, Target{
				Text:  name + "attempt latency against our own at 500",
				Ratio: ours(pairs, latency) / ours(small, latency), Limit: 2,
			})
		}
	}
	return targets
}

// ours is the median of our own figures.
func ours(pairs []Pair, m Measure) float64 {
	values := make([]float64, len(pairs))
	for i, p := range pairs {
		values[i] = m.Of(p.Ours)
	}
	return Median(values)
}

// sortedKeys orders results by case and size.
func sortedKeys(results map[Key][]Pair) []Key {
	keys := make([]Key, 0, len(results))
	for key := range results {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Case, b.Case), cmp.Compare(a.Nodes, b.Nodes))
	})
	return keys
}
