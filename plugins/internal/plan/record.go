// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// recordKey is where the record of a pod is in its CycleState.
const recordKey fwk.StateKey = api.PluginTopologyDynamicResources + "/plan"

// Offer is what a node has for a pod: the set that the allocator will take.
type Offer struct {
	// GPUs of the set, by position on their node. With devices of several
	// drivers, those of the set that communicates most.
	GPUs topology.Mask
	// Quality of the set.
	Quality quality.Quality
	// BestOfNode is the quality of the best set that the node could offer now.
	BestOfNode quality.Quality
	// Communicates says whether the set's quality matters.
	Communicates bool
	// DeltaV is what the set costs claims to come.
	DeltaV int64
	// AllocatedPermille is how full the node is with the pod.
	AllocatedPermille int64
	// Preference counts from 0, the combination of alternatives that the pod
	// wants most.
	Preference int
}

// Refusal says what a node that cannot keep a guarantee has instead.
type Refusal struct {
	// Wanted is what the pod requires, such as "4 GPUs over NVLink".
	Wanted string
	// BestNow and BestWhenFree are the best sets; nil when there is none.
	BestNow, BestWhenFree *Alternative
}

// Alternative is a set that a pod did not get.
type Alternative struct {
	GPUs    topology.Mask
	Quality quality.Quality
}

// Record collects what Filter found for one pod. It lives in the CycleState.
type Record struct {
	// Weights of the node score.
	Weights api.ScoreWeights
	// TierPercent is how much two sets of one tier may differ.
	TierPercent int

	mutex    sync.Mutex
	offers   map[string]*Offer
	refusals map[string]*Refusal
}

// NewRecord makes an empty record.
func NewRecord(weights api.ScoreWeights, tierPercent int) *Record {
	return &Record{
		Weights: weights, TierPercent: tierPercent,
		offers: map[string]*Offer{}, refusals: map[string]*Refusal{},
	}
}

// Clone returns the same record: a cloned CycleState serves simulations of the
// same pod in the same cycle, for which the same plans hold.
func (r *Record) Clone() fwk.StateData { return r }

// Write stores the record.
func Write(state fwk.CycleState, record *Record) { state.Write(recordKey, record) }

// Read returns the pod's record, nil if it has none.
func Read(state fwk.CycleState) *Record {
	data, err := state.Read(recordKey)
	if errors.Is(err, fwk.ErrNotFound) {
		return nil
	}
	record, ok := data.(*Record)
	if !ok {
		return nil
	}
	return record
}

// SetOffer notes that the node passed Filter with this offer.
func (r *Record) SetOffer(node string, offer *Offer) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.offers[node] = offer
	delete(r.refusals, node)
}

// SetRefusal notes that the node cannot keep the guarantee.
func (r *Record) SetRefusal(node string, refusal *Refusal) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.refusals[node] = refusal
	delete(r.offers, node)
}

// Offer returns the node's offer, nil if it has none.
func (r *Record) Offer(node string) *Offer {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.offers[node]
}

// Empty says whether no node has an offer.
func (r *Record) Empty() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.offers) == 0
}

// BestQuality returns the best that any filtered node could offer.
func (r *Record) BestQuality() (best quality.Quality) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, offer := range r.offers {
		if quality.Compare(offer.BestOfNode, best) > 0 {
			best = offer.BestOfNode
		}
	}
	return best
}

// Found is an alternative and where it is.
type Found struct {
	Node string
	*Alternative
}

// Refusals returns the best alternatives of all nodes that refused, now and if
// GPUs were freed, and what was wanted; that is empty when no node refused. Ties
// go to the first node by name.
func (r *Record) Refusals() (wanted string, now, whenFree Found) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, node := range slices.SortedFunc(maps.Keys(r.refusals), cmp.Compare[string]) {
		refusal := r.refusals[node]
		wanted = cmp.Or(wanted, refusal.Wanted)
		now = now.better(node, refusal.BestNow)
		whenFree = whenFree.better(node, refusal.BestWhenFree)
	}
	return wanted, now, whenFree
}

// better keeps the better one of two.
func (f Found) better(node string, other *Alternative) Found {
	if other == nil || f.Alternative != nil && quality.Compare(other.Quality, f.Quality) <= 0 {
		return f
	}
	return Found{node, other}
}
