// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/plan"
	"github.com/topodra/topodra/topology/quality"
)

// Reason and action of the event about a plan that was not followed.
const (
	eventMismatch = "TopologyPlanMismatch"
	eventAction   = "Scheduling"
)

// Reserve runs the in-tree Reserve and compares what it reserved with the plan.
func (pl *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	c := readCycle(state)
	if c == nil {
		return pl.DynamicResources.Reserve(ctx, state, pod, nodeName)
	}
	if status := pl.settle(ctx, state, pod, nodeName, c); !status.IsSuccess() {
		return status
	}
	var status *fwk.Status
	reserved := pl.overlay.Signalled(func() {
		status = pl.DynamicResources.Reserve(ctx, state, pod, nodeName)
	})
	if !status.IsSuccess() {
		return status
	}
	if d := c.toCompare(nodeName); d != nil {
		pl.report(ctx, pod, nodeName, c, d, reserved)
	}
	return status
}

// report compares and measures. It never fails the pod: what was reserved is
// legal, only not what was planned.
func (pl *Plugin) report(ctx context.Context, pod *v1.Pod, nodeName string, c *cycle, d *decision, reserved []*resourceapi.ResourceClaim) {
	planned, got := plannedDevices(d), reservedDevices(reserved, c)
	if !slices.Equal(planned, got) {
		plan.Mismatches.Inc()
		klog.FromContext(ctx).Info("Reserved devices differ from the plan", "pod", klog.KObj(pod), "node", nodeName, "planned", planned, "reserved", got)
		if recorder := pl.handle.EventRecorder(); recorder != nil {
			recorder.Eventf(pod, nil, v1.EventTypeWarning, eventMismatch, eventAction,
				"node %q: planned %s, reserved %s", nodeName, strings.Join(planned, ", "), strings.Join(got, ", "))
		}
		return
	}
	if !d.offer.Communicates || d.offer.Quality.Bottleneck == quality.None {
		return
	}
	plan.Quality.WithLabelValues(plan.ScopeNode).Observe(ratio(d.offer.Quality, d.offer.BestOfNode))
	plan.Quality.WithLabelValues(plan.ScopeCluster).Observe(ratio(d.offer.Quality, c.record.BestQuality()))
}

// belowBest is the ratio of a set that is worse than the best although its
// bandwidth is nominally higher: a ring of NVLinks is better than any other.
const belowBest = 0.99

// ratio of two bandwidths; 1 when, and only when, the first is at least as good.
func ratio(got, best quality.Quality) float64 {
	if best.MBps == 0 || quality.Compare(got, best) >= 0 {
		return 1
	}
	return min(float64(got.MBps)/float64(best.MBps), belowBest)
}

// plannedDevices lists the plan's devices in a canonical order. Share IDs differ
// in every answer of the allocator, so they do not count.
func plannedDevices(d *decision) []string {
	var devices []string
	for claim, results := range d.expected {
		devices = appendDevices(devices, claim, results)
	}
	slices.Sort(devices)
	return devices
}

// reservedDevices lists the reserved devices of the claims that were planned.
func reservedDevices(reserved []*resourceapi.ResourceClaim, c *cycle) []string {
	var devices []string
	for _, claim := range reserved {
		index := slices.IndexFunc(c.claims.Pending, func(p *resourceapi.ResourceClaim) bool { return p.UID == claim.UID })
		if index < 0 {
			if claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" {
				// In flight since an earlier pod of the group.
				continue
			}
			index = len(c.claims.Pending)
		}
		devices = appendDevices(devices, index, claim.Status.Allocation.Devices.Results)
	}
	slices.SortFunc(devices, cmp.Compare[string])
	return devices
}

// appendDevices adds one text per device.
func appendDevices(devices []string, claim int, results []resourceapi.DeviceRequestAllocationResult) []string {
	for i := range results {
		r := &results[i]
		devices = append(devices, fmt.Sprintf("claim %d request %s: %s/%s/%s", claim, r.Request, r.Driver, r.Pool, r.Device))
	}
	return devices
}
