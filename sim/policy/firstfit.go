// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/topology"
)

// newFirstFit takes the lowest GPUs that fit.
//
// Source: Kubernetes 1.37, k8s.io/dynamic-resource-allocation/structured: the
// allocator walks the devices of a node in the order of its ResourceSlices and takes
// the first ones that fit; DRA devices have no part in the node score, and the
// default strategy NodeResourcesFit spreads pods (LeastAllocated).
//
// "first-fit" spreads by GPUs, as a cluster does whose pods ask for CPU in proportion
// to their GPUs; "first-fit-most" is the same set rule with the strategy
// MostAllocated.
func newFirstFit(name string, node nodeRule) Policy {
	return newTwoStep(name, pickBy(func(_ *model.Node, d model.Demand, fitting topology.Mask) topology.Mask {
		return lowest(fitting, d.GPUs)
	}), node)
}
