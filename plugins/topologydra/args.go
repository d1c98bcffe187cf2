// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"math"

	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology/placement"
)

// inTreeArgs returns the in-tree plugin's arguments with its own defaults, which
// depend on feature gates, and what our arguments say.
func inTreeArgs(args *api.TopologyDynamicResourcesArgs) (*config.DynamicResourcesArgs, error) {
	scheme := configv1.GetPluginArgConversionScheme()
	external := &schedulerv1.DynamicResourcesArgs{FilterTimeout: args.FilterTimeout, BindingTimeout: args.BindingTimeout}
	scheme.Default(external)
	converted, err := scheme.ConvertToVersion(external, config.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("converting arguments for the in-tree plugin: %w", err)
	}
	internal, ok := converted.(*config.DynamicResourcesArgs)
	if !ok {
		return nil, fmt.Errorf("converting arguments for the in-tree plugin: got a %T", converted)
	}
	return internal, nil
}

// plannerOptions translates our arguments.
func plannerOptions(args *api.TopologyDynamicResourcesArgs) placement.Options {
	options := placement.Options{TierPercent: int(*args.TierPercent), MaxSets: int(*args.MaxCandidates)}
	if options.TierPercent == 0 {
		// Zero stands for the default there, and for no tolerance here.
		options.TierPercent = -1
	}
	for _, typical := range args.Mix {
		entry := placement.Typical{GPUs: int(typical.GPUs), Weight: int64(typical.Weight)}
		if typical.Memory != nil {
			entry.Use = placement.Capacity{MemoryMiB: toMiB(typical.Memory.Value()), CoresPercent: int64(typical.Cores), Slots: 1}
		}
		options.Mix = append(options.Mix, entry)
	}
	return options
}

// toMiB rounds down, but never to nothing.
func toMiB(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	return max(bytes>>20, 1)
}

// clampInt converts a count that the API allows to be absurdly large.
func clampInt(count int64) int { return int(min(count, math.MaxInt32)) }
