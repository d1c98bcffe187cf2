// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
)

// PreFilter runs the in-tree PreFilter and resolves what the pod asks for.
func (pl *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, err := state.Read(inTreeStateKey); err == nil {
		return nil, fwk.AsStatus(fmt.Errorf("running plugin %q: %w", Name, errBothPlugins))
	}
	var result *fwk.PreFilterResult
	var status *fwk.Status
	view := pl.overlay.Record(func() {
		result, status = pl.DynamicResources.PreFilter(ctx, state, pod, nodes)
	})
	if !status.IsSuccess() || view == nil {
		return result, status
	}
	c, err := pl.newCycle(ctx, pod, view)
	if err != nil {
		// What the pod asks for is wrong or incomplete: a change of its claims or
		// classes will wake it up.
		return nil, unschedulable(klog.FromContext(ctx), err.Error(), "pod", klog.KObj(pod))
	}
	if c != nil {
		state.Write(stateKey, c)
		plan.Write(state, c.record)
	}
	return result, status
}

// newCycle resolves the pod's claims; nil if none is to be planned.
func (pl *Plugin) newCycle(ctx context.Context, pod *v1.Pod, view *kube.View) (*cycle, error) {
	claims, err := kube.PodClaims(pod, pl.overlay)
	if err != nil {
		return nil, err
	}
	base, err := newDemand(pod, claims.Pending, claims.Allocated, pl.overlay.DeviceClasses(), pl.defaultPolicy())
	if err != nil {
		return nil, err
	}
	if !claims.Extended && !base.planned() {
		return nil, nil
	}
	features := dynamicresources.AllocatorFeatures(pl.features)
	return &cycle{
		view:      view,
		oracle:    kube.NewOracle(ctx, features, pl.overlay.DeviceClasses(), pl.matcher.CELCache(), view),
		claims:    claims,
		record:    plan.NewRecord(*pl.args.ScoreWeights, int(*pl.args.TierPercent)),
		base:      base,
		extended:  map[string]*demand{},
		decisions: map[string]*decision{},
		deferred:  map[string]bool{},
		compared:  map[string]bool{},
	}, nil
}

// defaultPolicy holds for claims that name none.
func (pl *Plugin) defaultPolicy() policy {
	return policyOf(&api.TopologyConfig{Policy: pl.args.DefaultPolicy})
}
