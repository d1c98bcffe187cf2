// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/chart/release"
)

const (
	// gpuNode has eight simulated GPUs.
	gpuNode = "gpus"
	machine = "dgx1v_8xv100"
)

// simulated installs the driver for recorded machines.
var simulated = []string{"--set", "driver.simulatedMachineConfigMap=machine"}

// podOf creates a pod as a rendered workload would have it, and returns what a process in it is to the API server.
func podOf(t *testing.T, rendered []byte, kind, workload, name, node string) (*corev1.Pod, *rest.Config) {
	t.Helper()
	template := release.PodTemplate(t, release.Find(t, rendered, kind, workload))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}
	pod.Spec.NodeName, pod.Spec.PriorityClassName = node, ""
	pods := bed.Client().CoreV1().Pods(release.Namespace)
	created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
	})
	return created, release.Config(t, bed.Cluster, release.Namespace, template.Spec.ServiceAccountName, created)
}

// node makes a node for one test.
func node(t *testing.T, name string) {
	t.Helper()
	if _, err := bed.AddNode(t.Context(), cluster.NodeOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.RemoveNode(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
}

// driver is a driver as the DaemonSet runs it on a node.
type driver struct {
	*cluster.Process
	pod    *corev1.Pod
	socket string // of the kubelet plugin
}

// startDriver starts one with the rendered arguments and a token of its pod, and with the directories of the host moved.
func startDriver(t *testing.T, rendered []byte, node string) *driver {
	t.Helper()
	pod, config := podOf(t, rendered, "DaemonSet", "topodra-driver", "driver-on-"+node, node)
	dir, err := os.MkdirTemp("", "chart-") //nolint:usetesting // the paths of sockets in it must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, sub := range []string{"plugins_registry", "plugins/gpu.topodra.dev", "cdi"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(dir, "host")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(bed.machineFile(machine))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "machine.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(release.FreePort(t))
	args := release.Args(t, release.Find(t, rendered, "DaemonSet", "topodra-driver"),
		map[string]string{"spec.nodeName": node, "metadata.uid": string(pod.UID)},
		map[string]string{
			"/var/lib/kubelet": dir, "/var/run/cdi": filepath.Join(dir, "cdi"), "/var/run/nri": filepath.Join(dir, "no-nri"), "/host": filepath.Join(dir, "host"),
			"/etc/topodra": dir, ":31995": "127.0.0.1:" + port,
		})
	args = append(args, "--kubeconfig="+release.Kubeconfig(t, config))
	d := &driver{pod: pod, socket: filepath.Join(dir, "plugins", api.DriverName, "dra-"+string(pod.UID)+".sock")}
	d.Process = release.Start(t, bed.Cluster, "driver-"+node, cluster.TopoDRADriver, args, "http://127.0.0.1:"+port+"/readyz")
	return d
}

// prepare does what the kubelet does for a claim and returns the CDI devices, or what the driver said.
func (d *driver) call(t *testing.T, claim *resourceapi.ResourceClaim) (*drapb.NodePrepareResourceResponse, *drapb.NodeUnprepareResourceResponse) {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix:"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := drapb.NewDRAPluginClient(connection)
	key := &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
	prepared, err := client.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{key}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, func() string {
		now, err := bed.Client().ResourceV1().ResourceClaims(claim.Namespace).Get(t.Context(), claim.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if len(now.Status.Devices) == len(now.Status.Allocation.Devices.Results) {
			return ""
		}
		return fmt.Sprintf("the driver has written status of %d devices", len(now.Status.Devices))
	})
	gone, err := client.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{key}})
	if err != nil {
		t.Fatal(err)
	}
	return prepared.Claims[string(claim.UID)], gone.Claims[string(claim.UID)]
}

// job creates a claim for GPUs and a pod that holds it.
func job(t *testing.T, name string, count int64) {
	t.Helper()
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName:  api.SchedulerName,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &name}},
			Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: "gpus"}},
			}}},
		},
	}
	client := bed.Client()
	if _, err := client.ResourceV1().ResourceClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.ResourceV1().ResourceClaims("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Pods("default").Delete(context.Background(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
	})
}

