// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

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
	for i := range d.arrangements {
		if obstacle := d.arrangements[i].obstacle; obstacle != "" {
			plan.MaskFallbacks.WithLabelValues(obstacle).Inc()
		}
	}
	status := func() *fwk.Status {
		d.apply(node)
		defer node.Restore()
		return pl.DynamicResources.Filter(ctx, state, pod, nodeInfo)
	}()
	switch {
	case status.IsSuccess():
		c.decided(name, d)
		c.record.SetOffer(name, d.offer)
		if d.deviates {
			plan.Plans.WithLabelValues(plan.ResultDeviating).Inc()
		} else {
			plan.Plans.WithLabelValues(plan.ResultPlanned).Inc()
		}
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
