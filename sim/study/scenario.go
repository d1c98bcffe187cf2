// SPDX-License-Identifier: Apache-2.0

package study

import (
	"fmt"
	"strings"

	"github.com/topodra/topodra/sim/engine"
	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/policy"
	"github.com/topodra/topodra/sim/workload"
)

// Scenario is one cluster with one kind of workload, under several policies.
type Scenario struct {
	// Name identifies the scenario in results; Title says what it is.
	Name, Title string
	// Cluster is for fleet.Loader.Parse.
	Cluster string
	// NoHosts lifts all limits on CPU and memory of the nodes.
	NoHosts bool
	// Mix generates jobs that come and go.
	Mix *workload.Mix
	// List names an openb list of pods that come and stay, until they ask for the
	// last of Percentages of all GPUs.
	List        string
	Percentages []int
	// Jobs are given ones, instead of Mix and List; they come and go.
	Jobs []model.Job
	// Bandwidth makes run times depend on links.
	Bandwidth bool
	Queue     engine.Discipline
	WarmUp    int
	Policies  []Variant
	Seeds     int
	// Audit recomputes all capacity after every event.
	Audit bool
}

// Variant is a policy under a name.
type Variant struct {
	Name string
	// Make overrides the policy of that name.
	Make func(policy.Setup) (policy.Policy, error)
}

func (v Variant) make(setup policy.Setup) (policy.Policy, error) {
	if v.Make != nil {
		return v.Make(setup)
	}
	return policy.New(v.Name, setup)
}

// Named returns variants that are the policies of those names.
func Named(names ...string) []Variant {
	out := make([]Variant, 0, len(names))
	for _, n := range names {
		out = append(out, Variant{Name: n})
	}
	return out
}

// firstSeed is the first of the seeds of a scenario; the others follow it.
const firstSeed = 1

// prepare makes the configuration of a run, but for the policy.
func (s *Scenario) prepare(l *fleet.Loader, seed uint64) (engine.Config, error) {
	specs, err := l.Parse(s.Cluster)
	if err != nil {
		return engine.Config{}, err
	}
	if s.NoHosts {
		for i := range specs {
			specs[i].CPUMilli, specs[i].HostMiB = 0, 0
		}
	}
	cluster, err := model.NewCluster(specs)
	if err != nil {
		return engine.Config{}, err
	}
	cfg := engine.Config{Cluster: cluster, Jobs: s.Jobs, Queue: s.Queue, Bandwidth: s.Bandwidth, WarmUp: s.WarmUp, Audit: s.Audit}
	switch {
	case s.Mix != nil:
		cfg.Jobs, err = s.Mix.Generate(cluster.GPUs(), seed)
	case s.List != "":
		var list []model.Job
		if list, err = workload.Openb(s.List); err != nil {
			return cfg, err
		}
		cfg.Jobs, err = workload.Sample(list, cluster.GPUs(), s.Percentages[len(s.Percentages)-1], seed)
		cfg.Typical = model.TypicalOf(list)
	}
	if err != nil {
		return cfg, err
	}
	if cfg.Typical == nil {
		cfg.Typical = model.TypicalOf(cfg.Jobs)
	}
	return cfg, nil
}

// machine is one of the kinds of machine of the comparison.
type machine struct{ name, title string }

// machines are the four kinds: cube mesh, bridged pairs, PCIe alone, and bridged pairs
// that are not neighbours.
var machines = []machine{
	{"dgx1v_8xv100", "DGX-1V, cube mesh"},
	{"h100nvl_8x_pairs", "8×H100 NVL, bridged pairs"},
	{"pcie_8x_pix_node_sys", "8 GPUs on PCIe alone"},
	{"a100_8x_interleaved_pairs", "8×A100, interleaved pairs"},
}

// Sizes of the study.
const (
	nodes      = 16
	load       = 0.85
	sensitive  = 60
	warmUp     = 10
	meanRun    = 3600 * model.Second
	jobs       = 20_000
	fewer      = 10_000
	seeds      = 10
	fewerSeeds = 5
	fillSeeds  = 5
	trialSeeds = 5
)

func mixOf(kinds []workload.Kind, load float64, jobs int) *workload.Mix {
	return &workload.Mix{Kinds: kinds, SensitivePercent: sensitive, Load: load, MeanRun: meanRun, Jobs: jobs}
}

// Prefixes of the names of scenarios.
const (
	kindPrefix  = "machines/"
	bandPrefix  = "bandwidth/"
	loadPrefix  = "load/"
	mixedName   = "mixed"
	openbPrefix = "openb/"
	trialPrefix = "objective/"
)

// Scenarios returns the study.
func Scenarios() []Scenario {
	var out []Scenario
	for _, m := range machines {
		out = append(out, Scenario{
			Name: kindPrefix + m.name, Title: m.title, Cluster: fmt.Sprintf("%d*%s", nodes, m.name),
			Mix: mixOf(workload.WholeKinds(), load, jobs), WarmUp: warmUp, Policies: Named(policy.Names()...), Seeds: seeds,
		})
	}
	for _, m := range machines[:2] {
		out = append(out, Scenario{
			Name: bandPrefix + m.name, Title: m.title + ", run time depends on links", Cluster: fmt.Sprintf("%d*%s", nodes, m.name),
			Mix: mixOf(workload.WholeKinds(), load, jobs), Bandwidth: true, WarmUp: warmUp,
			Policies: Named(policy.Names()...), Seeds: fewerSeeds,
		})
	}
	out = append(out, Scenario{
		Name: mixedName, Title: "4 nodes of each kind, shares and jobs of several pods", Cluster: mixedCluster(),
		Mix: mixOf(workload.SharedKinds(), load, fewer), Bandwidth: true, WarmUp: warmUp,
		Policies: Named(policy.Names()...), Seeds: fewerSeeds,
	})
	for _, l := range []float64{0.5, 0.6, 0.7, 0.8, 0.9, 0.95} {
		out = append(out, Scenario{
			Name: fmt.Sprintf("%s%.2f", loadPrefix, l), Title: fmt.Sprintf("DGX-1V, load %.2f", l), Cluster: fmt.Sprintf("%d*%s", nodes, machines[0].name),
			Mix: mixOf(workload.WholeKinds(), l, fewer), WarmUp: warmUp,
			Policies: Named("topodra", "hami", "fgd", "first-fit"), Seeds: fewerSeeds,
		})
	}
	for _, list := range []string{workload.OpenbMultiGPU50, workload.OpenbDefault} {
		out = append(out, Scenario{
			Name: openbPrefix + list, Title: "openb nodes filled with the list " + list, Cluster: fleet.OpenbName,
			List: list, Percentages: []int{100, 130}, Policies: Named(policy.Names()...), Seeds: fillSeeds,
		})
	}
	return append(out, trials()...)
}

func mixedCluster() string {
	var parts []string
	for _, m := range machines {
		parts = append(parts, fmt.Sprintf("%d*%s", nodes/len(machines), m.name))
	}
	return strings.Join(parts, ",")
}

// Load reports whether the scenario is one of those that differ in load alone.
func (s *Scenario) Load() bool { return s.Mix != nil && strings.HasPrefix(s.Name, loadPrefix) }
