// SPDX-License-Identifier: Apache-2.0

package workload_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/workload"
)

func TestReadCSV(t *testing.T) {
	t.Parallel()
	const text = `name,gpus,note,gpu_milli,gpu_cores_percent,pods,arrival_s,duration_s,cpu_milli,memory_mib,gpu_spec,communicates,slow_permille
late,2,x,,,3,2.5,10,1000,2000,V100|T4,,249
share,1,,255,,,0,,,,,true,
cores,4,,500,20,1,2.5,1e3,,,,false,
host,0,,,,,1,,500,,,,
`
	got, err := workload.ReadCSV(strings.NewReader(text), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Job{
		{Name: "share", Pods: 1, Demand: model.Demand{GPUs: 1, MemoryMilli: 255, CoresPercent: 26, Communicates: true}},
		{Name: "host", Arrival: 1000, Pods: 1, Demand: model.Demand{CPUMilli: 500}},
		{Name: "late", Arrival: 2500, Duration: 10_000, Pods: 3, SlowPermille: 249,
			Demand: model.Demand{GPUs: 2, MemoryMilli: 1000, CoresPercent: 100, CPUMilli: 1000, HostMiB: 2000, Models: "V100|T4", Communicates: true}},
		{Name: "cores", Arrival: 2500, Duration: 1_000_000, Pods: 1, Demand: model.Demand{GPUs: 4, MemoryMilli: 500, CoresPercent: 20}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
}

func TestReadCSVOfATrace(t *testing.T) {
	t.Parallel()
	const text = `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time
a,1,2,1,460,,10,100,40
b,1,2,8,1000,,5,100,
`
	got, err := workload.ReadCSV(strings.NewReader(text), "trace")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "b" || got[0].Duration != 95_000 || got[1].Duration != 60_000 || !got[0].Demand.Communicates {
		t.Errorf("jobs: %+v", got)
	}
}

func TestReadCSVRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                    "header",
		"name,pods\n":                         `no column "gpus"`,
		"name,gpus,num_gpu\n":                 "two columns",
		"name,gpus\na,x\n":                    `line 2: column "gpus"`,
		"name,gpus\na,-1\n":                   "not in 0..",
		"name,gpus\na,99999999999\n":          "not in 0..",
		"name,gpus\na,65\n":                   "65 GPUs",
		"name,gpus\na\n":                      "wrong number of fields",
		"name,gpus,gpu_milli\na,1,0\n":        "per mille",
		"name,gpus,pods\na,1,0\n":             "0 pods",
		"name,gpus,arrival_s\na,1,-1\n":       "seconds",
		"name,gpus,arrival_s\na,1,NaN\n":      "seconds",
		"name,gpus,duration_s\na,1,1e300\n":   "seconds",
		"name,gpus,communicates\na,1,maybe\n": `column "communicates"`,
	} {
		if _, err := workload.ReadCSV(strings.NewReader(text), "jobs"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add("name,gpus,gpu_milli,arrival_s\na,1,500,3\n")
	f.Add("name,num_gpu,creation_time,deletion_time,scheduled_time\na,8,1,2,\n")
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := workload.ReadCSV(strings.NewReader(text), "fuzz")
		if err != nil {
			return
		}
		for i := range jobs {
			if err := jobs[i].Validate(); err != nil || i > 0 && jobs[i].Arrival < jobs[i-1].Arrival {
				t.Fatalf("job %d: %+v: %v", i, jobs[i], err)
			}
		}
	})
}

func TestOpenb(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]struct{ pods, gpu, eight int }{
		workload.OpenbDefault: {8152, 7064, 44}, workload.OpenbMultiGPU50: {9061, 7973, 556},
	} {
		jobs, err := workload.Openb(list)
		if err != nil {
			t.Fatal(err)
		}
		gpu, eight := 0, 0
		for _, j := range jobs {
			if j.Demand.GPUs > 0 {
				gpu++
			}
			if j.Demand.GPUs == 8 {
				eight++
			}
		}
		if len(jobs) != want.pods || gpu != want.gpu || eight != want.eight {
			t.Errorf("%s: %d pods, %d with GPUs, %d with eight, want %+v", list, len(jobs), gpu, eight, want)
		}
	}
	if _, err := workload.Openb("../openb_node_list_gpu_node"); err == nil {
		t.Error("a list that is none was read")
	}
	nodes, err := workload.OpenbNodes()
	if err != nil || strings.Count(string(nodes), "\n") != 1214 {
		t.Errorf("%d lines of nodes: %v", strings.Count(string(nodes), "\n"), err)
	}
}

