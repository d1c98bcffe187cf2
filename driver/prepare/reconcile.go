// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/checkpoint"
)

// nodeState is what the API server knows about claims of live pods here.
type nodeState struct {
	// pods are the UIDs of live pods.
	pods map[types.UID]bool

	// claims of live pods with devices of ours on this node, which the pods have
	// reserved.
	claims map[types.UID]*resourceapi.ResourceClaim

	// running are those of the claims whose pod has already run containers.
	running map[types.UID]bool

	// missing says that a live pod refers to a claim that is gone, so that a
	// spec which nobody knows may be that pod's.
	missing bool
}

// Reconcile compares checkpoint, CDI specs, region directories and API server
// both ways: what lacks its claim is removed, what lacks its effects gets them,
// and claims that the checkpoint has lost are taken up again. It is called at
// the start and then now and again. What it could not do is in the error; the
// rest is done.
func (m *Manager) Reconcile(ctx context.Context) error {
	state, err := m.readNode(ctx)
	if err != nil {
		return fmt.Errorf("reconciling claims: %w", err)
	}
	known, err := m.devices(ctx)
	if err != nil {
		return fmt.Errorf("reconciling claims: %w", err)
	}
	err = m.locked(ctx, func(document *checkpoint.Document) error {
		return errors.Join(
			m.reconcileBoot(ctx, document),
			m.reconcileRecords(ctx, document, state, known),
			m.reconcileLost(ctx, document, state, known),
			m.reconcileStrays(ctx, document, state),
			m.host.Save(document),
			m.host.RemoveTemps(),
		)
	})
	if err != nil {
		return fmt.Errorf("reconciling claims: %w", err)
	}
	return nil
}

// readNode asks for the node's live pods and their claims.
func (m *Manager) readNode(ctx context.Context) (*nodeState, error) {
	pods, err := m.options.Cluster.PodsOfNode(ctx, m.options.NodeName)
	if err != nil {
		return nil, err
	}
	state := &nodeState{pods: map[types.UID]bool{}, claims: map[types.UID]*resourceapi.ResourceClaim{}, running: map[types.UID]bool{}}
	for i := range pods {
		pod := &pods[i]
		if finished(pod) {
			continue
		}
		state.pods[pod.UID] = true
		for name := range resourceclaim.PodClaims(pod) {
			claim, err := m.options.Cluster.Claim(ctx, pod.Namespace, name)
			switch {
			case apierrors.IsNotFound(err):
				state.missing = true
			case err != nil:
				return nil, err
			case allocatedTo(claim, m.options.NodeName) && resourceclaim.IsReservedForPod(pod, claim, false):
				state.claims[claim.UID] = claim
				if hasRun(pod) {
					state.running[claim.UID] = true
				}
			}
		}
	}
	return state, nil
}

// hasRun says whether the kubelet has come as far as starting containers.
func hasRun(pod *corev1.Pod) bool {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if statuses[i].ContainerID != "" {
				return true
			}
		}
	}
	return false
}

// reconcileBoot notices that the machine was started anew: no container of then
// is there any more, so their regions mean nothing, and specs may be gone with a
// CDI directory in memory. Records stay, since the pods stay, too.
func (m *Manager) reconcileBoot(ctx context.Context, document *checkpoint.Document) error {
	bootID, err := m.host.BootID()
	if err != nil {
		return err
	}
	if document.BootID == bootID {
		return nil
	}
	if document.BootID != "" {
		klog.FromContext(ctx).Info("The machine was started anew", "bootID", bootID, "previousBootID", document.BootID)
		if err := m.host.RemoveAllRegions(); err != nil {
			return err
		}
	}
	document.BootID = bootID
	return nil
}

// reconcileRecords goes through what the checkpoint knows.
func (m *Manager) reconcileRecords(ctx context.Context, document *checkpoint.Document, state *nodeState, known devices) error {
	var errs []error
	for _, uid := range document.SortedUIDs() {
		record := document.Claims[uid]
		if state.claims[uid] == nil && !m.usedBy(record, state) {
			if _, err := m.removeIfGone(ctx, document, uid); err != nil {
				errs = append(errs, err)
			}
			continue
		}
		switch record.State {
		case checkpoint.StateStarted:
			// Whoever started it is dead, or it would hold the lock. The kubelet
			// tries again.
			if err := m.undo(uid); err != nil {
				errs = append(errs, fmt.Errorf("taking back the unfinished preparation of claim %q: %w", record, err))
				continue
			}
			delete(document.Claims, uid)
		default:
			if claim := state.claims[uid]; claim != nil {
				record.Consumers = consumers(claim)
			}
			if err := errors.Join(m.repair(ctx, uid, record, known), m.checkAgain(ctx, uid, record)); err != nil {
				errs = append(errs, fmt.Errorf("repairing claim %q: %w", record, err))
			}
		}
	}
	return errors.Join(errs...)
}

// usedBy says whether a live pod of the node is a consumer of the record.
func (m *Manager) usedBy(record *checkpoint.Claim, state *nodeState) bool {
	return slices.ContainsFunc(record.Consumers, func(c checkpoint.Consumer) bool { return state.pods[c.UID] })
}

// repair makes the effects of a completed record that are missing.
func (m *Manager) repair(ctx context.Context, uid types.UID, record *checkpoint.Claim, known devices) error {
	err := known.verify(record)
	if err == nil {
		var planned *plan
		if planned, err = m.plan(ctx, uid, record); err == nil {
			err = m.apply(ctx, uid, planned)
		}
	}
	if err != nil {
		m.options.Status.Failed(uid, record, err.Error())
		m.options.Events.Claim(record.Namespace, record.Name, uid, EventPrepareFailed, err.Error())
	}
	return err
}

