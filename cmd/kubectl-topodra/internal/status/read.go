// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
	"github.com/topodra/topodra/internal/livestate"
)

// Read reads the state of all nodes, or of one if name is not empty.
func Read(ctx context.Context, client kubernetes.Interface, planner *fit.Planner, name string) (*Report, error) {
	live, err := nodes.ReadNodes(ctx, client, name)
	if err != nil {
		return nil, err
	}
	return New(ctx, planner, live)
}

// build makes the report of what informers hold.
func build(ctx context.Context, planner *fit.Planner, published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim, name string) (*Report, error) {
	live, err := livestate.Build(published, claims)
	if err != nil {
		return nil, fmt.Errorf("reading the published GPUs: %w", err)
	}
	if name != "" {
		kept := live[:0]
		for i := range live {
			if live[i].Name == name {
				kept = append(kept, live[i])
			}
		}
		live = kept
	}
	return New(ctx, planner, live)
}
