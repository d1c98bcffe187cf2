// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api"
)

// shippedConfig is the configuration that users get, relative to the repository.
const shippedConfig = "manifests/scheduler/scheduler-config.yaml"

// SchedulerConfig is the shipped scheduler configuration while it is being changed.
type SchedulerConfig struct {
	object map[string]any
	errs   []error
}

// schedulerConfig reads the shipped configuration and changes it.
func schedulerConfig(root string, change func(*SchedulerConfig)) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, shippedConfig))
	if err != nil {
		return "", fmt.Errorf("reading the scheduler configuration: %w", err)
	}
	if change == nil {
		return string(data), nil
	}
	config := &SchedulerConfig{}
	if err := yaml.Unmarshal(data, &config.object); err != nil {
		return "", fmt.Errorf("reading the scheduler configuration: %w", err)
	}
	change(config)
	if err := errors.Join(config.errs...); err != nil {
		return "", fmt.Errorf("changing the scheduler configuration: %w", err)
	}
	data, err = yaml.Marshal(config.object)
	if err != nil {
		return "", fmt.Errorf("writing the scheduler configuration: %w", err)
	}
	return string(data), nil
}

// AddProfile appends a profile, as YAML.
func (c *SchedulerConfig) AddProfile(text string) {
	var profile map[string]any
	if err := yaml.Unmarshal([]byte(text), &profile); err != nil {
		c.errs = append(c.errs, fmt.Errorf("reading a profile: %w", err))
		return
	}
	profiles, ok := c.object["profiles"].([]any)
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("profiles: %T is no list", c.object["profiles"]))
		return
	}
	c.object["profiles"] = append(profiles, profile)
}

// SetArg sets one argument of TopologyDynamicResources in the shipped profile. The value is YAML.
func (c *SchedulerConfig) SetArg(name, text string) {
	for _, profile := range c.profiles() {
		plugins, _ := profile["pluginConfig"].([]any)
		for _, plugin := range plugins {
			config, _ := plugin.(map[string]any)
			args, ok := config["args"].(map[string]any)
			if ok && config["name"] == api.PluginTopologyDynamicResources {
				args[name] = c.value(text)
				return
			}
		}
	}
	c.errs = append(c.errs, fmt.Errorf("setting argument %q: no arguments of plugin %q", name, api.PluginTopologyDynamicResources))
}

// SetPlugins replaces the plugins of an extension point in the shipped profile. The value is YAML.
func (c *SchedulerConfig) SetPlugins(point, text string) {
	for _, profile := range c.profiles() {
		if plugins, ok := profile["plugins"].(map[string]any); ok {
			plugins[point] = c.value(text)
			return
		}
	}
	c.errs = append(c.errs, fmt.Errorf("setting plugins of %q: no profile has plugins", point))
}

// profiles returns those that are objects.
func (c *SchedulerConfig) profiles() []map[string]any {
	var profiles []map[string]any
	list, _ := c.object["profiles"].([]any)
	for _, profile := range list {
		if object, ok := profile.(map[string]any); ok {
			profiles = append(profiles, object)
		}
	}
	return profiles
}

// value parses YAML.
func (c *SchedulerConfig) value(text string) any {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		c.errs = append(c.errs, fmt.Errorf("reading %q: %w", text, err))
	}
	return value
}
