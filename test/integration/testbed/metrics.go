// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/topodra/topodra/test/cluster"
)

// Metrics are the samples of one scrape: name with labels, as in the text format, to value.
type Metrics map[string]float64

// Metrics scrapes the scheduler.
func (b *Bed) Metrics(t testing.TB) Metrics {
	t.Helper()
	metrics, err := readMetrics(t.Context(), b.Scheduler(t))
	if err != nil {
		t.Fatal(err)
	}
	return metrics
}

// Sum adds up the samples of a name that have all the labels, given as `label="value"`.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for sample, value := range m {
		base, rest, _ := strings.Cut(sample, "{")
		if base != name {
			continue
		}
		matches := true
		for _, label := range labels {
			matches = matches && (strings.Contains(rest, label+",") || strings.Contains(rest, label+"}"))
		}
		if matches {
			sum += value
		}
	}
	return sum
}

// Has tells whether there is a sample of the name.
func (m Metrics) Has(name string) bool {
	for sample := range m {
		if base, _, _ := strings.Cut(sample, "{"); base == name {
			return true
		}
	}
	return false
}

// readMetrics scrapes a scheduler.
func readMetrics(ctx context.Context, process *cluster.Process) (Metrics, error) {
	data, err := process.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	metrics := Metrics{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("reading metrics of %q: line %q has no value", process.Name, line)
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("reading metrics of %q: line %q: %w", process.Name, line, err)
		}
		metrics[line[:at]] = value
	}
	return metrics, nil
}
