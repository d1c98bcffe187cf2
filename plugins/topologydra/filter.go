// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
)

// Filter runs the in-tree Filter with the planned devices of the node in front.
func (pl *Plugin) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	c := readCycle(state)
	if c == nil {
		return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
	}
	logger := klog.FromContext(ctx)
	object := nodeInfo.Node()
	d, err := pl.decideOn(ctx, c, pod, nodeInfo)
	if err != nil {
		return unschedulable(logger, err.Error(), "pod", klog.KObj(pod), "node", klog.KObj(object))
	}
	if d == nil {
		return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
	}
	if d.refusal != nil {
		plan.Plans.WithLabelValues(plan.ResultRefused).Inc()
		c.record.SetRefusal(object.Name, d.refusal)
		return unschedulable(logger, d.reason, "pod", klog.KObj(pod), "node", klog.KObj(object))
	}
	if d.hopeless && c.untouched(pod) {
		plan.Plans.WithLabelValues(plan.ResultRuledOut).Inc()
		return unschedulable(logger, reasonNoRoom, "pod", klog.KObj(pod), "node", klog.KObj(object))
	}
	if d.settled && pl.mayDefer(c, pod) {
		c.postponed(object.Name, d)
		c.record.SetOffer(object.Name, d.offer)
		d.countObstacles()
		d.count()
		return nil
	}
	status := pl.filterArranged(ctx, state, pod, nodeInfo, c, d)
	if !status.IsSuccess() {
		return status
	}
	if d.arrangements == nil && d.guaranteed {
		plan.Plans.WithLabelValues(plan.ResultRefused).Inc()
		c.record.SetRefusal(object.Name, &plan.Refusal{Wanted: d.wanted})
		return unschedulable(logger, reasonUnknown, "pod", klog.KObj(pod), "node", klog.KObj(object), "why", d.fallback)
	}
	return status
}

// decideOn returns what to do on a node; nil if it has nothing to plan with.
func (pl *Plugin) decideOn(ctx context.Context, c *cycle, pod *v1.Pod, nodeInfo fwk.NodeInfo) (*decision, error) {
	object := nodeInfo.Node()
	d, err := pl.demandOn(c, pod, nodeInfo)
	if err != nil {
		return nil, err
	}
	if !d.planned() {
		return nil, nil
	}
	node := c.view.Node(object.Name)
	if node == nil {
		return &decision{fallback: fallbackNoDevices, guaranteed: d.strict(), wanted: d.wanted()}, nil
	}
	return pl.planner.decide(ctx, &question{
		view: c.view, oracle: c.oracle, node: node, object: object, demand: d, oracleTimeout: pl.filterTimeout,
	})
}

// filterArranged runs the in-tree Filter as decided and notes the outcome.
func (pl *Plugin) filterArranged(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo, c *cycle, d *decision) *fwk.Status {
	name := nodeInfo.Node().Name
	if d.arrangements == nil {
		plan.Plans.WithLabelValues(plan.ResultUnplanned).Inc()
		plan.Unplanned.WithLabelValues(d.fallback).Inc()
		return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
	}
	node := c.view.Node(name)
	d.countObstacles()
	status := pl.filterInTree(ctx, state, pod, nodeInfo, node, d)
	switch {
	case status.IsSuccess():
		c.decided(name, d)
		c.record.SetOffer(name, d.offer)
		d.count()
		return status
	case status.Code() != fwk.UnschedulableAndUnresolvable:
		return status
	case d.guaranteed:
		plan.Plans.WithLabelValues(plan.ResultRefused).Inc()
		return status
	}
	// The allocator was seen to accept these devices, so another check of the
	// in-tree plugin dislikes them. Others may pass it.
	plan.MaskFallbacks.WithLabelValues(fallbackRejected).Inc()
	plan.Plans.WithLabelValues(plan.ResultUnplanned).Inc()
	plan.Unplanned.WithLabelValues(fallbackRejected).Inc()
	return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
}

// filterInTree runs the in-tree Filter with the planned devices in front.
func (pl *Plugin) filterInTree(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeInfo fwk.NodeInfo, node *kube.Node, d *decision) *fwk.Status {
	d.apply(node)
	defer node.Restore()
	return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
}

// countObstacles counts the pools whose devices could not be hidden for a guarantee.
func (d *decision) countObstacles() {
	for i := range d.arrangements {
		if obstacle := d.arrangements[i].obstacle; obstacle != "" {
			plan.MaskFallbacks.WithLabelValues(obstacle).Inc()
		}
	}
}

// count counts what became of the plan.
func (d *decision) count() {
	if d.deviates {
		plan.Plans.WithLabelValues(plan.ResultDeviating).Inc()
	} else {
		plan.Plans.WithLabelValues(plan.ResultPlanned).Inc()
	}
}

// mayDefer says whether the in-tree Filter of a node with a settled decision can wait
// until the node is chosen. Most of a scheduling attempt would otherwise go into
// allocating on nodes that are not. The in-tree plugin looks at what its Filter left
// behind before Reserve in three cases only: claims that are allocated already,
// extended resources, and resources of the node that devices provide.
func (pl *Plugin) mayDefer(c *cycle, pod *v1.Pod) bool {
	return !c.claims.Extended && c.untouched(pod) && !pl.features.EnableDRANodeAllocatableResources
}

// settle runs the in-tree Filter of a node for which it was deferred. The answer is
// known, but the in-tree Reserve needs what that leaves behind.
func (pl *Plugin) settle(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string, c *cycle) *fwk.Status {
	d := c.takePostponed(nodeName)
	if d == nil {
		return nil
	}
	nodeInfo, err := pl.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("reserving devices on node %q: %w", nodeName, err))
	}
	node := c.view.Node(nodeName)
	status := pl.filterInTree(ctx, state, pod, nodeInfo, node, d)
	if status.IsSuccess() {
		return nil
	}
	pl.planner.distrust(&question{view: c.view, node: node, demand: c.base}, d)
	plan.Unsettled.Inc()
	klog.FromContext(ctx).Info("The in-tree plugin refused devices that it had accepted", "pod", klog.KObj(pod), "node", nodeName, "reasons", status.Message())
	return status
}
