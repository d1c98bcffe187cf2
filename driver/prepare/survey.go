// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/checkpoint"
)

// surveyTime bounds the questions of one reconciliation, so that a server which
// does not answer leads to an error and another try.
const surveyTime = 2 * time.Minute

// survey is what a reconciliation finds out, and what it intends, before it takes
// the lock. Nothing on the node has been changed.
type survey struct {
	state   *nodeState
	records map[types.UID]*surveyedRecord
	lost    map[types.UID]*lostClaim
}

// surveyedRecord is a record of the checkpoint and what is to be done about it:
// nothing if there is an error or all the rest is empty.
type surveyedRecord struct {
	record *checkpoint.Claim // as it was then
	err    error

	// gone: it is to be removed. live: pods of the node use it.
	gone, live bool

	// plan is what should be there of a completed record, and consumers are the
	// pods that have reserved the claim by now.
	plan      *plan
	consumers []checkpoint.Consumer
}

// lostClaim is a claim of a live pod that the checkpoint does not know, and what
// it should know, or why that cannot be said.
type lostClaim struct {
	claim  *resourceapi.ResourceClaim
	record *checkpoint.Claim
	plan   *plan
	err    error
}

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

// survey finds out what a reconciliation needs to know. The checkpoint is read
// first: a pod that it names is older, so that it is missing from the list of pods
// only if it is gone.
func (m *Manager) survey(ctx context.Context) (*survey, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	document, err := m.host.Load()
	if _, corrupt := errors.AsType[*checkpoint.CorruptError](err); corrupt {
		document, err = checkpoint.New(m.options.NodeName, ""), nil // it is set aside under the lock
	}
	if err != nil {
		return nil, err
	}
	state, err := m.readNode(ctx)
	if err != nil {
		return nil, err
	}
	known, err := m.devices(ctx)
	if err != nil {
		return nil, err
	}
	specs, err := m.host.ListSpecs()
	if err != nil {
		return nil, err
	}
	found := &survey{state: state, records: map[types.UID]*surveyedRecord{}, lost: map[types.UID]*lostClaim{}}
	for _, uid := range document.SortedUIDs() {
		found.records[uid] = m.surveyRecord(ctx, uid, document.Claims[uid], state, known)
	}
	for _, uid := range slices.Sorted(maps.Keys(state.claims)) {
		// Claims that have neither a spec nor a container that ran are left to the
		// kubelet, which has yet to ask for them.
		if document.Claims[uid] == nil && (slices.Contains(specs, uid) || state.running[uid]) {
			found.lost[uid] = m.surveyLost(ctx, state.claims[uid], known)
		}
	}
	return found, nil
}

// surveyRecord decides about one record.
func (m *Manager) surveyRecord(ctx context.Context, uid types.UID, record *checkpoint.Claim, state *nodeState, known devices) *surveyedRecord {
	out := &surveyedRecord{record: record, live: state.claims[uid] != nil || state.usedBy(record), consumers: record.Consumers}
	if !out.live {
		out.gone, out.err = m.isAbandoned(ctx, uid, record)
		return out
	}
	if record.State != checkpoint.StateCompleted {
		return out
	}
	fresh := *record
	if claim := state.claims[uid]; claim != nil {
		out.consumers = consumers(claim)
	}
	fresh.Consumers = out.consumers
	err := known.verify(&fresh)
	if err == nil {
		out.plan, err = m.plan(ctx, uid, &fresh)
	}
	if err != nil {
		err = m.repairFailed(uid, record, err)
	}
	if out.err = errors.Join(err, m.checkAgain(ctx, uid, &fresh)); out.err != nil {
		out.plan = nil
	}
	return out
}

// surveyLost computes what should be known of a claim.
func (m *Manager) surveyLost(ctx context.Context, claim *resourceapi.ResourceClaim, known devices) *lostClaim {
	out := &lostClaim{claim: claim}
	if out.record, out.err = computeRecord(claim, m.options.NodeName, known); out.err != nil {
		return out
	}
	if out.err = m.deliver(ctx, out.record); out.err != nil {
		return out
	}
	out.plan, out.err = m.plan(ctx, claim.UID, out.record)
	return out
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

// livePods lists the node's pods whose containers run or may run again.
func (m *Manager) livePods(ctx context.Context) (map[types.UID]bool, error) {
	pods, err := m.options.Cluster.PodsOfNode(ctx, m.options.NodeName)
	if err != nil {
		return nil, err
	}
	out := map[types.UID]bool{}
	for i := range pods {
		if !finished(&pods[i]) {
			out[pods[i].UID] = true
		}
	}
	return out, nil
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

// usedBy says whether a live pod of the node is a consumer of the record.
func (s *nodeState) usedBy(record *checkpoint.Claim) bool {
	return slices.ContainsFunc(record.Consumers, func(c checkpoint.Consumer) bool { return s.pods[c.UID] })
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

// isAbandoned says whether the claim is gone and no container has it either. A pod
// that was deleted by force is gone from the API server at once, but its containers
// run until the kubelet has ended them, which takes long if one hangs in the kernel;
// what they have is not free before that. Whoever asks has looked for live pods.
func (m *Manager) isAbandoned(ctx context.Context, uid types.UID, record *checkpoint.Claim) (bool, error) {
	gone, err := m.isGone(ctx, uid, record)
	if err != nil || !gone {
		return false, err
	}
	containers, err := m.options.Containers()
	if err != nil {
		return false, fmt.Errorf("finding out whether containers of claim %q, which is gone, are still there: %w", record, err)
	}
	for _, id := range slices.Sorted(maps.Keys(containers)) {
		if owner := containers[id]; record.HasConsumer(owner.PodUID) {
			klog.FromContext(ctx).Info("A claim is gone, but a container of its pod is still there, so it keeps its place",
				"claim", klog.KRef(record.Namespace, record.Name), "pod", klog.KRef(owner.Namespace, owner.Pod), "container", owner.Container, "containerID", id)
			return false, nil
		}
	}
	return true, nil
}

// isGone says whether the API server does not know the claim any more (under that
// UID), whether it has lost its allocation here, or whether nobody has reserved it.
// A claim can be deleted by force while its pod still runs, so whoever asks has to
// look for live pods, too.
func (m *Manager) isGone(ctx context.Context, uid types.UID, record *checkpoint.Claim) (bool, error) {
	claim, err := m.options.Cluster.Claim(ctx, record.Namespace, record.Name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return claim.UID != uid || !allocatedTo(claim, m.options.NodeName) || len(claim.Status.ReservedFor) == 0, nil
}
