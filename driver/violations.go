// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/internal/owners"
)

// OnViolation is what is done about a container that uses more memory of a GPU
// than it has.
type OnViolation string

const (
	// OnViolationTell writes an event and counts.
	OnViolationTell OnViolation = "Tell"

	// OnViolationEvict also evicts the pod, as far as its disruption budget
	// allows.
	OnViolationEvict OnViolation = "Evict"

	// OnViolationTaint also gives the GPU a taint that keeps new work away until
	// nobody is above its limit any more.
	OnViolationTaint OnViolation = "Taint"
)

// ReasonLimitExceeded is the reason of the event on the pod.
const ReasonLimitExceeded = "GPUMemoryLimitExceeded"

// ProcDir is where Linux tells about processes.
const ProcDir = "/proc"

var violations = metrics.NewCounter(&metrics.CounterOpts{
	Name: "topodra_driver_limit_violations_total", StabilityLevel: metrics.ALPHA,
	Help: "Times that a container was found to use more memory of a GPU than it has.",
})

// podEvents writes events about pods.
type podEvents interface {
	Pod(namespace, name string, uid types.UID, reason, message string)
}

// violationActions implements watch.Actions.
type violationActions struct {
	client kubernetes.Interface
	events podEvents
	policy OnViolation
	ledger *health.Ledger // nil but for OnViolationTaint
}

var _ watch.Observer = &violationActions{}

// Looked implements watch.Observer.
func (a *violationActions) Looked(_ context.Context, seen []string, violations []watch.Violation, err error) {
	if a.policy != OnViolationTaint || a.ledger == nil {
		return
	}
	found := map[device.UUID][]health.Finding{}
	for i := range violations {
		uuid := device.UUID(violations[i].UUID)
		if len(found[uuid]) > 0 {
			continue // One says enough; each has its own event.
		}
		found[uuid] = []health.Finding{{
			Kind: health.KindViolation, Value: "over-limit", Severity: health.Degraded,
			Message: violations[i].String(), Advice: "look at the pod, and delete it if it does not keep to its limit; see docs/enforcement.md",
		}}
	}
	if err == nil {
		a.ledger.LookAll(sourceViolations, found)
		return
	}
	for _, name := range seen {
		uuid := device.UUID(name)
		a.ledger.Look(sourceViolations, uuid, found[uuid]...)
		delete(found, uuid)
	}
	// What could not be seen is not over.
	for _, uuid := range slices.Sorted(maps.Keys(found)) {
		a.ledger.Raise(sourceViolations, uuid, found[uuid]...)
	}
}

// watchesForTaints says whether somebody looks for violations and taints GPUs.
func watchesForTaints(c *ClaimsConfig) bool {
	return c != nil && c.Processes != nil && c.OnViolation == OnViolationTaint
}

// forgetViolations ends taints that nobody looks for any more: of what an earlier
// configuration has found, nothing stays.
func forgetViolations(config *Config, ledger *health.Ledger) {
	if watchesForTaints(config.Claims) {
		return
	}
	ledger.SetCleanLooks(sourceViolations, 1)
	ledger.LookAll(sourceViolations, nil)
}

// Violated implements watch.Actions.
func (a *violationActions) Violated(ctx context.Context, violation *watch.Violation) {
	violations.Inc()
	owner := violation.Owner
	klog.FromContext(ctx).Info("A container uses more memory of a GPU than it has", "pod", klog.KRef(owner.Namespace, owner.Pod), "container", owner.Container,
		"uuid", violation.UUID, "usedMiB", violation.UsedMiB, "limitMiB", violation.LimitMiB)
	message := violation.String()
	if a.policy == OnViolationEvict {
		message += "; the pod is evicted"
	}
	a.events.Pod(owner.Namespace, owner.Pod, owner.PodUID, ReasonLimitExceeded, message)
	if a.policy != OnViolationEvict {
		return
	}
	err := a.client.PolicyV1().Evictions(owner.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Pod},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(owner.PodUID))},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Evicting a pod failed; it is tried again while the violation lasts", "pod", klog.KRef(owner.Namespace, owner.Pod))
	}
}

// newWatcher watches the containers that are remembered in the state directory;
// nil where there is nobody to ask for processes.
func newWatcher(config *Config, events podEvents) (*watch.Watcher, error) {
	c := config.Claims
	if c.Processes == nil {
		return nil, nil
	}
	return watch.New(watch.Options{
		Source: c.Processes, Owners: owners.NewStore(filepath.Join(c.StateDir, ownersDir)), Proc: os.DirFS(ProcDir),
		Actions: &violationActions{client: config.Client, events: events, policy: c.OnViolation, ledger: config.ledger},
	})
}

// validateOnViolation reports an unknown policy.
func validateOnViolation(policy OnViolation) error {
	switch policy {
	case "", OnViolationTell, OnViolationEvict, OnViolationTaint:
		return nil
	default:
		return fmt.Errorf("policy %q for violations is unknown; known are %q, %q and %q", policy, OnViolationTell, OnViolationEvict, OnViolationTaint)
	}
}