// checkAgain tells people about a share that pods use together which have
// reserved the claim after it was prepared: the kubelet does not ask about those.
// With NRI their containers have been refused; without it they run, and nothing
// but this says so.
func (m *Manager) checkAgain(ctx context.Context, uid types.UID, record *checkpoint.Claim) error {
	if !record.Limited() {
		return nil
	}
	containers, err := m.containers(ctx, record)
	if err != nil {
		return err
	}
	refusal := checkSharing(record, containers)
	if refusal == nil && record.Delivery == checkpoint.DeliveryCDI {
		_, refusal = groupsForCDI(record, containers, func(*container) []string { return nil })
	}
	if refusal != nil {
		klog.FromContext(ctx).Info("A prepared claim is used in a way that its limits are not made for",
			"claim", klog.KRef(record.Namespace, record.Name), "reason", refusal.Reason, "message", refusal.Message)
		m.options.Events.Claim(record.Namespace, record.Name, uid, string(refusal.Reason), refusal.Message)
	}
	return nil
}

// removeIfGone unprepares a claim that the API server does not know any more
// (under that UID), that has lost its allocation here, or that nobody has
// reserved, unless a live pod uses it. It reports whether it did.
func (m *Manager) removeIfGone(ctx context.Context, document *checkpoint.Document, uid types.UID) (bool, error) {
	record := document.Claims[uid]
	claim, err := m.options.Cluster.Claim(ctx, record.Namespace, record.Name)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, err
	case claim.UID == uid && allocatedTo(claim, m.options.NodeName) && len(claim.Status.ReservedFor) > 0:
		return false, nil
	}
	// A claim can be deleted by force while its pod still runs.
	pods, err := m.options.Cluster.PodsOfNode(ctx, m.options.NodeName)
	if err != nil {
		return false, err
	}
	for i := range pods {
		if !finished(&pods[i]) && record.HasConsumer(pods[i].UID) {
			return false, nil
		}
	}
	if err := m.undo(uid); err != nil {
		return false, fmt.Errorf("removing what is left of claim %q: %w", record, err)
	}
	delete(document.Claims, uid)
	klog.FromContext(ctx).Info("Removed what was left of a claim that is gone", "claim", klog.KRef(record.Namespace, record.Name), "uid", uid)
	m.options.Events.Node(EventOrphanRemoved, fmt.Sprintf("removed what was left of claim %q (%s), which is gone", record, uid))
	m.options.Status.Unprepared(uid, record)
	return true, nil
}

// reconcileLost takes up claims of live pods that the checkpoint does not know:
// it was lost. Claims that have neither a spec nor a container that ran are left
// to the kubelet, which has yet to ask for them.
func (m *Manager) reconcileLost(ctx context.Context, document *checkpoint.Document, state *nodeState, known devices) error {
	specs, err := m.host.ListSpecs()
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(state.claims)) {
		if document.Claims[uid] != nil || (!slices.Contains(specs, uid) && !state.running[uid]) {
			continue
		}
		claim := state.claims[uid]
		if err := m.takeUp(ctx, document, claim, known); err != nil {
			errs = append(errs, fmt.Errorf("taking up claim \"%s/%s\" again: %w", claim.Namespace, claim.Name, err))
			m.options.Events.Claim(claim.Namespace, claim.Name, uid, EventPrepareFailed, err.Error())
		}
	}
	return errors.Join(errs...)
}

// takeUp prepares a claim under the lock. It may be in use, so nothing is taken
// back when it fails, and what it uses is counted even if it is too much.
func (m *Manager) takeUp(ctx context.Context, document *checkpoint.Document, claim *resourceapi.ResourceClaim, known devices) error {
	record, err := computeRecord(claim, m.options.NodeName, known)
	if err != nil {
		return err
	}
	if err := m.deliver(ctx, record); err != nil {
		return err
	}
	planned, err := m.plan(ctx, claim.UID, record)
	if err != nil {
		return err
	}
	if err := m.apply(ctx, claim.UID, planned); err != nil {
		return err
	}
	record.State, record.PreparedAt = checkpoint.StateCompleted, m.options.Now().UTC()
	document.Claims[claim.UID] = record
	m.options.Status.Prepared(claim.UID, record)
	return nil
}

// reconcileStrays removes specs and regions that belong to no record, unless a
// live pod may have need of them.
func (m *Manager) reconcileStrays(ctx context.Context, document *checkpoint.Document, state *nodeState) error {
	if state.missing {
		klog.FromContext(ctx).V(2).Info("A live pod refers to a claim that is gone; leaving unknown CDI specs alone")
		return nil
	}
	specs, err := m.host.ListSpecs()
	if err != nil {
		return err
	}
	regions, err := m.host.ListClaimRegions()
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(specs, regions)))) {
		if document.Claims[uid] != nil || state.claims[uid] != nil {
			continue
		}
		if err := m.undo(uid); err != nil {
			errs = append(errs, fmt.Errorf("removing what is left of an unknown claim: %w", err))
			continue
		}
		klog.FromContext(ctx).Info("Removed what was left of an unknown claim", "uid", uid)
		m.options.Events.Node(EventOrphanRemoved, fmt.Sprintf("removed the CDI spec and regions of claim UID %q, which no pod of this node uses", uid))
	}
	return errors.Join(errs...)
}
