// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/plan"
)

// PostFilter runs the in-tree PostFilter, which may free an idle claim, and adds
// to the pod's event which sets of GPUs exist when none is good enough.
func (pl *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	result, status := pl.DynamicResources.PostFilter(ctx, state, pod, nodes)
	record := plan.Read(state)
	if record == nil || status.Code() != fwk.Unschedulable {
		return result, status
	}
	message := refusalMessage(record)
	if message == "" {
		return result, status
	}
	return result, fwk.NewStatus(status.Code(), append(status.Reasons(), message)...)
}