// placed waits until a job is bound and returns its claim.
func placed(t *testing.T, name string) *resourceapi.ResourceClaim {
	t.Helper()
	eventually(t.Context(), t, func() string {
		pod, err := bed.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName != "" {
			return ""
		}
		return fmt.Sprintf("pod %q is not bound: %v", name, pod.Status.Conditions)
	})
	claim, err := bed.Client().ResourceV1().ResourceClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// Installed with helm, with RBAC on and the policies in force: two replicas of the scheduler, a driver and a webhook, each with the rendered
// arguments and nothing but the token of its pod, place a job, prepare it, and take over from one another.
func TestComponents(t *testing.T) {
	bed.install(t, simulated...)
	t.Cleanup(func() {
		err := bed.Client().CoreV1().Secrets(release.Namespace).Delete(context.Background(), "topodra-webhook-tls", metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	rendered := bed.helm(t, "get", "manifest", release.Name)
	wantPoliciesChecked(t)
	node(t, gpuNode)
	d := startDriver(t, rendered, gpuNode)
	if _, err := bed.WaitForResourceSlices(t.Context(), gpuNode, api.DriverName); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname() // replicas call themselves so; in pods it is the pod's name
	if err != nil {
		t.Fatal(err)
	}
	_, config := podOf(t, rendered, "Deployment", "topodra-scheduler", strings.ToLower(host), "")
	first := release.StartScheduler(t, bed.Cluster, rendered, "replica-1", config)
	hook := startWebhook(t, rendered)
	job(t, "quad", 4)
	claim := placed(t, "quad")
	if got := len(claim.Status.Allocation.Devices.Results); got != 4 {
		t.Errorf("the job has %d GPUs, want 4", got)
	}
	prepared, gone := d.call(t, claim)
	if prepared.GetError() != "" || len(prepared.GetDevices()) != 4 {
		t.Errorf("preparing the claim: %v", prepared)
	}
	if gone == nil || gone.GetError() != "" {
		t.Errorf("taking the claim back: %v", gone)
	}
	second := release.StartScheduler(t, bed.Cluster, rendered, "replica-2", config)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	job(t, "pair", 2)
	placed(t, "pair")
	t.Logf("the other replica took over within %s", time.Since(started).Round(time.Second))
	classic(t, "classic")
	for _, process := range []*cluster.Process{first, second, d.Process, hook} {
		release.WantNothingDenied(t, process)
	}
}

// wantPoliciesChecked waits until the API server has looked at the policies, and checks that it has nothing to say about them.
func wantPoliciesChecked(t *testing.T) {
	t.Helper()
	eventually(t.Context(), t, func() string {
		list, err := bed.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) < 4 {
			return fmt.Sprintf("there are %d policies", len(list.Items))
		}
		for i := range list.Items {
			policy := &list.Items[i]
			if policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != policy.Generation {
				return fmt.Sprintf("policy %q is not checked", policy.Name)
			}
			for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("policy %q, %s: %s", policy.Name, warning.FieldRef, warning.Warning)
			}
		}
		return ""
	})
}

// What the default values give to each account is what it needs, and no more than that where it would hurt.
func TestLeastPrivilege(t *testing.T) {
	bed.install(t)
	_, config := podOf(t, release.Render(t), "Deployment", "topodra-scheduler", "some-scheduler", "")
	scheduler := release.Client(t, config)
	node(t, gpuNode)
	_, config = podOf(t, release.Render(t), "DaemonSet", "topodra-driver", "some-driver", gpuNode)
	driver := release.Client(t, config)
	for _, c := range []struct {
		who   string
		do    func(ctx context.Context) error
		right string
	}{
		{"scheduler", func(ctx context.Context) error {
			_, err := scheduler.CoreV1().Secrets(release.Namespace).List(ctx, metav1.ListOptions{})
			return err
		}, "secrets"},
		{"scheduler", func(ctx context.Context) error {
			_, err := scheduler.CoordinationV1().Leases(release.Namespace).Get(ctx, "another", metav1.GetOptions{})
			return err
		}, "leases"},
		{"scheduler", func(ctx context.Context) error {
			return scheduler.ResourceV1().ResourceSlices().Delete(ctx, "any", metav1.DeleteOptions{})
		}, "resourceslices"},
		{"driver", func(ctx context.Context) error {
			_, err := driver.CoreV1().Secrets(release.Namespace).List(ctx, metav1.ListOptions{})
			return err
		}, "secrets"},
		{"driver", func(ctx context.Context) error {
			return driver.CoreV1().Pods("default").Delete(ctx, "any", metav1.DeleteOptions{})
		}, "pods"},
		{"driver", func(ctx context.Context) error {
			return driver.CoreV1().Nodes().Delete(ctx, gpuNode, metav1.DeleteOptions{})
		}, "nodes"},
		{"driver", func(ctx context.Context) error {
			return driver.ResourceV1().ResourceClaims("default").Delete(ctx, "any", metav1.DeleteOptions{})
		}, "resourceclaims"},
	} {
		err := c.do(t.Context())
		if err == nil || !strings.Contains(err.Error(), "cannot") || !strings.Contains(err.Error(), c.right) {
			t.Errorf("the %s on %s: %v, want a refusal by RBAC", c.who, c.right, err)
		}
	}
	if _, err := scheduler.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := driver.CoreV1().Nodes().Get(t.Context(), gpuNode, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
