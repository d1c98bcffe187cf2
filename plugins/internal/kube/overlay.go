// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// Overlay is the DRA manager that the in-tree plugin gets to see. It passes
// everything on to the scheduler's own manager, except while Record runs: then
// the first list of slices after the allocated state was read consists of
// copies that can be rearranged.
type Overlay struct {
	fwk.SharedDRAManager
	recorder *recorder
}

var _ fwk.SharedDRAManager = &Overlay{}

// NewOverlay wraps the manager.
func NewOverlay(manager fwk.SharedDRAManager) *Overlay {
	return &Overlay{SharedDRAManager: manager, recorder: &recorder{}}
}

// InnerHandle is the handle for an in-tree plugin that runs inside another. It has
// another DRA manager and, until Started is called, another profile name: while it
// starts, the in-tree plugin names its index of pods by it. An own name lets both
// plugins start in one profile, so that the check of the profile, which says what
// to do about it, is reached.
type InnerHandle struct {
	fwk.Handle
	manager fwk.SharedDRAManager
	started bool
}

// NewInnerHandle makes a handle for starting the in-tree plugin.
func NewInnerHandle(handle fwk.Handle, manager fwk.SharedDRAManager) *InnerHandle {
	return &InnerHandle{Handle: handle, manager: manager}
}

// Started ends the time of the other profile name. It must be called before the
// plugin is used.
func (h *InnerHandle) Started() { h.started = true }

// SharedDRAManager returns the other manager.
func (h *InnerHandle) SharedDRAManager() fwk.SharedDRAManager { return h.manager }

// ProfileName returns, while the plugin starts, a name that no profile has: it is
// no valid scheduler name.
func (h *InnerHandle) ProfileName() string {
	if h.started {
		return h.Handle.ProfileName()
	}
	return h.Handle.ProfileName() + " (decorated)"
}

// ResourceClaims returns the shared tracker, watched by the overlay.
func (o *Overlay) ResourceClaims() fwk.ResourceClaimTracker {
	return &claimTracker{ResourceClaimTracker: o.SharedDRAManager.ResourceClaims(), recorder: o.recorder}
}

// ResourceSlices returns the shared lister, replaced by copies while armed.
func (o *Overlay) ResourceSlices() fwk.ResourceSliceLister {
	return &sliceLister{ResourceSliceLister: o.SharedDRAManager.ResourceSlices(), recorder: o.recorder}
}

// Record runs the in-tree PreFilter and returns what its allocator was made
// with, or nil when it made none because nothing is to be allocated. It must
// not be called concurrently.
func (o *Overlay) Record(preFilter func()) *View {
	o.recorder.arm()
	defer o.recorder.disarm()
	preFilter()
	return o.recorder.disarm()
}

// Signalled runs the in-tree Reserve and returns the claims that it reported as
// about to be allocated, in its order. It must not be called concurrently.
func (o *Overlay) Signalled(reserve func()) []*resourceapi.ResourceClaim {
	o.recorder.startCapture()
	defer o.recorder.stopCapture()
	reserve()
	return o.recorder.stopCapture()
}

// recorder is the state that the tracker, the lister and the overlay share.
type recorder struct {
	mutex sync.Mutex

	// armed is true while the in-tree PreFilter runs.
	armed bool
	// state is what the PreFilter got last; nil before that. A list of slices
	// that is read earlier serves another purpose and is passed through.
	state *structured.AllocatedState
	// view is made from state and the list of slices that is read after it.
	view *View

	// index survives cycles: slices rarely change between two of them.
	index *sliceIndex

	capturing bool
	captured  []*resourceapi.ResourceClaim
}

func (r *recorder) arm() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.armed, r.state, r.view = true, nil, nil
}

// disarm returns the view; a second call returns nil.
func (r *recorder) disarm() *View {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	view := r.view
	r.armed, r.state, r.view = false, nil, nil
	return view
}

// gathered notes the allocated state, if this is the moment for it.
func (r *recorder) gathered(state *structured.AllocatedState) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.armed {
		r.state = state
	}
}

// listed returns the slices to hand out.
func (r *recorder) listed(slices []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !r.armed || r.state == nil {
		return slices
	}
	r.index = r.index.update(slices)
	r.view = &View{Allocated: *r.state, index: r.index}
	return r.index.handedOut
}

func (r *recorder) startCapture() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.capturing, r.captured = true, nil
}

// stopCapture returns what was captured; a second call returns nil.
func (r *recorder) stopCapture() []*resourceapi.ResourceClaim {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	captured := r.captured
	r.capturing, r.captured = false, nil
	return captured
}

func (r *recorder) signalled(claim *resourceapi.ResourceClaim) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.capturing {
		r.captured = append(r.captured, claim)
	}
}

// claimTracker notes two kinds of calls and passes all of them on. Errors go
// through untouched: the in-tree plugin retries on one of them by identity.
type claimTracker struct {
	fwk.ResourceClaimTracker
	recorder *recorder
}

// GatherAllocatedState notes the state that the in-tree plugin allocates on.
func (t *claimTracker) GatherAllocatedState() (*structured.AllocatedState, error) {
	state, err := t.ResourceClaimTracker.GatherAllocatedState()
	if err == nil && state != nil {
		t.recorder.gathered(state)
	}
	return state, err
}

// ListAllAllocatedDevices is what the in-tree plugin reads instead while the
// feature DRAConsumableCapacity is off.
func (t *claimTracker) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices, err := t.ResourceClaimTracker.ListAllAllocatedDevices()
	if err == nil {
		t.recorder.gathered(&structured.AllocatedState{
			AllocatedDevices:         devices,
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		})
	}
	return devices, err
}

// SignalClaimPendingAllocation notes what Reserve really allocates.
func (t *claimTracker) SignalClaimPendingAllocation(claimUID types.UID, claim *resourceapi.ResourceClaim) error {
	if err := t.ResourceClaimTracker.SignalClaimPendingAllocation(claimUID, claim); err != nil {
		return err
	}
	t.recorder.signalled(claim)
	return nil
}

// sliceLister replaces one list by copies.
type sliceLister struct {
	fwk.ResourceSliceLister
	recorder *recorder
}

// ListWithDeviceTaintRules lists the slices, as copies while recording.
func (l *sliceLister) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	slices, err := l.ResourceSliceLister.ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	return l.recorder.listed(slices), nil
}
