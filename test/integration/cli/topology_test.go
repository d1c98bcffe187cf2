// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Users with few rights.
const (
	nobody   = "nobody"    // no rights at all
	noPods   = "no-pods"   // may list slices and claims
	noClaims = "no-claims" // may list slices only
	watcher  = "watcher"   // may list and watch slices and claims
	owner    = "owner"     // may look at pods and claims of the namespace default, and at slices, and at no more
)

const manifests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: slices}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: claims}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: slices}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: slices}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: no-pods}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: no-claims}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: claims}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: claims}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: no-pods}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: watch}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceslices, resourceclaims], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: watch}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: watch}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: watcher}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: look}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceslices, deviceclasses], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: look}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: look}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: owner}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: own, namespace: default}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: own, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: own}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: owner}
`

// env is a cluster with the program under test.
type env struct {
	*cluster.Cluster
	program string
	root    string
}

// result is one run of the program.
type result struct {
	stdout, stderr string
	failed         bool
	status         int
}

// newEnv starts a cluster with feature gates, and builds the program.
func newEnv(t *testing.T, gates string) *env {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "kubectl-topodra")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/kubectl-topodra")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	c, err := cluster.Start(context.WithoutCancel(t.Context()), cluster.Options{
		FeatureGates: gates,
		Users:        map[string][]string{nobody: nil, noPods: nil, noClaims: nil, watcher: nil, owner: nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := c.ApplyYAML(t.Context(), []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []string{filepath.Join(root, "manifests", "base", "deviceclasses.yaml")}); err != nil {
		t.Fatal(err)
	}
	return &env{Cluster: c, program: program, root: root}
}

// run runs the program as a user.
func (e *env) run(t *testing.T, user string, args ...string) result {
	t.Helper()
	kubeconfig, err := e.Kubeconfig(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, e.program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running the program: %v", err)
	}
	return result{stdout: out.String(), stderr: errOut.String(), failed: err != nil, status: cmd.ProcessState.ExitCode()}
}

// good runs the program as the admin and demands success without a word on the standard error.
func (e *env) good(t *testing.T, args ...string) string {
	t.Helper()
	r := e.run(t, cluster.UserAdmin, args...)
	if r.failed || r.stderr != "" {
		t.Fatalf("kubectl topodra %q: failed %v, standard error %q", args, r.failed, r.stderr)
	}
	return r.stdout
}

// bad runs the program and demands an error on the standard error alone.
func (e *env) bad(t *testing.T, user, want string, args ...string) {
	t.Helper()
	r := e.run(t, user, args...)
	if !r.failed || r.stdout != "" || !strings.HasPrefix(r.stderr, "error: ") || !strings.Contains(r.stderr, want) {
		t.Errorf("kubectl topodra %q: failed %v\nstandard output %q\nstandard error  %q\nwant an error with %q", args, r.failed, r.stdout, r.stderr, want)
	}
}

// addNode adds a node with a driver on a recorded machine.
func (e *env) addNode(t *testing.T, name, machine string) {
	t.Helper()
	if _, err := e.AddNode(t.Context(), cluster.NodeOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(e.root, "topology", "topotest", "machines", machine+".json")
	if _, err := e.StartDriver(t.Context(), cluster.DriverOptions{Node: name, MachineFile: file}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := e.WaitForResourceSlices(ctx, name, api.DriverName); err != nil {
		t.Fatal(err)
	}
}

// claim creates a claim for GPUs of a node; without an amount of memory they are whole.
func (e *env) claim(t *testing.T, name string, gpus int64, memory, cores string) {
	t.Helper()
	request := &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: gpus,
	}
	if memory != "" {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			api.CapacityMemory: resource.MustParse(memory), api.CapacityCores: resource.MustParse(cores),
		}}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpus", Exactly: request}},
		}},
	}
	if _, err := e.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod creates a pod with a claim on a node and waits until it is bound.
func (e *env) pod(t *testing.T, name, claim, node string) {
	t.Helper()
	pods := e.Client().CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: "c", Image: "none.invalid/test:1",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpus"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &claim}},
		},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		got, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && got.Spec.NodeName != "", err
	})
	if err != nil {
		t.Fatalf("waiting for pod %q on %q: %v", name, node, err)
	}
}

// TestTopology walks one cluster from nothing to GPUs in use. The steps build on each other.
func TestTopology(t *testing.T) {
	e := newEnv(t, "")
	e.bad(t, cluster.UserAdmin, "no GPUs are published by driver", "topology")
	e.bad(t, nobody, "listing ResourceSlices in the whole cluster: not allowed", "topology")

	e.addNode(t, "cube-mesh", "dgx1v_8xv100")
	e.addNode(t, "pairs", "a30_4x_pairs")
	if _, err := e.AddNode(t.Context(), cluster.NodeOptions{Name: "plain"}); err != nil {
		t.Fatal(err)
	}
	e.bad(t, cluster.UserAdmin, `node "plain" has no GPUs published by driver "gpu.topodra.dev"; nodes that have some: cube-mesh, pairs`, "topology", "plain")
	e.bad(t, cluster.UserAdmin, `there is no node "mars" in this cluster; nodes that have some: cube-mesh, pairs`, "topology", "mars")
	e.bad(t, noClaims, "listing ResourceClaims in the whole cluster: not allowed", "topology")
	golden(t, "idle.txt", e.good(t, "topology", "pairs"))
	if r := e.run(t, cluster.UserAdmin, "__complete", "topology", ""); r.failed || !strings.HasPrefix(r.stdout, "cube-mesh\npairs\n:") {
		t.Errorf("the shell is offered %q", r.stdout)
	}

	if _, err := e.StartScheduler(t.Context(), cluster.SchedulerOptions{Binary: cluster.StockScheduler}); err != nil {
		t.Fatal(err)
	}
	e.claim(t, "training", 2, "", "")
	e.pod(t, "training-0", "training", "cube-mesh")
	for _, name := range []string{"notebook-a", "notebook-b"} {
		e.claim(t, name, 1, "2Gi", "30")
		e.pod(t, name, name, "pairs")
	}
	e.pod(t, "notebook-b-debug", "notebook-b", "pairs") // a claim with two pods
	golden(t, "used.txt", e.good(t, "topology"))
	e.checkJSON(t)

	r := e.run(t, noPods, "topology", "pairs")
	if r.failed || r.stderr != "warning: the phases of pods are not shown: no right to list pods in all namespaces\n" ||
		!strings.Contains(r.stdout, "default/notebook-a, claim notebook-a: 2Gi, 30 %") {
		t.Errorf("without the right to list pods: failed %v\n%s%s", r.failed, r.stderr, r.stdout)
	}
}

// checkJSON compares what a program would read.
func (e *env) checkJSON(t *testing.T) {
	t.Helper()
	type pod struct{ Name, Phase string }
	type holder struct {
		Namespace, Claim string
		Pods             []pod
		MemoryMiB        int64
		CoresPercent     int64
		Whole            bool
	}
	type gpu struct {
		Index         int
		FreeMemoryMiB int64
		MemoryMiB     int64
		Holders       []holder
	}
	var got struct {
		Nodes []struct {
			Name      string
			Simulated bool
			Links     [][]string
			GPUs      []gpu
		}
	}
	text := e.good(t, "topology", "-o", "json")
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if len(got.Nodes) != 2 || got.Nodes[0].Name != "cube-mesh" || got.Nodes[1].Name != "pairs" || !got.Nodes[0].Simulated || !got.Nodes[1].Simulated {
		t.Fatalf("nodes %+v, want cube-mesh and pairs, both simulated", got.Nodes)
	}
	links := [][]string{{"X", "NV4", "SYS", "SYS"}, {"NV4", "X", "SYS", "SYS"}, {"SYS", "SYS", "X", "NV4"}, {"SYS", "SYS", "NV4", "X"}}
	if diff := cmp.Diff(links, got.Nodes[1].Links); diff != "" {
		t.Errorf("links of pairs (-want +got):\n%s", diff)
	}
	whole := got.Nodes[0].GPUs[1]
	want := []holder{{Namespace: "default", Claim: "training", Pods: []pod{{"training-0", "Pending"}}, MemoryMiB: whole.MemoryMiB, Whole: true}}
	if diff := cmp.Diff(want, whole.Holders); diff != "" || whole.FreeMemoryMiB != 0 || whole.Index != 1 {
		t.Errorf("GPU 1 of cube-mesh, %d MiB free (-want +got):\n%s", whole.FreeMemoryMiB, diff)
	}
	shared := got.Nodes[1].GPUs[0]
	want = []holder{
		{Namespace: "default", Claim: "notebook-a", Pods: []pod{{"notebook-a", "Pending"}}, MemoryMiB: 2 << 10, CoresPercent: 30},
		{
			Namespace: "default", Claim: "notebook-b", Pods: []pod{{"notebook-b", "Pending"}, {"notebook-b-debug", "Pending"}},
			MemoryMiB: 2 << 10, CoresPercent: 30,
		},
	}
	if diff := cmp.Diff(want, shared.Holders); diff != "" || shared.FreeMemoryMiB != shared.MemoryMiB-4<<10 {
		t.Errorf("GPU 0 of pairs, %d of %d MiB free (-want +got):\n%s", shared.FreeMemoryMiB, shared.MemoryMiB, diff)
	}
}

// deviceName matches the part of a device's name that the simulated UUID decides.
var deviceName = regexp.MustCompile(`gpu-[0-9a-f]{12}`)

// golden compares text with a file in testdata, whatever the devices are called.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = deviceName.ReplaceAllString(got, "gpu-uuid--------")
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("reading the golden file (write it with -update): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update accepts it:\n%s", path, diff)
	}
}
