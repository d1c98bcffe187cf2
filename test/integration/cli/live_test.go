// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
)

// sliced is a node whose one GPU is cut into MIG devices, as a driver publishes it.
const sliced = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: sliced}
spec:
  driver: gpu.topodra.dev
  nodeName: sliced
  pool: {name: sliced, generation: 1, resourceSliceCount: 1}
  devices:
  - name: mig-a
    attributes: {type: {string: mig}, index: {int: 0}, profile: {string: 3g.40gb}}
    capacity: {memory: {value: 40Gi}}
  - name: mig-b
    attributes: {type: {string: mig}, index: {int: 0}, profile: {string: 3g.40gb}}
    capacity: {memory: {value: 40Gi}}
`

// holder is a pod that holds one GPU of a node by its position.
func holder(node string, position int) string {
	name := fmt.Sprintf("hold-%s-%d", node, position)
	return claimYAML(name, fmt.Sprintf(`{deviceClassName: gpu.topodra.dev, count: 1, selectors: [{cel: {expression: 'device.attributes["gpu.topodra.dev"].index == %d'}}]}`, position), "") +
		podYAML(name, node, "{name: gpus, resourceClaimName: "+name+"}")
}

// claimYAML is a claim with one request, and a level that is required unless it is empty.
func claimYAML(name, request, level string) string {
	text := fmt.Sprintf("---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: %s, namespace: default}\nspec:\n  devices:\n    requests: [{name: gpus, exactly: %s}]\n", name, request)
	if level != "" {
		text += "    config: [{opaque: {driver: gpu.topodra.dev, parameters: {apiVersion: gpu.topodra.dev/v1alpha1, kind: GPUClaimConfig, topology: {policy: Required, level: " + level + "}}}}]\n"
	}
	return text
}

// podYAML is a pod of our scheduler with claims, on a node unless it is empty.
func podYAML(name, node string, claims ...string) string {
	text := fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default}\nspec:\n  schedulerName: topodra-scheduler\n  containers: [{name: c, image: none.invalid/test:1}]\n", name)
	if node != "" {
		text += "  nodeSelector: {kubernetes.io/hostname: " + node + "}\n"
	}
	if len(claims) > 0 {
		text += "  resourceClaims: [" + strings.Join(claims, ", ") + "]\n"
	}
	return text
}

// apply creates objects.
func (e *env) apply(t *testing.T, manifests ...string) {
	t.Helper()
	for _, m := range manifests {
		if err := e.ApplyYAML(t.Context(), []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
}

// await waits until a pod is as wanted.
func (e *env) await(t *testing.T, name, what string, wanted func(*corev1.Pod) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pod, err := e.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		return err == nil && wanted(pod), err
	})
	if err != nil {
		t.Fatalf("waiting until pod %q is %s: %v", name, what, err)
	}
}

func (e *env) awaitRunning(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		e.await(t, name, "running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	}
}

func (e *env) awaitRefused(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		e.await(t, name, "refused", func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
			})
		})
	}
}

// startOurs starts topodra-scheduler with the shipped configuration, and what plays the kubelets' part.
func (e *env) startOurs(t *testing.T) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(e.root, "manifests", "scheduler", "scheduler-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.StartScheduler(t.Context(), cluster.SchedulerOptions{ConfigYAML: string(config)}); err != nil {
		t.Fatal(err)
	}
	if err := e.RunPods(); err != nil {
		t.Fatal(err)
	}
}

// What changes from run to run.
var (
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	uuid      = regexp.MustCompile(`GPU-[0-9a-f]{8}-[0-9a-f-]{27}`)
	generated = regexp.MustCompile(`(half-gpus|classic-extended-resources)-[a-z0-9]{5}`)
)

// steady replaces it.
func steady(text string) string {
	text = timestamp.ReplaceAllString(text, "2026-00-00T00:00:00Z")
	text = uuid.ReplaceAllString(text, "GPU-00000000-0000-0000-0000-000000000000")
	return generated.ReplaceAllString(text, "$1-xxxxx")
}

// TestStatusAndExplain walks one cluster from idle GPUs to pods of every kind, with our scheduler. The steps build on each other.
func TestStatusAndExplain(t *testing.T) {
	e := newEnv(t, "")
	e.bad(t, cluster.UserAdmin, "no GPUs are published by driver", "status")
	e.bad(t, cluster.UserAdmin, `there is no pod "nobody" in namespace "default"`, "explain", "pod", "nobody")
	if err := e.Apply(t.Context(), []string{filepath.Join(e.root, "manifests", "base", "deviceclasses-extended-resource.yaml")}); err != nil {
		t.Fatal(err)
	}
	e.addNode(t, "cube-mesh", "dgx1v_8xv100")
	e.addNode(t, "pairs", "a30_4x_pairs")
	for _, name := range []string{"plain", "sliced"} {
		if _, err := e.AddNode(t.Context(), cluster.NodeOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	e.apply(t, sliced)
	golden(t, "status-idle.txt", steady(e.good(t, "status")))
	e.startOurs(t)

	e.placedPods(t)
	golden(t, "status-used.txt", steady(e.good(t, "status", "-o", "wide")))
	golden(t, "status-node.txt", steady(e.good(t, "status", "pairs")))
	e.bad(t, cluster.UserAdmin, `node "plain" has no GPUs published by driver`, "status", "plain")
	for _, pod := range []string{"train", "half", "classic", "part"} {
		golden(t, "explain-"+pod+".txt", steady(e.good(t, "explain", "pod", pod)))
	}
	e.checkStatusJSON(t)
	e.pendingPods(t)
	e.freeing(t)
	e.limited(t)
}

// placedPods makes pods with a claim by name, one from a template, one for an extended resource, one for a MIG device.
func (e *env) placedPods(t *testing.T) {
	t.Helper()
	e.apply(t,
		claimYAML("train", "{deviceClassName: gpu.topodra.dev, count: 2}", "NVLink")+podYAML("train", "pairs", "{name: gpus, resourceClaimName: train}"))
	e.awaitRunning(t, "train") // one after the other, so that each run gives them the same GPUs
	e.apply(t,
		"---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: half, namespace: default}\nspec:\n  spec:\n    devices:\n      requests: "+
			"[{name: gpus, exactly: {deviceClassName: gpu.topodra.dev, count: 1, capacity: {requests: {memory: 8Gi, cores: 40}}}}]\n"+
			podYAML("half", "pairs", "{name: gpus, resourceClaimTemplateName: half}"),
		claimYAML("part", "{deviceClassName: mig.topodra.dev, count: 1}", "")+podYAML("part", "", "{name: gpus, resourceClaimName: part}"))
	e.awaitRunning(t, "train", "half", "part")
	classic := strings.Replace(podYAML("classic", "cube-mesh"), "image: none.invalid/test:1", `image: none.invalid/test:1, resources: {limits: {nvidia.com/gpu: "1"}}`, 1)
	e.apply(t, classic)
	e.awaitRunning(t, "classic")
}

// checkStatusJSON compares what a program would read.
func (e *env) checkStatusJSON(t *testing.T) {
	t.Helper()
	var got struct {
		Nodes []struct {
			Name   string
			Counts struct{ GPUs, Idle, Shared, Taken, MIGDevices, MIGDevicesHeld int }
			Offers []struct {
				GPUs, Jobs int
				Now, Empty *struct{ GBps float64 }
			}
		}
		Claims []struct{ Name, Node string }
	}
	if err := json.Unmarshal([]byte(e.good(t, "status", "-o", "json")), &got); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for i, n := range got.Nodes {
		names[n.Name] = i
	}
	pairs, cut := got.Nodes[names["pairs"]], got.Nodes[names["sliced"]]
	if c := pairs.Counts; c.GPUs != 4 || c.Idle != 1 || c.Shared != 1 || c.Taken != 2 || pairs.Offers[0].Now != nil || pairs.Offers[0].Empty == nil {
		t.Errorf("node pairs: %+v", pairs)
	}
	if c := cut.Counts; c.GPUs != 0 || c.MIGDevices != 2 || c.MIGDevicesHeld != 1 {
		t.Errorf("node sliced: %+v", c)
	}
	if len(got.Claims) != 4 {
		t.Errorf("claims %+v, want 4", got.Claims)
	}
}

// pendingPods makes pods that have to wait, each for a reason of its own, and lets them be explained.
func (e *env) pendingPods(t *testing.T) {
	t.Helper()
	// Without GPUs 0, 5 and 7 no ring of NVLinks joins four of the others. The classic pod may have one of them already.
	for _, position := range []int{0, 5, 7} {
		if !strings.Contains(e.good(t, "explain", "pod", "classic"), fmt.Sprintf("GPU %d on node cube-mesh", position)) {
			e.apply(t, holder("cube-mesh", position))
			e.awaitRunning(t, fmt.Sprintf("hold-cube-mesh-%d", position))
		}
	}
	e.apply(t,
		claimYAML("quad", "{deviceClassName: gpu.topodra.dev, count: 4}", "NVLink")+podYAML("quad", "", "{name: gpus, resourceClaimName: quad}"),
		claimYAML("huge", "{deviceClassName: gpu.topodra.dev, count: 16}", "")+podYAML("huge", "", "{name: gpus, resourceClaimName: huge}"),
		claimYAML("parts", "{deviceClassName: mig.topodra.dev, count: 2}", "")+podYAML("parts", "", "{name: gpus, resourceClaimName: parts}"))
	e.awaitRefused(t, "quad", "huge", "parts")
	for _, pod := range []string{"quad", "huge", "parts"} {
		golden(t, "explain-"+pod+".txt", steady(e.good(t, "explain", "pod/"+pod, "-n", "default")))
	}
	// A pod whose scheduler is nowhere.
	stray := strings.Replace(podYAML("stray", "", "{name: gpus, resourceClaimName: huge}"), "topodra-scheduler", "no-such-scheduler", 1)
	e.apply(t, stray)
	if text := e.good(t, "explain", "pod", "stray"); !strings.Contains(text, `no scheduler has looked at the pod yet: does one with the name "no-such-scheduler" run?`) {
		t.Errorf("a pod without a scheduler is explained as\n%s", text)
	}
}

// freeing does what explain says, and the pod gets what explain promised.
func (e *env) freeing(t *testing.T) {
	t.Helper()
	var got struct {
		Pending struct {
			Said string
			Free []struct {
				Node   string
				Claims []struct {
					Name, Namespace string
					Pods            []string
				}
				Gives struct {
					GPUs []int
					GBps float64
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(e.good(t, "explain", "pod", "quad", "-o", "json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Pending.Free) == 0 || !strings.Contains(got.Pending.Said, "topology: required are 4 GPUs over NVLink") {
		t.Fatalf("nothing to free, or the scheduler's words are missing: %+v", got.Pending)
	}
	release := got.Pending.Free[0]
	for _, c := range release.Claims {
		for _, pod := range c.Pods {
			if err := e.Client().CoreV1().Pods(c.Namespace).Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.awaitRunning(t, "quad")
	var placed struct {
		Node   string
		Placed struct {
			GPUs []int
			Got  struct{ GBps float64 }
		}
	}
	if err := json.Unmarshal([]byte(e.good(t, "explain", "pod", "quad", "-o", "json")), &placed); err != nil {
		t.Fatal(err)
	}
	if placed.Node != release.Node || !slices.Equal(placed.Placed.GPUs, release.Gives.GPUs) || placed.Placed.Got.GBps != release.Gives.GBps {
		t.Errorf("promised were GPUs %v of %s with %v GB/s; the pod got %v of %s with %v GB/s",
			release.Gives.GPUs, release.Node, release.Gives.GBps, placed.Placed.GPUs, placed.Node, placed.Placed.Got.GBps)
	}
}

// limited runs the commands for users with few rights.
func (e *env) limited(t *testing.T) {
	t.Helper()
	e.bad(t, nobody, "listing ResourceSlices in the whole cluster: not allowed", "status")
	e.bad(t, noClaims, "listing ResourceClaims in the whole cluster: not allowed", "status")
	e.bad(t, noPods, "watching Resource", "status", "-w")
	e.bad(t, nobody, `reading pod "quad" in namespace "default": not allowed`, "explain", "pod", "quad")
	r := e.run(t, owner, "explain", "pod", "huge")
	for _, want := range []string{
		"note: who else holds GPUs is not known, so GPUs that are held look free: no right to list resourceclaims in all namespaces",
		"note: nodes are not looked at, only their GPUs: no right to list nodes", "note: CPU and memory of nodes are not looked at: no right to list pods in all namespaces",
		"note: events are not read, the pod's conditions are: no right to list events in its namespace", "it asks for 16 devices in one request",
	} {
		if r.failed || !strings.Contains(r.stdout, want) {
			t.Errorf("for the owner of the pod: failed %v, %s\n%s\nwant %q", r.failed, r.stderr, r.stdout, want)
		}
	}
	if r := e.run(t, owner, "explain", "pod", "train"); r.failed || !strings.Contains(r.stdout, "GPUs 2,3 on node pairs: whole") {
		t.Errorf("for the owner of the pod: failed %v, %s\n%s", r.failed, r.stderr, r.stdout)
	}
	if got := api.SchedulerName; got != "topodra-scheduler" {
		t.Errorf("the manifests of this test name another scheduler than %q", got)
	}
}
