// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

func TestPods(t *testing.T) {
	t.Parallel()
	got := map[string][]int{}
	for _, c := range Cases() {
		for _, nodes := range []int{1, 100, 500, 5000} {
			got[c.Name] = append(got[c.Name], c.Pods(nodes))
		}
	}
	want := map[string][]int{
		"quads": {1, 180, 900, 1000}, "shared-quads": {3, 360, 1000, 1000}, "shares": {72, 1000, 1000, 1000},
		"full": {1, 18, 90, 900}, "mixed": {1, 180, 900, 1000}, "churn": {1, 90, 450, 1000},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods on 1, 100, 500, 5000 nodes (-want +got):\n%s", diff)
	}
}

func TestFindCase(t *testing.T) {
	t.Parallel()
	if c, err := FindCase("full"); err != nil || c.FilledPercent != 90 {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := FindCase("fool"); err == nil || !strings.Contains(err.Error(), `no case "fool"; there are quads, shared-quads`) {
		t.Errorf("got error %v", err)
	}
}

// TestWrite: every file is valid YAML, and what scheduler_perf reads names the others.
func TestWrite(t *testing.T) {
	t.Parallel()
	shipped, err := os.ReadFile(filepath.Join("..", "..", "manifests", "scheduler", "scheduler-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Cases() {
		for _, scheduler := range Schedulers() {
			dir := t.TempDir()
			run := &Run{Scheduler: scheduler, Case: c, Nodes: 7, ChurnTime: 5 * time.Second}
			path, err := run.Write(dir, shipped)
			if err != nil {
				t.Fatal(err)
			}
			var cases []struct {
				Name                string
				SchedulerConfigPath string
				WorkloadTemplate    []map[string]any
				Workloads           []struct {
					Name   string
					Params map[string]any
				}
			}
			readYAML(t, path, &cases)
			if len(cases) != 1 || cases[0].Name != c.Name || (cases[0].SchedulerConfigPath != "") != (scheduler == TopoDRA) {
				t.Fatalf("got %+v", cases)
			}
			want := map[string]any{"nodes": 7.0, "pods": float64(c.Pods(7)), "churn": c.Churn, "duration": "5s"}
			if diff := cmp.Diff(want, cases[0].Workloads[0].Params); diff != "" {
				t.Errorf("%s: parameters (-want +got):\n%s", c.Name, diff)
			}
			for _, op := range cases[0].WorkloadTemplate {
				for key, value := range op {
					if file, ok := value.(string); ok && strings.HasSuffix(key, "Path") {
						readYAML(t, file, &map[string]any{})
					}
				}
			}
			var claim resourceapi.ResourceClaimTemplate
			readYAML(t, filepath.Join(dir, "claim.yaml"), &claim)
			request := claim.Spec.Spec.Devices.Requests[0].Exactly
			if request.Count != int64(c.Request.GPUs) || (request.Capacity != nil) != (c.Request.MemoryGi > 0) {
				t.Errorf("%s: got request %+v", c.Name, request)
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	run := &Run{Scheduler: TopoDRA, Case: Cases()[0], Nodes: 1}
	if _, err := run.Write(t.TempDir(), []byte("schedulerName: somebody-else")); err == nil || !strings.Contains(err.Error(), "not there exactly once") {
		t.Errorf("another configuration: got error %v", err)
	}
	run.Nodes = 0
	if _, err := run.Write(t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "0 nodes are not enough") {
		t.Errorf("no nodes: got error %v", err)
	}
}

// readYAML reads one file strictly.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, content)
	}
}
