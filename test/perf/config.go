// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// Run is one run of one case.
type Run struct {
	Scheduler Scheduler
	Case      Case
	// Nodes with 8 GPUs each, at least 1.
	Nodes int
	// ChurnTime is how long a case with churn runs.
	ChurnTime time.Duration
}

// Names of the nodes' labels and of what is made for the benchmark.
const (
	// MarkLabel is on nodes without GPUs. They are made just before and just after
	// the measurement, and tell the benchmark that it is there.
	MarkLabel  = "perf.topodra.dev/mark"
	nodePrefix = "gpu-node-"
)

// NodeName of the node with an index.
func NodeName(index int) string { return fmt.Sprintf("%s%d", nodePrefix, index) }

// The files of one run, by name.
var files = map[string]string{
	"config.yaml": `
- name: {{.Case.Name}}
  featureGates:
    DynamicResourceAllocation: true
  {{- if .SchedulerConfig}}
  schedulerConfigPath: {{.SchedulerConfig}}
  {{- end}}
  workloadTemplate:
  - opcode: createNodes
    nodeTemplatePath: {{.Dir}}/node.yaml
    countParam: $nodes
  - opcode: createAny
    templatePath: {{.Dir}}/class.yaml
  - opcode: createAny
    templatePath: {{.Dir}}/claim.yaml
    namespace: measured
  - opcode: createNodes
    nodeTemplatePath: {{.Dir}}/mark.yaml
    count: 1
  - opcode: createPods
    namespace: measured
    countParam: $pods
    steadyStateParam: $churn
    durationParam: $duration
    podTemplatePath: {{.Dir}}/pod.yaml
    collectMetrics: true
  - opcode: createNodes
    nodeTemplatePath: {{.Dir}}/mark.yaml
    count: 1
  workloads:
  - name: {{.Nodes}}nodes
    labels: [performance]
    params:
      nodes: {{.Nodes}}
      pods: {{.Pods}}
      churn: {{.Case.Churn}}
      duration: {{.ChurnTime}}
`,
	"node.yaml": `
apiVersion: v1
kind: Node
metadata:
  name: ` + nodePrefix + `{{"{{.Index}}"}}
spec: {}
status:
  capacity: {pods: "110", cpu: "96", memory: 1Ti}
  conditions: [{type: Ready, status: "True"}]
  phase: Running
`,
	"mark.yaml": `
apiVersion: v1
kind: Node
metadata:
  generateName: mark-
  labels: {` + MarkLabel + `: "true"}
spec:
  unschedulable: true
status:
  capacity: {pods: "0"}
  conditions: [{type: Ready, status: "True"}]
  phase: Running
`,
	"class.yaml": `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: gpu.topodra.dev
spec:
  selectors:
  - cel:
      expression: device.driver == "gpu.topodra.dev" && device.attributes["gpu.topodra.dev"].type == "gpu"
`,
	"claim.yaml": `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: gpus
spec: {"spec": {"devices": {"requests": [
  {"name": "gpus", "exactly": {"deviceClassName": "gpu.topodra.dev", "count": {{.Case.Request.GPUs}}
    {{- if .Case.Request.MemoryGi}}, "capacity": {"requests": {"memory": "{{.Case.Request.MemoryGi}}Gi"
      {{- if .Case.Request.CoresPercent}}, "cores": "{{.Case.Request.CoresPercent}}"{{end}}{{"}}"}}
    {{- end}}{{"}}"}}
]}}}
`,
	"pod.yaml": `
apiVersion: v1
kind: Pod
metadata:
  generateName: job-
spec:
  containers:
  - name: main
    image: registry.k8s.io/pause:3.10.1
    resources:
      claims: [{name: gpus}]
  resourceClaims:
  - name: gpus
    resourceClaimTemplateName: gpus
`,
}

// Write writes what scheduler_perf needs for the run into dir and returns the path of
// its configuration. shipped is the scheduler configuration that is measured as
// TopoDRA; its profile is made the one of pods that name no scheduler.
func (r *Run) Write(dir string, shipped []byte) (string, error) {
	if r.Nodes < 1 {
		return "", fmt.Errorf("writing case %q: %d nodes are not enough", r.Case.Name, r.Nodes)
	}
	content := struct {
		*Run
		Dir, SchedulerConfig string
		Pods                 int
	}{Run: r, Dir: dir, Pods: r.Case.Pods(r.Nodes)}
	if r.Scheduler == TopoDRA {
		content.SchedulerConfig = filepath.Join(dir, "scheduler.yaml")
		name := []byte("schedulerName: topodra-scheduler")
		if bytes.Count(shipped, name) != 1 {
			return "", fmt.Errorf("writing the scheduler's configuration: %q is not there exactly once", name)
		}
		shipped = bytes.Replace(shipped, name, []byte("schedulerName: default-scheduler"), 1)
		if err := os.WriteFile(content.SchedulerConfig, shipped, 0o600); err != nil {
			return "", fmt.Errorf("writing the scheduler's configuration: %w", err)
		}
	}
	for name, text := range files {
		parsed, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			return "", fmt.Errorf("reading template %q: %w", name, err)
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, content); err != nil {
			return "", fmt.Errorf("filling in template %q: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o600); err != nil {
			return "", fmt.Errorf("writing %q: %w", name, err)
		}
	}
	return filepath.Join(dir, "config.yaml"), nil
}
