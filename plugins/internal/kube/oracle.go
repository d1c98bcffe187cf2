// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// Oracle asks the in-tree allocator what it would do. One oracle serves one
// scheduling cycle; it is safe for concurrent use for different nodes.
type Oracle struct {
	make func() (structured.Allocator, error)
}

// NewOracle makes an oracle for the view. The allocator behind it is made on
// first use.
func NewOracle(ctx context.Context, features structured.Features, classes fwk.DeviceClassLister, cache *cel.Cache, view *View) *Oracle {
	return &Oracle{make: sync.OnceValues(func() (structured.Allocator, error) {
		allocator, err := structured.NewAllocator(ctx, features, view.Allocated, classes, view.Slices(), cache)
		if err != nil {
			return nil, fmt.Errorf("making an allocator: %w", err)
		}
		return allocator, nil
	})}
}

// CELCache returns the cache of compiled expressions.
func (m *Matcher) CELCache() *cel.Cache { return m.cache }

// Allocate returns one result per claim, or nil if the claims do not fit on the
// node as its pools are arranged now.
func (o *Oracle) Allocate(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	allocator, err := o.make()
	if err != nil {
		return nil, err
	}
	results, err := allocator.Allocate(ctx, node, claims)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("allocating on node %q: %w", node.Name, err)
	case len(results) != len(claims):
		return nil, nil
	}
	return results, nil
}
