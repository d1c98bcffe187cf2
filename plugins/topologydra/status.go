// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"strings"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology/placement"
	"github.com/topodra/topodra/topology/quality"
)

// Why a node was left to the allocator, labels of metrics.
const (
	fallbackSeveralPools = "several_pools"
	fallbackAlternatives = "too_many_alternatives"
	fallbackNoDevices    = "no_planned_devices"
	fallbackNoFit        = "does_not_fit"
	fallbackBudget       = "budget_used_up"
	fallbackOracle       = "allocator_failed"
	fallbackSelector     = "selector_failed"
	fallbackPlanner      = "planner_failed"
	fallbackRejected     = "filter_rejected"
)

// Why devices stay visible although there is a guarantee, besides the obstacles
// of a pool; labels of metrics.
const (
	obstacleAll    = "allocation_mode_all"
	obstacleAdmin  = "admin_access"
	obstacleOthers = "other_requests"
)

// Reasons of nodes that cannot keep a guarantee. They are the same for all nodes
// in one state, so that the scheduler can count them.
const (
	reasonNow     = "node(s) had no free GPUs that are linked as required"
	reasonNever   = "node(s) have no GPUs that are linked as required, even if all were free"
	reasonFew     = "node(s) had too few free GPUs for the required topology"
	reasonUnknown = "node(s) could not be shown to have the required topology"
)

// reasonText returns the node's reason.
func reasonText(reason placement.Reason) string {
	switch reason {
	case placement.ReasonPolicyNow:
		return reasonNow
	case placement.ReasonPolicyNever, placement.ReasonTooFewEligible, placement.ReasonConstraint, placement.ReasonForcedNotEligible:
		return reasonNever
	case placement.ReasonTooFewFree:
		return reasonFew
	default:
		return reasonUnknown
	}
}

// unschedulable rejects with the code of the in-tree plugin: evicting pods does
// not free devices, so preemption must not try.
func unschedulable(logger klog.Logger, reason string, kv ...any) *fwk.Status {
	if loggerV := logger.V(5); loggerV.Enabled() {
		helper, loggerV := loggerV.WithCallStackHelper()
		helper()
		loggerV.Info("Pod is unschedulable", append(kv, "reason", reason)...)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

// refusalMessage says, for the pod's event, what the best sets of the cluster
// are. Empty when no node refused.
func refusalMessage(record *plan.Record) string {
	wanted, now, whenFree := record.Refusals()
	if wanted == "" {
		return ""
	}
	return fmt.Sprintf("topology: required are %s; best now: %s; best if GPUs were freed: %s", wanted, foundText(now), foundText(whenFree))
}

// wantedText describes what a policy requires.
func wantedText(count int, p policy) string {
	return fmt.Sprintf("%d GPUs", count) + p.Links()
}

// foundText describes one set.
func foundText(found plan.Found) string {
	if found.Alternative == nil {
		return "none"
	}
	return fmt.Sprintf("%s on node %q (GPUs %s)", qualityText(found.Quality), found.Node, strings.Trim(found.GPUs.String(), "{}"))
}

// qualityText describes a set's links in the words of the policy.
func qualityText(q quality.Quality) string {
	if q.Bottleneck == quality.None {
		return "one GPU"
	}
	level := q.Bottleneck.String()
	switch {
	case q.HasNVLink():
	case q.Bottleneck <= quality.PXB:
		level = "PCIe"
	case q.Bottleneck <= quality.NODE:
		level = "NUMA"
	}
	return fmt.Sprintf("%s %.0f GB/s", level, q.MBps.GBps())
}
