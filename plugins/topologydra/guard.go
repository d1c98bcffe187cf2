// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"errors"
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// inTreeStateKey is where the in-tree plugin keeps its state in the CycleState.
const inTreeStateKey fwk.StateKey = dynamicresources.Name

// errBothPlugins tells how to repair a profile with two allocators.
var errBothPlugins = fmt.Errorf("%q allocates the same devices: add it to plugins.multiPoint.disabled of this profile", dynamicresources.Name)

// checkFeatures refuses gates with which the plugin cannot keep its promises.
func checkFeatures(features feature.Features, options Options) error {
	switch {
	case !features.EnableDynamicResourceAllocation:
		return errors.New("the feature gate DynamicResourceAllocation is off: enable it, or leave this plugin out of the profile")
	case !features.EnableDRAConsumableCapacity && !options.AllowWithoutConsumableCapacity:
		return errors.New("the feature gate DRAConsumableCapacity is off, GPUs could not be shared: remove DRAConsumableCapacity=false from --feature-gates")
	}
	return nil
}

// pluginLister is the part of the scheduler's framework that a handle does not
// promise, but has.
type pluginLister interface {
	ListPlugins() *config.Plugins
}

// checkProfile looks at the finished profile. A handle that cannot list its
// plugins, such as a simulator's, is not checked.
func checkProfile(handle fwk.Handle) error {
	lister, ok := handle.(pluginLister)
	if !ok {
		return nil
	}
	return checkPlugins(lister.ListPlugins())
}

// checkPlugins says what to change in a profile that would not work.
func checkPlugins(plugins *config.Plugins) error {
	for point, set := range map[string]config.PluginSet{
		"filter": plugins.Filter, "preFilter": plugins.PreFilter, "reserve": plugins.Reserve, "preBind": plugins.PreBind,
	} {
		if slices.Contains(pluginNames(set), dynamicresources.Name) {
			return errBothPlugins
		}
		if !slices.Contains(pluginNames(set), Name) {
			return fmt.Errorf("it is missing in %s: enable it in plugins.multiPoint", point)
		}
	}
	for _, point := range []struct {
		name string
		set  config.PluginSet
	}{{"postFilter", plugins.PostFilter}, {"podGroupPostFilter", plugins.PodGroupPostFilter}} {
		if err := checkBeforePreemption(point.name, point.set); err != nil {
			return err
		}
	}
	return nil
}

// checkBeforePreemption wants idle claims to be freed before pods are evicted.
// multiPoint appends an out-of-tree plugin after the default ones, so it has to
// be named there explicitly.
func checkBeforePreemption(point string, set config.PluginSet) error {
	enabled := pluginNames(set)
	own, preemption := slices.Index(enabled, Name), slices.Index(enabled, names.DefaultPreemption)
	switch {
	case own < 0:
		return fmt.Errorf("it is missing in %s: enable it in plugins.multiPoint and list it in plugins.%s.enabled", point, point)
	case preemption >= 0 && preemption < own:
		return fmt.Errorf("%q comes before it in %s, so pods would be evicted although a claim could be freed: list %q in plugins.%s.enabled",
			names.DefaultPreemption, point, Name, point)
	}
	return nil
}

func pluginNames(set config.PluginSet) []string {
	enabled := make([]string, 0, len(set.Enabled))
	for _, plugin := range set.Enabled {
		enabled = append(enabled, plugin.Name)
	}
	return enabled
}
