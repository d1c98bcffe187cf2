// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeschedulerscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/topodra/topodra/plugins/topologyscore"
)

// manifest reads the configuration that we ship.
func manifest(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../manifests/scheduler/scheduler-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// start builds a whole scheduler from a configuration, as its binary does.
func start(t *testing.T, yaml string) error {
	t.Helper()
	obj, _, err := kubeschedulerscheme.Codecs.UniversalDecoder().Decode([]byte(yaml), nil, nil)
	if err != nil {
		return err
	}
	cfg, ok := obj.(*config.KubeSchedulerConfiguration)
	if !ok {
		t.Fatalf("decoded a %T", obj)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := fake.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	registry := frameworkruntime.Registry{Name: New, topologyscore.Name: topologyscore.New}
	_, err = scheduler.New(ctx, client, informers.NewSharedInformerFactory(client, 0), nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithProfiles(cfg.Profiles...), scheduler.WithFrameworkOutOfTreeRegistry(registry))
	return err
}

// change replaces text that must be there.
func change(t *testing.T, yaml string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(yaml, pairs[i]) {
			t.Fatalf("the configuration lacks %q", pairs[i])
		}
		yaml = strings.Replace(yaml, pairs[i], pairs[i+1], 1)
	}
	return yaml
}

func TestStartUpGuards(t *testing.T) {
	_, arguments, found := strings.Cut(manifest(t), "  pluginConfig:\n")
	if !found {
		t.Fatal("the shipped configuration has no arguments")
	}
	for name, tc := range map[string]struct {
		pairs []string
		want  []string // parts of the error; none means that it starts
	}{
		"as shipped":        {},
		"without arguments": {pairs: []string{"  pluginConfig:\n" + arguments, ""}},
		"both plugins": {
			pairs: []string{"- name: DynamicResources\n", "- name: ImageLocality\n"},
			want:  []string{`"DynamicResources" allocates the same devices`, "plugins.multiPoint.disabled"},
		},
		"not in postFilter": {
			pairs: []string{"    postFilter:\n      enabled:\n      - name: TopologyDynamicResources\n", "    postFilter:\n      enabled:\n"},
			want:  []string{`missing in postFilter`, "plugins.postFilter.enabled"},
		},
		"postFilter left to multiPoint": {
			pairs: []string{`    postFilter:
      enabled:
      - name: TopologyDynamicResources
      - name: DefaultPreemption
      disabled:
      - name: "*"
`, ""},
			want: []string{`"DefaultPreemption" comes before it in postFilter`, "plugins.postFilter.enabled"},
		},
		"podGroupPostFilter left to multiPoint": {
			pairs: []string{`    podGroupPostFilter:
      enabled:
      - name: TopologyDynamicResources
      - name: DefaultPreemption
      disabled:
      - name: "*"
`, ""},
			want: []string{`"DefaultPreemption" comes before it in podGroupPostFilter`, "plugins.podGroupPostFilter.enabled"},
		},
		"score without plans": {
			pairs: []string{
				"      - name: TopologyDynamicResources\n        weight: 2\n", "",
				"      disabled:\n      # It would allocate the same devices a second time.\n      - name: DynamicResources\n", "",
				"      - name: TopologyDynamicResources\n", "", "      - name: TopologyDynamicResources\n", "",
			},
			want: []string{`"TopologyScore"`, `scores what "TopologyDynamicResources" plans`, "plugins.multiPoint"},
		},
		"arguments for the score": {
			pairs: []string{"  pluginConfig:\n", "  pluginConfig:\n  - name: TopologyScore\n    args: {weight: 1}\n"},
			want:  []string{`"TopologyScore"`, "no arguments of its own", "TopologyDynamicResources"},
		},
		"unknown argument": {
			pairs: []string{"defaultPolicy: Preferred", "defaultPolicies: Preferred"},
			want:  []string{`"TopologyDynamicResources"`, "defaultPolicies"},
		},
		"wrong argument": {
			pairs: []string{"tierPercent: 10", "tierPercent: 1000"},
			want:  []string{"tierPercent", "between 0 and 50"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := start(t, change(t, manifest(t), tc.pairs...))
			switch {
			case len(tc.want) == 0 && err != nil:
				t.Errorf("error = %v, want none", err)
			case len(tc.want) > 0 && err == nil:
				t.Errorf("it starts, want an error with %q", tc.want)
			}
			for _, part := range tc.want {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("error = %q, want a part %q", err, part)
				}
			}
		})
	}
}

func TestPreFilterRefusesASecondAllocator(t *testing.T) {
	t.Parallel()
	objects := append(gpuNode(t, "dgx", "dgx1v_8xv100"), gpuClass(""), claimOf("c", gpus("r", 2)))
	pod := podOf("pod", "c")
	w := newWorld(t, worldConfig{objects: append(objects, runtime.Object(pod))})
	state := framework.NewCycleState()
	if _, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	_, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	if status.IsSuccess() || !strings.Contains(status.Message(), "plugins.multiPoint.disabled") {
		t.Errorf("status = %v (%s), want the error about two plugins", status.Code(), status.Message())
	}
}
