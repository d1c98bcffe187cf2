// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// A configuration that would not work is refused at the start, with words that tell what to change.
func TestBadConfigurationIsRefused(t *testing.T) {
	s := bed.Scene(t)
	if err := s.StopScheduler(t.Context()); err != nil {
		t.Error(err)
	}
	s.Finally(func(ctx context.Context) error { return s.StartScheduler(ctx) })
	for _, c := range []struct {
		name    string
		change  func(*testbed.SchedulerConfig)
		message []string
	}{
		{
			"unknown-argument", func(c *testbed.SchedulerConfig) { c.SetArg("defaultPolicie", "None") },
			[]string{api.PluginTopologyDynamicResources, "defaultPolicie"},
		},
		{
			"bad-policy", func(c *testbed.SchedulerConfig) { c.SetArg("defaultPolicy", "Sometimes") },
			[]string{"defaultPolicy", "Sometimes"},
		},
		{
			"bad-mix", func(c *testbed.SchedulerConfig) { c.SetArg("mix", "[{gpus: 0, weight: 1}]") },
			[]string{"mix", "gpus"},
		},
		{
			"bad-weights", func(c *testbed.SchedulerConfig) {
				c.SetArg("scoreWeights", "{quality: -1, allocated: 0, remaining: 0}")
			},
			[]string{"scoreWeights"},
		},
		{
			"both-plugins", func(c *testbed.SchedulerConfig) {
				c.SetPlugins("multiPoint", "{enabled: [{name: TopologyDynamicResources, weight: 2}, {name: TopologyScore, weight: 50}]}")
			},
			[]string{"DynamicResources", "multiPoint.disabled"},
		},
		{
			"score-alone", func(c *testbed.SchedulerConfig) {
				c.SetPlugins("multiPoint", "{enabled: [{name: TopologyScore, weight: 50}], disabled: [{name: DynamicResources}]}")
				c.SetPlugins("postFilter", "{}")
				c.SetPlugins("podGroupPostFilter", "{}")
			},
			[]string{api.PluginTopologyScore, api.PluginTopologyDynamicResources, "missing"},
		},
		{
			"preemption-first", func(c *testbed.SchedulerConfig) { c.SetPlugins("postFilter", "{}") },
			[]string{"DefaultPreemption", "plugins.postFilter.enabled"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := s.StartSchedulerWith(t.Context(), c.change)
			if err == nil {
				t.Error(errors.Join(errors.New("the scheduler started"), s.StopScheduler(t.Context())))
				return
			}
			for _, part := range c.message {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not contain %q: %v", part, err)
				}
			}
		})
	}
}

// The default policy of the arguments holds for claims that name none, and for no others.
func TestDefaultPolicyFromArguments(t *testing.T) {
	s := bed.Scene(t)
	if err := s.StopScheduler(t.Context()); err != nil {
		t.Error(err)
	}
	s.Finally(func(ctx context.Context) error { return errors.Join(s.StopScheduler(ctx), s.StartScheduler(ctx)) })
	err := s.StartSchedulerWith(t.Context(), func(c *testbed.SchedulerConfig) { c.SetArg("defaultPolicy", "None") })
	if err != nil {
		t.Fatal(err)
	}
	s.Place(job("silent", 2, nil), weave)
	s.WantGPUs("silent", weave, "0,1")
	s.Place(job("preferred", 2, testbed.Policy(api.PolicyPreferred)), weave)
	s.WantGPUs("preferred", weave, "4,5")
}
