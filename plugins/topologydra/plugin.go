// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/plugins/internal/plan"
)

// Name of the plugin in the registry and in configurations.
const Name = api.PluginTopologyDynamicResources

// Plugin decorates the in-tree plugin. Extension points that it does not define
// itself are those of the embedded one.
type Plugin struct {
	*dynamicresources.DynamicResources

	args     *api.TopologyDynamicResourcesArgs
	options  Options
	features feature.Features
	handle   fwk.Handle
	overlay  *kube.Overlay
	matcher  *kube.Matcher
	planner  *nodePlanner
	// filterTimeout limits one question to the allocator; 0 is no limit.
	filterTimeout time.Duration
}

var (
	_ fwk.PreEnqueuePlugin         = &Plugin{}
	_ fwk.PreFilterPlugin          = &Plugin{}
	_ fwk.FilterPlugin             = &Plugin{}
	_ fwk.PostFilterPlugin         = &Plugin{}
	_ fwk.PodGroupPostFilterPlugin = &Plugin{}
	_ fwk.ScorePlugin              = &Plugin{}
	_ fwk.ReservePlugin            = &Plugin{}
	_ fwk.EnqueueExtensions        = &Plugin{}
	_ fwk.PreBindPlugin            = &Plugin{}
	_ fwk.SignPlugin               = &Plugin{}
)

// Options are for programs that build the plugin in; a configuration cannot set
// them. The zero value is right for production.
type Options struct {
	// AllowWithoutConsumableCapacity lets the plugin start while the feature
	// gate DRAConsumableCapacity is off. GPUs cannot be shared then.
	AllowWithoutConsumableCapacity bool

	// PlanEveryPool plans pools of any driver, also when neither the arguments
	// nor the devices say anything about topology. It is for running other
	// projects' tests through the planner.
	PlanEveryPool bool

	// AskAlways asks the allocator about nodes, too, on which counting shows that
	// devices are missing. It is for tests that expect the allocator to time out.
	AskAlways bool

	// SkipProfileCheck leaves out the check of the profile's other plugins.
	SkipProfileCheck bool
}

// New makes the plugin. It is the factory for the scheduler's registry.
func New(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	return NewFactory(Options{})(ctx, obj, handle)
}

// NewFactory returns a factory with other options.
func NewFactory(options Options) frameworkruntime.PluginFactory {
	return func(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := newPlugin(ctx, obj, handle, options)
		if err != nil {
			return nil, fmt.Errorf("starting plugin %q: %w", Name, err)
		}
		return plugin, nil
	}
}

// newPlugin wires the decorator around a new in-tree plugin.
func newPlugin(ctx context.Context, obj runtime.Object, handle fwk.Handle, options Options) (*Plugin, error) {
	args, err := api.DecodeTopologyDynamicResourcesArgs(obj)
	if err != nil {
		return nil, err
	}
	// The gates are set by flags, after package initialisation.
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	if err := checkFeatures(features, options); err != nil {
		return nil, err
	}
	manager := handle.SharedDRAManager()
	if manager == nil {
		return nil, errors.New("the scheduler has no DRA manager: enable the feature gate DynamicResourceAllocation, or leave this plugin out of the profile")
	}
	innerArgs, err := inTreeArgs(args)
	if err != nil {
		return nil, err
	}
	overlay := kube.NewOverlay(manager)
	innerHandle := kube.NewInnerHandle(handle, overlay)
	inner, err := dynamicresources.New(ctx, innerArgs, innerHandle, features)
	if err != nil {
		return nil, fmt.Errorf("starting the in-tree plugin: %w", err)
	}
	innerHandle.Started()
	embedded, ok := inner.(*dynamicresources.DynamicResources)
	if !ok {
		return nil, fmt.Errorf("the in-tree plugin is a %T: this build does not fit its Kubernetes version", inner)
	}
	matcher := kube.NewMatcher(dynamicresources.AllocatorFeatures(features))
	planner, err := newNodePlanner(args, options, matcher)
	if err != nil {
		return nil, err
	}
	plan.RegisterMetrics()
	plugin := &Plugin{
		DynamicResources: embedded, args: args, options: options, features: features,
		handle: handle, overlay: overlay, matcher: matcher, planner: planner,
	}
	if features.EnableDRASchedulerFilterTimeout && innerArgs.FilterTimeout != nil {
		plugin.filterTimeout = innerArgs.FilterTimeout.Duration
	}
	return plugin, nil
}

// Name of the plugin.
func (pl *Plugin) Name() string { return Name }

// EventsToRegister returns the in-tree plugin's events. The scheduler calls it
// once, when all plugins of all profiles exist, so this is also where the
// profile is checked.
func (pl *Plugin) EventsToRegister(ctx context.Context) ([]fwk.ClusterEventWithHint, error) {
	if !pl.options.SkipProfileCheck {
		if err := checkProfile(pl.handle); err != nil {
			return nil, fmt.Errorf("checking profile %q for plugin %q: %w", pl.handle.ProfileName(), Name, err)
		}
	}
	return pl.DynamicResources.EventsToRegister(ctx)
}
