// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
)

// stateKey is where a pod's cycle is in its CycleState.
const stateKey fwk.StateKey = Name

// cycle is the state of one pod between PreFilter and Reserve. The fields above
// the mutex are set in PreFilter and only read later.
type cycle struct {
	view   *kube.View
	oracle *kube.Oracle
	claims *kube.Claims
	record *plan.Record
	// base is the demand without extended resources.
	base *demand

	mutex sync.Mutex
	// extended are the demands with extended resources, by their requests: nodes
	// that need the same requests share one.
	extended map[string]*demand
	// decisions by node, for Reserve.
	decisions map[string]*decision
	// deferred are the nodes that passed Filter although the in-tree Filter has not
	// run there yet.
	deferred map[string]bool
	// compared are the nodes for which Reserve has reported already: in a pod
	// group it runs twice.
	compared map[string]bool
}

// Clone returns the same state, see plan.Record.
func (c *cycle) Clone() fwk.StateData { return c }

// readCycle returns the pod's state, nil when nothing is planned for it.
func readCycle(state fwk.CycleState) *cycle {
	data, err := state.Read(stateKey)
	if errors.Is(err, fwk.ErrNotFound) {
		return nil
	}
	c, ok := data.(*cycle)
	if !ok {
		return nil
	}
	return c
}

// untouched says that nothing was allocated for the pod before. The in-tree Filter
// has more to do than to allocate otherwise: it notes which of the pod's claims are
// in the way, so that PostFilter can free them.
func (c *cycle) untouched(pod *v1.Pod) bool {
	return len(c.claims.Allocated) == 0 && pod.Status.ExtendedResourceClaimStatus == nil
}

// demandOn returns the demand for a node, nil if nothing has to be allocated.
func (pl *Plugin) demandOn(c *cycle, pod *v1.Pod, node fwk.NodeInfo) (*demand, error) {
	if !c.claims.Extended {
		return c.base, nil
	}
	claim := kube.ExtendedClaim(pod, node, pl.overlay.DeviceClassResolver())
	if claim == nil {
		return c.base, nil
	}
	var text strings.Builder
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		fmt.Fprintf(&text, "%s=%s*%d;", request.Name, request.Exactly.DeviceClassName, request.Exactly.Count)
	}
	requests := text.String()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if known, ok := c.extended[requests]; ok {
		return known, nil
	}
	claims := append([]*resourceapi.ResourceClaim(nil), c.claims.Pending...)
	d, err := newDemand(pod, append(claims, claim), c.claims.Allocated, pl.overlay.DeviceClasses(), pl.defaultPolicy())
	if err != nil {
		return nil, err
	}
	c.extended[requests] = d
	return d, nil
}

// decided notes the decision for a node.
func (c *cycle) decided(node string, d *decision) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.decisions[node] = d
}

// postponed notes the decision for a node whose in-tree Filter has to run before
// anything is reserved there.
func (c *cycle) postponed(node string, d *decision) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.decisions[node], c.deferred[node] = d, true
}

// takePostponed returns the decision of such a node, once.
func (c *cycle) takePostponed(node string) *decision {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.deferred[node] {
		return nil
	}
	delete(c.deferred, node)
	return c.decisions[node]
}

// toCompare returns the decision for a node the first time it is asked.
func (c *cycle) toCompare(node string) *decision {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.compared[node] {
		return nil
	}
	c.compared[node] = true
	return c.decisions[node]
}
