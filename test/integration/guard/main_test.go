// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/chart/release"
)

const (
	// gpuNode has three GPUs and our driver, otherNode has neither.
	gpuNode, otherNode = "gpus", "other"
	machine            = "topology/topotest/machines/a6000_3x_pair_plus_one.json"
	// thirdParty may do everything with claims and slices, as the service account of another batch scheduler might.
	thirdParty = "volcano"
	// patience bounds every wait for something that has to come.
	patience = 90 * time.Second
)

// Users of Kubernetes' own controllers.
const (
	claimController = "system:serviceaccount:kube-system:resource-claim-controller"
	// copyNamespace has a second installation's service accounts.
	copyNamespace = "topodra-copy"
	copyUser      = "system:serviceaccount:" + copyNamespace + ":topodra-scheduler"
)

// bed is shared by all tests, which run one after the other.
var bed *world

// world is a running cluster with the policies of the chart in force.
type world struct {
	*cluster.Cluster
	root    string
	devices []string // names of the GPUs of gpuNode
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := start(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting the test cluster: %v\n", err)
		return 1
	}
	bed = w
	code := m.Run()
	if err := w.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "ending the test cluster: %v\n", err)
		return 1
	}
	return code
}

func start(ctx context.Context) (*world, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		RuntimeConfig: "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
		Users:         map[string][]string{thirdParty: nil},
	})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, root: root}
	if err := w.bringUp(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return w, nil
}

// bringUp installs the policies and the classes, then the node with the driver.
func (w *world) bringUp(ctx context.Context) error {
	home, err := os.MkdirTemp("", "topodra-helm-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	defer os.RemoveAll(home)
	rendered, err := release.Helm(ctx, home, "template", release.Name, release.Chart, "--namespace", release.Namespace, "--set", "policies.fenceByLease=false")
	if err != nil {
		return err
	}
	if err := w.ApplyYAML(ctx, rendered, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DeviceClass", "Role", "RoleBinding"); err != nil {
		return err
	}
	if err := w.grant(ctx); err != nil {
		return err
	}
	for _, name := range []string{gpuNode, otherNode} {
		if _, err := w.AddNode(ctx, cluster.NodeOptions{Name: name}); err != nil {
			return err
		}
	}
	if _, err := w.StartDriver(ctx, cluster.DriverOptions{Node: gpuNode, MachineFile: filepath.Join(w.root, machine), RescanPeriod: time.Hour}); err != nil {
		return err
	}
	slices, err := w.WaitForResourceSlices(ctx, gpuNode, api.DriverName)
	if err != nil {
		return err
	}
	for _, slice := range slices {
		for _, device := range slice.Spec.Devices {
			w.devices = append(w.devices, device.Name)
		}
	}
	return w.waitInForce(ctx)
}

// grant gives the third party all rights on claims and slices, and the second installation those of a scheduler.
func (w *world) grant(ctx context.Context) error {
	client := w.Client()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: copyNamespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making a namespace: %w", err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "topodra-scheduler"}}
	if _, err := client.CoreV1().ServiceAccounts(copyNamespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making a service account: %w", err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: thirdParty}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/binding", "pods/status", "events"}, Verbs: []string{"*"}},
	}}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making a role: %w", err)
	}
	bind := func(name, role string, subject rbacv1.Subject) error {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{})
		return err
	}
	theCopy := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: copyNamespace, Name: "topodra-scheduler"}
	return errors.Join(
		bind(thirdParty, thirdParty, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: thirdParty}),
		bind("copy", "system:kube-scheduler", theCopy),
		bind("copy-volumes", "system:volume-scheduler", theCopy),
	)
}

// waitInForce waits until every policy refuses something: they take effect seconds after they were made.
func (w *world) waitInForce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	claims := w.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	claim, err := claims.Create(ctx, newClaim("probe"), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a claim: %w", err)
	}
	held, err := claims.Create(ctx, newClaim("held"), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a claim: %w", err)
	}
	config, err := w.ConfigFor(ctx, cluster.UserTopoDRAScheduler)
	if err != nil {
		return err
	}
	scheduler, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	held.Status.Allocation = allocation(result(gpuNode, w.devices[0]))
	if held, err = scheduler.ResourceV1().ResourceClaims(held.Namespace).UpdateStatus(ctx, held, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("allocating as our scheduler: %w", err)
	}
	dryRun := metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
	probes := map[string]func() error{
		"topodra-allocation": func() error {
			object := claim.DeepCopy()
			object.Status.Allocation = allocation(result(gpuNode, w.devices[0]))
			_, err := claims.UpdateStatus(ctx, object, dryRun)
			return err
		},
		"topodra-device-status": func() error {
			object := held.DeepCopy()
			object.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: api.DriverName, Pool: gpuNode, Device: w.devices[0]}}
			_, err := claims.UpdateStatus(ctx, object, dryRun)
			return err
		},
		"topodra-resourceslices": func() error {
			_, err := w.Client().ResourceV1().ResourceSlices().Create(ctx, newSlice("probe", api.DriverName, otherNode),
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
	}
	for policy, probe := range probes {
		for {
			err := probe()
			if err != nil && strings.Contains(err.Error(), "'"+policy+"'") {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("waiting for policy %q to refuse something: %w; the last answer was: %w", policy, ctx.Err(), err)
			}
		}
	}
	return errors.Join(claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}), claims.Delete(ctx, held.Name, metav1.DeleteOptions{}))
}

// as returns a client of a user.
func (w *world) as(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	config, err := w.ConfigFor(context.WithoutCancel(t.Context()), user) // also for what cleans up
	if err != nil {
		t.Fatal(err)
	}
	return release.Client(t, config)
}

// newClaim asks for a GPU.
func newClaim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: api.DeviceClassGPU},
		}}}},
	}
}

// newPod is a pod with claims, for one scheduler.
func newPod(name, scheduler string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	return pod
}

// result is one of our GPUs.
func result(node, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: api.DriverName, Pool: node, Device: device}
}

// foreign is a device of another driver.
func foreign() resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: "nic.example.com", Pool: gpuNode, Device: "nic-0"}
}

// allocation is one on gpuNode.
func allocation(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocationResult {
	return &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{gpuNode}},
		}}}},
	}
}

// newSlice is a slice with one device for a node.
func newSlice(name, driver, node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0"}},
		},
	}
}

// namespace makes one for a test. What is in it goes with the test.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	created, err := w.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "guard-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Client().CoreV1().Namespaces().Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting namespace %q: %v", created.Name, err)
		}
		eventually(ctx, t, func() string {
			_, err := w.Client().CoreV1().Namespaces().Get(ctx, created.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprintf("namespace %q is still there: %v", created.Name, err)
		})
	})
	return created.Name
}

// eventually waits until check returns nothing; what it returns says what is still wrong.
func eventually(ctx context.Context, t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		problem := check()
		switch {
		case problem == "":
			return
		case ctx.Err() != nil || time.Now().After(deadline):
			t.Fatalf("after %s: %s", patience, problem)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
