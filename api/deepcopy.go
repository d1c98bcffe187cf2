// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

var (
	_ runtime.Object = &GPUClaimConfig{}
	_ runtime.Object = &TopologyDynamicResourcesArgs{}
)

// clonePointer copies what p points to.
func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// DeepCopy returns a value that shares nothing with c.
func (c *GPUClaimConfig) DeepCopy() *GPUClaimConfig {
	if c == nil {
		return nil
	}
	out := *c
	out.Topology = c.Topology.DeepCopy()
	out.Sharing = clonePointer(c.Sharing)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (c *GPUClaimConfig) DeepCopyObject() runtime.Object {
	if c == nil {
		return nil
	}
	return c.DeepCopy()
}

// DeepCopy returns a value that shares nothing with t.
func (t *TopologyConfig) DeepCopy() *TopologyConfig {
	if t == nil {
		return nil
	}
	out := *t
	out.Communicates = clonePointer(t.Communicates)
	return &out
}

// DeepCopy returns a value that shares nothing with a.
func (a *TopologyDynamicResourcesArgs) DeepCopy() *TopologyDynamicResourcesArgs {
	if a == nil {
		return nil
	}
	out := *a
	out.FilterTimeout = clonePointer(a.FilterTimeout)
	out.BindingTimeout = clonePointer(a.BindingTimeout)
	out.TierPercent = clonePointer(a.TierPercent)
	out.ScoreWeights = clonePointer(a.ScoreWeights)
	out.MaxCandidates = clonePointer(a.MaxCandidates)
	out.PlanBudget = clonePointer(a.PlanBudget)
	out.Drivers = slices.Clone(a.Drivers)
	out.Mix = slices.Clone(a.Mix)
	for i := range out.Mix {
		if memory := out.Mix[i].Memory; memory != nil {
			out.Mix[i].Memory = new(memory.DeepCopy())
		}
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (a *TopologyDynamicResourcesArgs) DeepCopyObject() runtime.Object {
	if a == nil {
		return nil
	}
	return a.DeepCopy()
}
