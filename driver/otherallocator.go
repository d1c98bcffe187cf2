// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/health"
)

// DefaultOtherAllocators are the names by which NVIDIA's device plugin, and others
// in its place such as HAMi's, offer whole GPUs, GPUs by time and MIG devices.
var DefaultOtherAllocators = []string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"}

// DefaultOtherAllocatorPeriod is how often a node looks at itself for them. The
// answer comes from the API server's cache.
const DefaultOtherAllocatorPeriod = 30 * time.Second

var otherAllocatorDevices = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name: "topodra_driver_other_allocator_devices", StabilityLevel: metrics.ALPHA,
	Help: "What the node offers of the same GPUs as an extended resource of somebody else, by resource. Above 0, GPUs are tainted.",
}, []string{"resource"})

// otherAllocators looks whether somebody else hands out the node's GPUs: then two
// would book the same GPU, and neither knows of the other.
type otherAllocators struct {
	client   kubernetes.Interface
	nodeName string
	patterns []string
	period   time.Duration
	ledger   *health.Ledger
	found    map[string]int64
}

// newOtherAllocators looks for what is configured.
func newOtherAllocators(config *Config, ledger *health.Ledger) *otherAllocators {
	period := config.Health.OtherAllocatorPeriod
	if period == 0 {
		period = DefaultOtherAllocatorPeriod
	}
	return &otherAllocators{client: config.Client, nodeName: config.Publish.NodeName, patterns: config.Health.OtherAllocators, period: period, ledger: ledger}
}

// run looks until ctx ends.
func (o *otherAllocators) run(ctx context.Context) {
	if len(o.patterns) == 0 {
		return
	}
	ticker := time.NewTicker(o.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			o.check(ctx)
		}
	}
}

// check looks once.
func (o *otherAllocators) check(ctx context.Context) {
	if len(o.patterns) == 0 {
		// Of what an earlier configuration has found, nothing stays.
		o.ledger.LookAll(sourceOtherAllocator, nil)
		return
	}
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.nodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking whether somebody else offers the node's GPUs failed; it is tried again")
		}
		return
	}
	found := offeredByOthers(node.Status.Allocatable, o.patterns)
	for name := range o.found {
		if _, still := found[name]; !still {
			otherAllocatorDevices.DeleteLabelValues(name)
		}
	}
	for name, count := range found {
		otherAllocatorDevices.WithLabelValues(name).Set(float64(count))
	}
	o.found = found
	conditions := map[device.UUID][]health.Finding{}
	if len(found) > 0 {
		conditions[health.AllDevices] = []health.Finding{otherAllocatorFinding(found)}
	}
	o.ledger.LookAll(sourceOtherAllocator, conditions)
}

// offeredByOthers returns how much a node offers of the resources. The kubelet
// keeps a resource with 0 when its device plugin is gone: that is not offered. What
// a DeviceClass offers under such a name (extendedResourceName) is in no node's
// status.
func offeredByOthers(allocatable corev1.ResourceList, patterns []string) map[string]int64 {
	out := map[string]int64{}
	for name, quantity := range allocatable {
		if quantity.Sign() > 0 && slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, string(name)) }) {
			out[string(name)] = quantity.Value()
		}
	}
	return out
}

// matches compares with a name that may end with "*".
func matches(pattern, name string) bool {
	if prefix, open := strings.CutSuffix(pattern, "*"); open {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// otherAllocatorFinding describes resources by name.
func otherAllocatorFinding(found map[string]int64) health.Finding {
	var parts []string
	names := slices.Sorted(maps.Keys(found))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d of %q", found[name], name))
	}
	return health.Finding{
		Kind: health.KindOtherAllocator, Value: taintValue(names[0]), Severity: health.Fatal,
		Message: fmt.Sprintf("somebody else offers GPUs of this node as well (allocatable: %s), so both could hand out the same one", strings.Join(parts, ", ")),
		Advice:  "remove the device plugin from this node (NVIDIA's, HAMi's, or the one that registers the resource), or this driver; a DeviceClass with extendedResourceName serves pods that ask for the resource",
	}
}

// maxTaintValue is the length of a label value.
const maxTaintValue = 63

// taintValue turns the name of a resource into a label value.
func taintValue(resource string) string {
	value := strings.ReplaceAll(resource, "/", ".")
	return strings.TrimRight(value[:min(len(value), maxTaintValue)], ".-_")
}

// checkPatterns reports names that would match everything or nothing.
func checkPatterns(patterns []string) error {
	for _, pattern := range patterns {
		if prefix := strings.TrimSuffix(pattern, "*"); !strings.Contains(prefix, "/") || strings.Contains(prefix, "*") {
			return fmt.Errorf("%q is not the name of an extended resource, such as nvidia.com/gpu or nvidia.com/mig-*", pattern)
		}
	}
	return nil
}
