// SPDX-License-Identifier: Apache-2.0

package topologyscore

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology/placement"
)

// Name of the plugin in the registry and in configurations.
const Name = api.PluginTopologyScore

// Plugin scores nodes.
type Plugin struct {
	handle fwk.Handle
}

var (
	_ fwk.PreScorePlugin    = &Plugin{}
	_ fwk.ScorePlugin       = &Plugin{}
	_ fwk.ReservePlugin     = &Plugin{}
	_ fwk.SignPlugin        = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
)

// New makes the plugin. It is the factory for the scheduler's registry.
func New(_ context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if args != nil {
		return nil, fmt.Errorf("starting plugin %q: it has no arguments of its own: move them to the args of %q", Name, api.PluginTopologyDynamicResources)
	}
	plan.RegisterMetrics()
	return &Plugin{handle: handle}, nil
}

// Name of the plugin.
func (pl *Plugin) Name() string { return Name }

// EventsToRegister returns nothing, because the plugin rejects no pod. The
// scheduler calls it once, when the profile is complete, so it is the place to
// check that there is something to score.
func (pl *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	lister, ok := pl.handle.(interface{ ListPlugins() *config.Plugins })
	if !ok {
		return nil, nil
	}
	planner := func(p config.Plugin) bool { return p.Name == api.PluginTopologyDynamicResources }
	if !slices.ContainsFunc(lister.ListPlugins().Filter.Enabled, planner) {
		return nil, fmt.Errorf("checking profile %q for plugin %q: it scores what %q plans, which is missing: enable %q in plugins.multiPoint, or disable %q",
			pl.handle.ProfileName(), Name, api.PluginTopologyDynamicResources, api.PluginTopologyDynamicResources, Name)
	}
	return nil, nil
}

// Reserve does nothing. It is there because the scheduler asks only plugins that
// could reject a pod for EventsToRegister, which checks the profile.
func (pl *Plugin) Reserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }

// Unreserve does nothing.
func (pl *Plugin) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string) {}

// SignPod adds nothing: pods without claims score alike everywhere.
func (pl *Plugin) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return nil, nil
}

// PreScore skips scoring when nothing was planned for the pod.
func (pl *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if record := plan.Read(state); record == nil || record.Empty() {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score says whether the node has an offer. How good it is can only be said of
// all offers together, in NormalizeScore.
func (pl *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	record := plan.Read(state)
	if record == nil || record.Offer(node.Node().Name) == nil {
		return 0, nil
	}
	return 1, nil
}

// ScoreExtensions returns the plugin itself.
func (pl *Plugin) ScoreExtensions() fwk.ScoreExtensions { return pl }

// NormalizeScore replaces the scores by those of the nodes' offers.
func (pl *Plugin) NormalizeScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	record := plan.Read(state)
	if record == nil {
		return nil
	}
	offers := make([]*plan.Offer, len(scores))
	for i := range scores {
		offers[i] = record.Offer(scores[i].Name)
	}
	for i, score := range scoreOffers(offers, record.TierPercent, weightsOf(record.Weights)) {
		scores[i].Score = score
	}
	return nil
}

// weightsOf translates the arguments.
func weightsOf(weights api.ScoreWeights) placement.ScoreWeights {
	return placement.ScoreWeights{
		Quality: int64(weights.Quality), Allocated: int64(weights.Allocated), Remaining: int64(weights.Remaining),
	}
}
