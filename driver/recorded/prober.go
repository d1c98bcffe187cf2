// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/topology/capture"
)

// Prober looks at the GPUs of a recorded machine: they are well but for what the
// file of simulated faults says. It is safe for concurrent use.
type Prober struct {
	path, nodeName string
}

var _ health.Prober = &Prober{}

// NewProber returns a Prober for the recording at path, as seen by the node of the
// given name.
func NewProber(path, nodeName string) *Prober { return &Prober{path: path, nodeName: nodeName} }

// eventPeriod is how often simulated errors are reported.
const eventPeriod = time.Second

// Probe implements health.Prober.
func (p *Prober) Probe(ctx context.Context) ([]health.Observation, error) {
	out, _, err := p.read(ctx)
	return out, err
}

// Watch implements health.Prober.
func (p *Prober) Watch(ctx context.Context, f func(health.Event)) {
	ticker := time.NewTicker(eventPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, events, err := p.read(ctx)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Reading simulated errors failed", "reason", err.Error())
		}
		for _, event := range events {
			f(event)
		}
	}
}

// read reads both files.
func (p *Prober) read(ctx context.Context) ([]health.Observation, []health.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("looking at a recorded machine: %w", err)
	}
	recording, err := capture.Load(p.path)
	if err != nil {
		return nil, nil, fmt.Errorf("looking at a recorded machine: %w", err)
	}
	simulation, err := LoadSimulation(p.path)
	if err != nil {
		return nil, nil, err
	}
	if simulation.NVML != "" {
		return nil, nil, fmt.Errorf("looking at a recorded machine: NVML is simulated to be unavailable")
	}
	snapshot, err := Snapshot(recording, p.nodeName)
	if err != nil {
		return nil, nil, err
	}
	links := simulation.links(recording)
	var out []health.Observation
	var events []health.Event
	for i := range snapshot.GPUs {
		observation := &health.Observation{}
		if special := simulation.gpu(i); special != nil {
			if observation, err = special.observation(); err != nil {
				return nil, nil, err
			}
			for _, xid := range special.XIDs {
				events = append(events, health.Event{GPU: snapshot.GPUs[i].UUID, XID: xid})
			}
		}
		observation.UUID = snapshot.GPUs[i].UUID
		observation.ActiveLinks = &links[i]
		out = append(out, *observation)
	}
	return out, events, nil
}

// links counts the links that are up, by GPU. GPUs in MIG mode have them, too.
func (s *Simulation) links(recording *capture.Recorded) []int {
	m := recording.Machine
	up := make([]int, m.N())
	for i := range up {
		for k, links := range m.NVLinks[i] {
			down := 0
			for _, fault := range s.Links {
				if fault.GPUs == [2]int{i, k} || fault.GPUs == [2]int{k, i} {
					down += min(fault.Down, int(links))
				}
			}
			up[i] += max(int(links)-down, 0)
		}
	}
	return up
}

// observation is what a look at the GPU sees; it reports what is no state.
func (g *SimulatedGPU) observation() (*health.Observation, error) {
	o := &health.Observation{UncorrectedErrors: &g.UncorrectedErrors, Remap: &health.Remap{}}
	if g.Lost {
		o.Lost = "it is simulated to be lost"
	}
	if g.Hangs {
		o.Hangs = "a question, in the simulation"
	}
	switch g.Remap {
	case "":
	case "pending":
		o.Remap.Pending = true
	case "failed":
		o.Remap.Failed = true
	default:
		return nil, fmt.Errorf("remap is %q, expected \"pending\", \"failed\" or nothing", g.Remap)
	}
	if o.Fabric = health.FabricState(g.Fabric); !slices.Contains(fabricStates, o.Fabric) {
		return nil, fmt.Errorf("fabric is %q, expected one of %q", g.Fabric, fabricStates)
	}
	if o.Recovery = health.Recovery(g.Recovery); !slices.Contains(recoveries, o.Recovery) {
		return nil, fmt.Errorf("recovery is %q, expected one of %q", g.Recovery, recoveries)
	}
	return o, nil
}

var (
	fabricStates = []health.FabricState{"", health.FabricGood, health.FabricNotCompleted, health.FabricFailed, health.FabricUnhealthy, health.FabricLimited}
	recoveries   = []health.Recovery{"", health.RecoveryReset, health.RecoveryReboot, health.RecoveryDrainP2P, health.RecoveryDrainAndReset, health.RecoveryOther}
)
