// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	best := &Placement{Node: "a", GPUs: []int{0, 1}, Rings: 2, GBps: 50}
	worse := &Placement{Node: "b", GPUs: []int{0, 1}, GBps: 6}
	for name, c := range map[string]struct {
		outcome Outcome
		want    string // part of the error; empty for none
	}{
		"the best":      {Outcome{Job: "j", GPUsWanted: 2, Placed: best, Optimum: best}, ""},
		"as good":       {Outcome{Job: "j", GPUsWanted: 2, Placed: worse, Optimum: best, Tier: 0}, ""},
		"worse":         {Outcome{Job: "j", GPUsWanted: 2, Placed: worse, Optimum: best, Tier: 1}, "j () got b GPUs 0,1 with 6.0 GB/s, tier 1; the optimum was a GPUs 0,1 with 50.0 GB/s"},
		"one GPU":       {Outcome{Job: "j", GPUsWanted: 1, Placed: worse, Optimum: best, Tier: 1}, ""},
		"waits rightly": {Outcome{Job: "j", GPUsWanted: 2, Guaranteed: true, Message: "best now 6.0 GB/s", Tier: -1}, ""},
		"its event says the best": {
			Outcome{Job: "j", GPUsWanted: 2, Guaranteed: true, Tier: -1, BestNow: worse, BestWhenFree: best, Message: "best now 6 GB/s, best if freed 50 GB/s"}, "",
		},
		"its event leaves out the best possible": {
			Outcome{Job: "j", GPUsWanted: 2, Guaranteed: true, Tier: -1, BestNow: worse, BestWhenFree: best, Message: "best now 6 GB/s"},
			"its event does not say that the best now is 6.0 GB/s",
		},
		"waits wrongly":      {Outcome{Job: "j", GPUsWanted: 2, Optimum: best, Tier: -1, Message: "why"}, "j () stayed pending although a GPUs 0,1 were free for it: why"},
		"breaks its promise": {Outcome{Job: "j", Wants: "x", GPUsWanted: 2, Guaranteed: true, Placed: worse, Violated: true}, "j (x) was placed on b GPUs 0,1, which breaks its guarantee"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Verdict(&RunResult{Scheduler: "ours", Jobs: []Outcome{c.outcome}})
			switch {
			case c.want == "" && err != nil:
				t.Errorf("unexpected error %q", err)
			case c.want != "" && (err == nil || !errors.Is(err, ErrBelowOptimum) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %q, want one with %q", err, c.want)
			}
		})
	}
}

// TestClaimFor reads the configuration back the way the scheduler does.
func TestClaimFor(t *testing.T) {
	t.Parallel()
	for _, job := range []Job{
		{Name: "preferred", GPUs: 4},
		{Name: "level", GPUs: 2, Level: api.LevelNVLink},
		{Name: "minimum", GPUs: 2, MinGBps: 300, MemoryMiB: 8 << 10, CoresPercent: 50},
	} {
		claim, err := claimFor(job)
		if err != nil {
			t.Fatal(err)
		}
		request := claim.Spec.Devices.Requests[0].Exactly
		if request.Count != int64(job.GPUs) || request.AllocationMode != resourceapi.DeviceAllocationModeExactCount || request.DeviceClassName != api.DeviceClassGPU {
			t.Errorf("%s: request %+v", job.Name, request)
		}
		if (request.Capacity == nil) != job.Whole() {
			t.Errorf("%s: capacity %+v", job.Name, request.Capacity)
		}
		config, err := api.DecodeGPUClaimConfig(claim.Spec.Devices.Config[0].Opaque.Parameters.Raw)
		if err != nil {
			t.Fatal(err)
		}
		want := api.TopologyConfig{Policy: api.PolicyPreferred}
		if job.Guaranteed() {
			want = api.TopologyConfig{Policy: api.PolicyRequired, Level: job.Level, MinGBps: job.MinGBps}
		}
		if *config.Topology != want {
			t.Errorf("%s: configuration %+v, want %+v", job.Name, *config.Topology, want)
		}
	}
	claim, err := claimFor(Job{Name: "one", GPUs: 1})
	if err != nil || len(claim.Spec.Devices.Config) != 0 {
		t.Errorf("one GPU: %v, configuration %+v; want none", err, claim.Spec.Devices.Config)
	}
}
