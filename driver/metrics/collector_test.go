// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce/hamicore/region"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

// TestExposition pins every byte of a scrape, and that its names are well made.
func TestExposition(t *testing.T) {
	t.Parallel()
	n := newNode()
	n.measure(5 * time.Second)
	got := scrape(t, n.collector(t, false))
	want, err := os.ReadFile(filepath.Join("testdata", "exposition.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
	problems, err := testutil.NewPromLinter(strings.NewReader(got)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if !strings.Contains(problem.Text, "not have a stability level") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
	for _, family := range Families(false) {
		if !strings.HasPrefix(family.Name, "topodra_") || !strings.HasSuffix(family.Help, ".") {
			t.Errorf("%s: %q", family.Name, family.Help)
		}
		if len(lines(got, family.Name+"{"))+len(lines(got, family.Name+" ")) == 0 {
			t.Errorf("%s is not in the fixture", family.Name)
		}
	}
}

// TestBeforeAnything: a driver that only starts tells nothing that it does not
// know, and a minimal one works.
func TestBeforeAnything(t *testing.T) {
	t.Parallel()
	minimal, err := New(Options{NodeName: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(scrape(t, minimal)) {
		if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("got %s", line)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no node name is accepted")
	}
	if _, err := New(Options{NodeName: "n", Regions: &Regions{}}); err == nil {
		t.Error("regions from nowhere are accepted")
	}
}

// TestAtOnce: what a claim promises is told before its containers are there, and
// moves to them when they are.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode()
	made := n.owners
	n.owners = nil
	c := n.collector(t, false)
	const name = "topodra_container_gpu_memory_limit_bytes"
	want := []string{
		name + `{claim="cdi",container="work",device_uuid="GPU-1",namespace="team",pod="batch"} 8.589934592e+09`,
		name + `{claim="quarter",container="",device_uuid="GPU-0",namespace="default",pod="train"} 2.147483648e+10`,
		name + `{claim="quarter",container="",device_uuid="GPU-1",namespace="default",pod="train"} 1.073741824e+10`,
	}
	if diff := cmp.Diff(want, lines(scrape(t, c), name+"{")); diff != "" {
		t.Error(diff)
	}
	n.owners = made
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], `container=""`, `container="main"`)
	}
	if diff := cmp.Diff(want, lines(scrape(t, c), name+"{")); diff != "" {
		t.Error(diff)
	}
	// Who was found out when the claim was prepared is told before the runtime has
	// made anything, and the runtime's word adds to it.
	n.owners = nil
	n.document.Claims["u1"].Users = []checkpoint.User{{Pod: "p1", Container: "main", Index: 1, Devices: []int{0, 1}}, {Pod: "other", Container: "x", Devices: []int{0}}}
	for range 2 {
		if diff := cmp.Diff(want, lines(scrape(t, c), name+"{")); diff != "" {
			t.Error(diff)
		}
		n.owners = made
	}
	if got := lines(scrape(t, n.collector(t, true)), `hami_vgpu_memory_allocated_bytes{container_index="1",device_uuid="GPU-0",namespace="default"`); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// TestVanish: no series outlives its claim, container, GPU or sample.
func TestVanish(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(n *node)
		gone   []string // must not be in any sample
	}{
		"claim": {func(n *node) { delete(n.document.Claims, "u3") }, []string{`claim="cdi"`, `pod="batch"`}},
		"claim and container": {func(n *node) {
			delete(n.document.Claims, "u1")
			n.owners = nil
		}, []string{`claim="quarter"`, `pod="train"`, `container="main"`, "region"}},
		"container": {func(n *node) { n.owners = nil }, []string{`container="main"`, "topodra_container_gpu_memory_used_bytes", "topodra_container_gpu_reported_last"}},
		"GPU": {func(n *node) {
			n.devices, n.health = n.devices[1:], n.health[1:]
			delete(n.document.Claims, "u1")
			delete(n.document.Claims, "u4")
			n.owners = nil
		}, []string{`"GPU-0"`}},
		"MIG GPU":     {func(n *node) { n.devices = n.devices[:2] }, []string{`topodra_gpu_info{device="mig-a"`, `topodra_gpu_memory_used_bytes{device_uuid="GPU-2"`}},
		"old sample":  {func(n *node) { n.measure(maxUsageAge + 1) }, []string{"topodra_gpu_memory_used", "topodra_gpu_utilization", "topodra_container_gpu_memory_used", "topodra_container_gpu_utilization"}},
		"no sample":   {func(n *node) { n.observation = nil }, []string{"topodra_driver_usage_age_seconds", "topodra_gpu_memory_used"}},
		"checkpoint":  {func(n *node) { n.document, n.documentErr = newNode().document, errors.New("corrupt") }, []string{`claim="cdi"`, "topodra_container_gpu_memory_allocated"}},
		"all devices": {func(n *node) { n.devices = nil }, []string{"topodra_gpu_info", "topodra_gpu_memory_total", "topodra_gpu_shares", "topodra_gpu_memory_used"}},
	} {
		n := newNode()
		n.measure(0)
		c := n.collector(t, false)
		before := scrape(t, c)
		test.change(n)
		c.SetDevices(n.devices)
		after := scrape(t, c)
		for _, text := range test.gone {
			isThere := func(all string) bool {
				return slices.ContainsFunc(lines(all, "topodra_"), func(line string) bool {
					return strings.Contains(line, text) && !strings.HasPrefix(line, "topodra_driver_regions")
				})
			}
			if text != "region" && !isThere(before) {
				t.Errorf("%s: %s was never there", name, text)
			}
			if isThere(after) {
				t.Errorf("%s: %s is still there", name, text)
			}
		}
		if len(lines(after, "topodra_")) >= len(lines(before, "topodra_")) {
			t.Errorf("%s: %d samples before, %d after", name, len(lines(before, "topodra_")), len(lines(after, "topodra_")))
		}
	}
}

// TestFailures: what cannot be read is counted, and the rest is told.
func TestFailures(t *testing.T) {
	t.Parallel()
	n := newNode()
	n.documentErr, n.ownersErr = errors.New("corrupt"), errors.New("one is damaged")
	c := n.collector(t, false)
	scrape(t, c)
	got := scrape(t, c)
	want := []string{`topodra_driver_scrape_failures_total{source="checkpoint"} 2`, `topodra_driver_scrape_failures_total{source="containers"} 2`}
	if diff := cmp.Diff(want, lines(got, "topodra_driver_scrape_failures_total{")); diff != "" {
		t.Error(diff)
	}
	if len(lines(got, "topodra_gpu_info{")) != 3 || len(lines(got, "topodra_container_gpu_reported_memory_used_bytes{")) != 2 {
		t.Errorf("got %s", got)
	}
}

// TestRegions: what is skipped is counted by reason; nothing is read again within
// a few seconds, and nothing is told of what is not there any more.
func TestRegions(t *testing.T) {
	t.Parallel()
	n := newNode()
	c := n.collector(t, false)
	read, inner := map[string]int{}, c.regions.read
	c.regions.read = func(path string) (*region.Region, error) {
		read[path]++
		return inner(path)
	}
	const one, other = "/c/id1/vgpu.cache", "/q/u3/p3/work/vgpu.cache"
	check := func(step string, reads, told int, counts ...string) {
		t.Helper()
		got := scrape(t, c)
		if read[one] != reads || len(lines(got, "topodra_container_gpu_reported_memory_used_bytes{")) != told {
			t.Errorf("%s: read %d times, want %d; got %q", step, read[one], reads, lines(got, "topodra_container_gpu_reported"))
		}
		var nonzero []string
		for _, line := range lines(got, "topodra_driver_regions_") {
			if name, _ := strings.CutPrefix(line, "topodra_driver_regions_"); !strings.HasSuffix(line, " 0") {
				nonzero = append(nonzero, name)
			}
		}
		if diff := cmp.Diff(counts, nonzero); diff != "" {
			t.Errorf("%s: %s", step, diff)
		}
	}
	check("first", 1, 3, "read_total 2")
	n.now = n.now.Add(regionAge - 1)
	check("at once", 1, 3, "read_total 2")
	n.now = n.now.Add(1)
	n.regions[one].Torn = 2
	check("later", 2, 3, "read_total 4", `skipped_total{reason="torn"} 2`)
	n.now = n.now.Add(regionAge)
	n.regionErrs = map[string]error{one: &region.Error{Reason: region.ReasonKind, Err: errors.New("a pipe")}}
	check("pipe", 3, 1, "read_total 5", `skipped_total{reason="kind"} 1`, `skipped_total{reason="torn"} 2`)
	n.now = n.now.Add(regionAge)
	n.regionErrs = nil
	n.regions[one].GPUs, n.regions[one].Torn = 3, 0
	check("too many GPUs", 4, 1, "read_total 6", `skipped_total{reason="counts"} 1`, `skipped_total{reason="kind"} 1`, `skipped_total{reason="torn"} 2`)
	n.now = n.now.Add(regionAge)
	n.regions[one], n.regions[other] = &region.Region{}, nil
	delete(n.regions, other)
	check("empty and missing", 5, 0, "read_total 7", `skipped_total{reason="counts"} 1`, `skipped_total{reason="kind"} 1`, `skipped_total{reason="torn"} 2`)
	n.owners = nil
	check("gone", 5, 0, "read_total 7", `skipped_total{reason="counts"} 1`, `skipped_total{reason="kind"} 1`, `skipped_total{reason="torn"} 2`)
	if len(c.regions.readings) != 1 {
		t.Errorf("remembers %v", c.regions.readings)
	}
}

// TestSums: shares of one device add up; one without limit takes all limits away,
// and a container that was started anew is told once.
func TestSums(t *testing.T) {
	t.Parallel()
	n := newNode()
	unlimited := share("c", "GPU-0", 1<<10, 5)
	unlimited.Limit = nil
	n.document.Claims = map[types.UID]*checkpoint.Claim{
		"u1": {Namespace: "d", Name: "two", Consumers: []checkpoint.Consumer{{Name: "p", UID: "p"}}, Devices: []checkpoint.Device{share("a", "GPU-0", 1<<10, 60), share("b", "GPU-0", 2<<10, 40), share("c", "GPU-1", 1<<10, 10), share("d", "GPU-1", 1<<10, 0)}},
		"u2": {Namespace: "d", Name: "mix", Consumers: []checkpoint.Consumer{{Name: "p", UID: "p"}}, Devices: []checkpoint.Device{unlimited, share("b", "GPU-0", 2<<10, 5)}},
	}
	twice := &owners.Owner{Namespace: "d", Pod: "p", Container: "c", GPUs: []owners.GPU{{UUID: "GPU-0", Claims: []string{"mix", "two"}}}}
	n.owners = map[string]*owners.Owner{"old": twice, "new": twice}
	n.observation = &watch.Observation{At: n.now, Uses: []watch.Use{
		{ContainerID: "old", Owner: twice, GPU: &twice.GPUs[0], MemoryBytes: 1, BusyPercent: new(uint32(60))},
		{ContainerID: "new", Owner: twice, GPU: &twice.GPUs[0], MemoryBytes: 2, BusyPercent: new(uint32(60))},
	}}
	got := lines(scrape(t, n.collector(t, false)), "topodra_container_gpu_")
	const labels = `container="c",device_uuid="GPU-0",namespace="d",pod="p"`
	want := []string{
		`topodra_container_gpu_compute_allocated_ratio{claim="mix",` + labels + `} 0.1`,
		`topodra_container_gpu_compute_allocated_ratio{claim="two",` + labels + `} 1`,
		`topodra_container_gpu_compute_limit_ratio{claim="two",` + labels + `} 1`,
		`topodra_container_gpu_memory_allocated_bytes{claim="mix",` + labels + `} 3.221225472e+09`,
		`topodra_container_gpu_memory_allocated_bytes{claim="two",` + labels + `} 3.221225472e+09`,
		`topodra_container_gpu_memory_limit_bytes{claim="two",` + labels + `} 3.221225472e+09`,
		`topodra_container_gpu_memory_used_bytes{claim="mix,two",` + labels + `} 3`,
		`topodra_container_gpu_utilization_ratio{claim="mix,two",` + labels + `} 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestConcurrent: scrapes and changes at the same time, for the race detector.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	n := newNode()
	n.measure(0)
	c := n.collector(t, true)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { scrape(t, c) })
		group.Go(func() { c.SetDevices(n.devices) })
	}
	group.Wait()
}
