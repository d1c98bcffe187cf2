// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// subsystem prefixes all metrics.
const subsystem = "topodra"

// Results of planning one node, the values of the label of Plans.
const (
	// ResultPlanned: a set was chosen and the allocator will follow.
	ResultPlanned = "planned"
	// ResultDeviating: the allocator will take another set than the best.
	ResultDeviating = "deviating"
	// ResultUnplanned: the allocator chooses alone.
	ResultUnplanned = "unplanned"
	// ResultRefused: the node cannot keep a guarantee.
	ResultRefused = "refused"
	// ResultRuledOut: the node has too few devices left, so the allocator was not
	// asked.
	ResultRuledOut = "ruled_out"
)

// Scopes of Quality.
const (
	// ScopeNode compares with the best set of the chosen node.
	ScopeNode = "node"
	// ScopeCluster compares with the best set of all nodes that were filtered.
	ScopeCluster = "cluster"
)

var (
	// Plans counts what became of planning a node for a pod.
	Plans = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "plans_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of nodes planned for a pod, by result: planned, deviating (the allocator will take another set), unplanned (the allocator chooses alone), refused (a required topology is not available), ruled_out (too few devices are left, the allocator was not asked).",
	}, []string{"result"})

	// Unplanned counts why nodes were left to the allocator.
	Unplanned = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "plan_fallbacks_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of nodes whose devices were left in their published order although the pod asked for some of them, by reason.",
	}, []string{"reason"})

	// Seconds is the time that planning one node took, remembered plans included.
	Seconds = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "plan_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time that planning one node for a pod added to Filter.",
		Buckets: metrics.ExponentialBuckets(2e-6, 4, 10),
	})

	// MemoHits counts plans that were remembered from an earlier pod.
	MemoHits = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "plan_memo_hits_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of nodes whose plan was remembered from an earlier pod with the same demand.",
	})

	// OracleCalls counts questions to the allocator.
	OracleCalls = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "oracle_calls_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of times the in-tree allocator was asked what it would do with a planned order.",
	})

	// Mismatches counts allocations that differ from their plan.
	Mismatches = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "plan_mismatches_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of pods whose devices at Reserve were not those that Filter had planned.",
	})

	// Unsettled counts answers of the allocator that did not hold.
	Unsettled = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "plan_unsettled_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of pods for which the in-tree plugin, at Reserve, refused devices of a node that it had accepted before. The pod is tried again.",
	})

	// MaskFallbacks counts guarantees and preferences that could not be enforced
	// as intended.
	MaskFallbacks = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "mask_fallbacks_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of nodes where devices could not be hidden from the allocator, or where its choice with the planned devices failed, by reason.",
	}, []string{"reason"})

	// Quality compares the bandwidth of allocated sets with the best one.
	Quality = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "quality_ratio", StabilityLevel: metrics.ALPHA,
		Help:    "Bandwidth of the set that a pod was given, divided by the best that was available at that moment on the node or among all filtered nodes. Only pods with two communicating GPUs or more.",
		Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999, 1},
	}, []string{"scope"})
)

var registerOnce sync.Once

// RegisterMetrics adds the metrics to the scheduler's registry. Further calls do
// nothing.
func RegisterMetrics() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(Plans, Unplanned, Seconds, MemoHits, OracleCalls, Mismatches, Unsettled, MaskFallbacks, Quality)
	})
}