// TestMix checks that generated jobs have the distributions that are promised.
func TestMix(t *testing.T) {
	t.Parallel()
	const gpus, count = 128, 40_000
	mix := workload.Mix{Kinds: workload.WholeKinds(), SensitivePercent: 60, Load: 0.85, MeanRun: 3600 * model.Second, Jobs: count}
	jobs, err := mix.Generate(gpus, 1)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[int]int{}
	sensitive, several, work, run, above := 0, 0, 0.0, 0.0, 0
	for _, j := range jobs {
		counts[j.Demand.GPUs]++
		work += float64(j.Demand.GPUs) * j.Duration.Seconds()
		run += j.Duration.Seconds()
		if j.Duration > 3600*model.Second {
			above++
		}
		if j.Demand.GPUs > 1 {
			several++
			if j.Demand.Communicates {
				sensitive++
			}
		}
		if j.Demand.Communicates && j.SlowPermille < 200 || !j.Demand.Communicates && j.SlowPermille > 100 {
			t.Fatalf("job %+v has a profile of the other kind", j)
		}
	}
	near := func(name string, got, want, percent float64) {
		t.Helper()
		if math.Abs(got-want) > want*percent/100 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	near("load", work/(gpus*jobs[count-1].Arrival.Seconds()), 0.85, 5)
	near("mean run time", run/count, 3600, 3)
	near("longer than the mean", float64(above)/count, 1/math.E, 3)
	near("sensitive", float64(sensitive)/float64(several), 0.6, 3)
	for k, want := range map[int]float64{1: 0.5, 2: 0.22, 4: 0.2, 8: 0.08} {
		near("share of a size", float64(counts[k])/count, want, 5)
	}
	again, err := mix.Generate(gpus, 1)
	if err != nil || !cmp.Equal(jobs, again) {
		t.Errorf("the same seed gives other jobs (%v)", err)
	}
	mix.Load = 0.5
	slower, err := mix.Generate(gpus, 1)
	if err != nil || slower[99].Duration != jobs[99].Duration || slower[99].Demand != jobs[99].Demand || slower[99].Arrival <= jobs[99].Arrival {
		t.Errorf("another load changes more than arrivals (%v)", err)
	}
	if other, err := mix.Generate(gpus, 2); err != nil || cmp.Equal(slower, other) {
		t.Errorf("another seed gives the same jobs (%v)", err)
	}
}

func TestMixRefuses(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*workload.Mix){
		"kinds":     func(m *workload.Mix) { m.Kinds = nil },
		"weight":    func(m *workload.Mix) { m.Kinds[0].Weight = 0 },
		"gpus":      func(m *workload.Mix) { m.Kinds[0].GPUs = 65 },
		"load":      func(m *workload.Mix) { m.Load = 0 },
		"nan":       func(m *workload.Mix) { m.Load = math.NaN() },
		"run":       func(m *workload.Mix) { m.MeanRun = 0 },
		"sensitive": func(m *workload.Mix) { m.SensitivePercent = 101 },
	} {
		m := workload.Mix{Kinds: workload.SharedKinds(), Load: 1, MeanRun: 1, Jobs: 1}
		if _, err := m.Generate(8, 1); err != nil {
			t.Fatal(err)
		}
		spoil(&m)
		if _, err := m.Generate(8, 1); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	list := []model.Job{
		{Name: "half", Arrival: 7, Pods: 1, Demand: model.Demand{GPUs: 1, MemoryMilli: 500, CoresPercent: 50}},
		{Name: "four", Pods: 1, Demand: model.Demand{GPUs: 4, MemoryMilli: 1000, CoresPercent: 100}},
		{Name: "host", Pods: 1},
	}
	jobs, err := workload.Sample(list, 1000, 130, 3)
	if err != nil {
		t.Fatal(err)
	}
	asked, last := int64(0), int64(0)
	counts := map[string]int{}
	for _, j := range jobs {
		last = int64(j.GPUs()) * j.Demand.ShareMilli()
		asked += last
		counts[j.Name[:4]]++
		if j.Arrival != 0 {
			t.Fatalf("job %+v arrives late", j)
		}
	}
	if asked < 1_300_000 || asked-last >= 1_300_000 {
		t.Errorf("%d per mille are asked for, the last job for %d", asked, last)
	}
	for name, n := range counts {
		if want := len(jobs) / 3; n < want*8/10 || n > want*12/10 {
			t.Errorf("%q was drawn %d times of %d", name, n, len(jobs))
		}
	}
	if _, err := workload.Sample(list[2:], 10, 100, 1); err == nil {
		t.Error("sampling jobs without GPUs ended")
	}
}
