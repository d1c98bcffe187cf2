// SPDX-License-Identifier: Apache-2.0

package study

import (
	"fmt"

	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/workload"
	"github.com/topodra/topodra/topology/placement"
)

// trial names a change of TopoDRA's objective.
func trial(name string, opts policy.TopoDRAOptions) Variant {
	return Variant{name, func(policy.Setup) (policy.Policy, error) { return policy.NewTopoDRA(name, opts) }}
}

// mix makes typical claims of 1, 2, 4 and 8 whole GPUs.
func mix(one, two, four, eight int64) []placement.Typical {
	var out []placement.Typical
	for i, weight := range []int64{one, two, four, eight} {
		if weight > 0 {
			out = append(out, placement.Typical{GPUs: 1 << i, Weight: weight})
		}
	}
	return out
}

// learned makes typical claims of what the jobs of an openb list ask for.
func learned(list string) Variant {
	const name = "mix as in the list"
	return Variant{name, func(policy.Setup) (policy.Policy, error) {
		jobs, err := workload.Openb(list)
		if err != nil {
			return nil, err
		}
		for i := range jobs {
			jobs[i].Demand.CPUMilli, jobs[i].Demand.HostMiB = 0, 0 // claims do not speak about hosts
		}
		return policy.NewTopoDRA(name, policy.TopoDRAOptions{Mix: policy.MixOf(jobs)})
	}}
}

func weights(quality, allocated, remaining int64) policy.TopoDRAOptions {
	return policy.TopoDRAOptions{Weights: placement.ScoreWeights{Quality: quality, Allocated: allocated, Remaining: remaining}}
}

// trials are changes of the objective against the default.
func trials() []Scenario {
	queue := []Variant{
		{Name: "topodra"},
		trial("tier, allocated, ΔV in order", policy.TopoDRAOptions{Order: policy.ByAllocated}),
		trial("tier, ΔV, allocated in order", policy.TopoDRAOptions{Order: policy.ByRemaining}),
		trial("weights 60/38/2", weights(60, 38, 2)),
		trial("weights 60/20/20", weights(60, 20, 20)),
		trial("weights 60/10/30", weights(60, 10, 30)),
		trial("no tiers", policy.TopoDRAOptions{TierPercent: -1}),
		trial("tiers of 40 %", policy.TopoDRAOptions{TierPercent: 40}),
		trial("mix without 1 and 8", policy.TopoDRAOptions{Mix: mix(0, 22, 20, 0)}),
		trial("mix by GPU time", policy.TopoDRAOptions{Mix: mix(50, 44, 80, 64)}),
		trial("mix of singles alone", policy.TopoDRAOptions{Mix: mix(1, 0, 0, 0)}),
		trial("all communicate", policy.TopoDRAOptions{AllCommunicate: true}),
	}
	var out []Scenario
	for _, m := range machines {
		out = append(out, Scenario{
			Name: trialPrefix + m.name, Title: m.title + ", changes of the objective", Cluster: fmt.Sprintf("%d*%s", nodes, m.name),
			Mix: mixOf(workload.WholeKinds(), load, jobs), WarmUp: warmUp, Policies: queue, Seeds: trialSeeds,
		})
	}
	return append(out, Scenario{
		Name: trialPrefix + openbPrefix + workload.OpenbMultiGPU50, Title: "openb nodes filled with multigpu50, changes of the objective",
		Cluster: fleet.OpenbName, List: workload.OpenbMultiGPU50, Percentages: []int{100, 130}, Seeds: fillSeeds,
		Policies: []Variant{
			{Name: "topodra"}, {Name: "fgd"},
			learned(workload.OpenbMultiGPU50),
			trial("hosts kept", policy.TopoDRAOptions{KeepHosts: true}),
			trial("hosts kept, quality relative", policy.TopoDRAOptions{KeepHosts: true, Relative: true}),
		},
	}, Scenario{
		Name: trialPrefix + openbPrefix + noHosts, Title: "the same without limits on CPU and memory of hosts",
		Cluster: fleet.OpenbName, NoHosts: true, List: workload.OpenbMultiGPU50, Percentages: []int{100, 130}, Seeds: fillSeeds,
		Policies: Named("topodra", "fgd", "first-fit-most"),
	})
}

// noHosts is part of a scenario's name.
const noHosts = "no-host-limits"
