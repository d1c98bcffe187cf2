// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/chart/release"
)

const finalizer = resourceapi.Finalizer

// claim is one in a test, with the admin's view of it.
type claim struct {
	t         *testing.T
	namespace string
	name      string
}

// makeClaim creates a claim; with results it is also allocated by our scheduler, as that does it: the finalizer first.
func makeClaim(t *testing.T, namespace, name string, results ...resourceapi.DeviceRequestAllocationResult) *claim {
	t.Helper()
	object := newClaim(name)
	if len(results) > 0 {
		object.Finalizers = []string{finalizer}
	}
	created, err := bed.Client().ResourceV1().ResourceClaims(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &claim{t: t, namespace: namespace, name: name}
	if len(results) > 0 {
		created.Status.Allocation = allocation(results...)
		created.Status.ReservedFor = consumers(t, namespace, 1)
		if _, err := bed.as(t, cluster.UserTopoDRAScheduler).ResourceV1().ResourceClaims(namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("our own scheduler may not allocate: %v", err)
		}
	}
	t.Cleanup(c.remove)
	return c
}

// remove ends the claim as the controller does, which may be faster.
func (c *claim) remove() {
	ctx := context.Background()
	claims := bed.as(c.t, claimController).ResourceV1().ResourceClaims(c.namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := claims.Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Status = resourceapi.ResourceClaimStatus{}
		if object, err = claims.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
			return err
		}
		object.Finalizers = nil
		if _, err = claims.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return claims.Delete(ctx, c.name, metav1.DeleteOptions{})
	})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Errorf("removing claim %q as the controller: %v", c.name, err)
	}
}

// status changes the status of the claim as a user, on a fresh copy.
func (c *claim) status(client kubernetes.Interface, change func(*resourceapi.ResourceClaim)) error {
	// The controller of claims writes them, too.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := bed.Client().ResourceV1().ResourceClaims(c.namespace).Get(c.t.Context(), c.name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		change(object)
		_, err = client.ResourceV1().ResourceClaims(c.namespace).UpdateStatus(c.t.Context(), object, metav1.UpdateOptions{})
		return err
	})
}

// consumers are the first n of a namespace's pods, which nothing schedules; they are made as needed. The controller of claims
// takes pods that do not exist off the list at once.
func consumers(t *testing.T, namespace string, n int) []resourceapi.ResourceClaimConsumerReference {
	t.Helper()
	pods := bed.Client().CoreV1().Pods(namespace)
	out := make([]resourceapi.ResourceClaimConsumerReference, n)
	for i := range out {
		name := fmt.Sprintf("pod-%d", i)
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			pod, err = pods.Create(t.Context(), newPod(name, "nobody"), metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		out[i] = resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: pod.UID}
	}
	return out
}

// wantRefused checks that a policy refused something, and that the answer contains all the parts.
func wantRefused(t *testing.T, err error, policy string, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("it was allowed")
		return
	}
	for _, part := range append(parts, "ValidatingAdmissionPolicy '"+policy+"'") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the answer is %q, want %q in it", err, part)
		}
	}
}

func wantAllowed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("it was refused: %v", err)
	}
}

// Whoever may write claims by RBAC still allocates none of our GPUs, in any version of the API and by any kind of request.
func TestAllocationIsOurs(t *testing.T) {
	const hint = `set "schedulerName: topodra-scheduler" in the pod`
	namespace := bed.namespace(t)
	gpu := result(gpuNode, bed.devices[0])
	for _, user := range []string{cluster.UserAdmin, cluster.UserStockScheduler, thirdParty, copyUser, claimController} {
		t.Run(strings.ReplaceAll(user, ":", " "), func(t *testing.T) {
			client := bed.as(t, user)
			c := makeClaim(t, namespace, "ours")
			allocate := func(results ...resourceapi.DeviceRequestAllocationResult) error {
				return c.status(client, func(o *resourceapi.ResourceClaim) { o.Status.Allocation = allocation(results...) })
			}
			wantRefused(t, allocate(gpu), "topodra-allocation", hint, `"`+user+`"`)
			wantRefused(t, allocate(foreign(), gpu), "topodra-allocation", hint)
			patch := fmt.Sprintf(`{"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":%q,"pool":%q,"device":%q}]}}}}`, api.DriverName, gpuNode, gpu.Device)
			_, err := client.ResourceV1().ResourceClaims(namespace).Patch(t.Context(), "ours", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			wantRefused(t, err, "topodra-allocation", hint)
			// What is not about our GPUs is none of our business.
			wantAllowed(t, allocate(foreign()))
			wantAllowed(t, c.status(client, func(o *resourceapi.ResourceClaim) { o.Status.ReservedFor = consumers(t, namespace, 1) }))
			wantAllowed(t, c.status(client, func(o *resourceapi.ResourceClaim) { o.Status.ReservedFor, o.Status.Allocation = nil, nil }))
		})
	}
	t.Run("ours", func(t *testing.T) { makeClaim(t, namespace, "ours", gpu) })
}

// Older versions of the API are no way around.
func TestAllocationInOlderVersions(t *testing.T) {
	namespace := bed.namespace(t)
	makeClaim(t, namespace, "old")
	client := bed.as(t, thirdParty)
	beta1, err := client.ResourceV1beta1().ResourceClaims(namespace).Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	beta1.Status.Allocation = &resourcev1beta1.AllocationResult{Devices: resourcev1beta1.DeviceAllocationResult{
		Results: []resourcev1beta1.DeviceRequestAllocationResult{{Request: "gpu", Driver: api.DriverName, Pool: gpuNode, Device: bed.devices[0]}}}}
	_, err = client.ResourceV1beta1().ResourceClaims(namespace).UpdateStatus(t.Context(), beta1, metav1.UpdateOptions{})
	wantRefused(t, err, "topodra-allocation")
	beta2, err := client.ResourceV1beta2().ResourceClaims(namespace).Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	beta2.Status.Allocation = &resourcev1beta2.AllocationResult{Devices: resourcev1beta2.DeviceAllocationResult{
		Results: []resourcev1beta2.DeviceRequestAllocationResult{{Request: "gpu", Driver: api.DriverName, Pool: gpuNode, Device: bed.devices[0]}}}}
	_, err = client.ResourceV1beta2().ResourceClaims(namespace).UpdateStatus(t.Context(), beta2, metav1.UpdateOptions{})
	wantRefused(t, err, "topodra-allocation")
	slice := &resourcev1beta1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: resourcev1beta1.ResourceSliceSpec{Driver: api.DriverName, NodeName: otherNode, Pool: resourcev1beta1.ResourcePool{Name: otherNode, ResourceSliceCount: 1},
			Devices: []resourcev1beta1.Device{{Name: "gpu-0", Basic: &resourcev1beta1.BasicDevice{}}}},
	}
	_, err = client.ResourceV1beta1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	wantRefused(t, err, "topodra-resourceslices")
}

// Nobody makes a GPU look free while a pod uses it; Kubernetes' own controllers do their work.
func TestRelease(t *testing.T) {
	namespace := bed.namespace(t)
	gpu := result(gpuNode, bed.devices[0])
	deallocate := func(o *resourceapi.ResourceClaim) { o.Status = resourceapi.ResourceClaimStatus{} }
	unreserve := func(o *resourceapi.ResourceClaim) { o.Status.ReservedFor = nil }
	for _, user := range []string{cluster.UserAdmin, thirdParty, copyUser} {
		t.Run("refused to "+strings.ReplaceAll(user, ":", " "), func(t *testing.T) {
			client := bed.as(t, user)
			c := makeClaim(t, namespace, "held", gpu)
			wantRefused(t, c.status(client, deallocate), "topodra-allocation", `the allocation of claim "held" holds GPUs`, "delete the pods")
			wantRefused(t, c.status(client, unreserve), "topodra-allocation", "delete the pod instead", `"`+user+`"`)
			// Sharing an allocated claim is every scheduler's right, and may not be taken back by just anybody.
			wantAllowed(t, c.status(client, func(o *resourceapi.ResourceClaim) { o.Status.ReservedFor = consumers(t, namespace, 2) }))
			if user == copyUser {
				return // it may not touch metadata of claims to begin with
			}
			object, err := client.ResourceV1().ResourceClaims(namespace).Get(t.Context(), "held", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			object.Labels = map[string]string{"some": "label"}
			object, err = client.ResourceV1().ResourceClaims(namespace).Update(t.Context(), object, metav1.UpdateOptions{})
			wantAllowed(t, err)
			object.Finalizers = nil
			_, err = client.ResourceV1().ResourceClaims(namespace).Update(t.Context(), object, metav1.UpdateOptions{})
			wantRefused(t, err, "topodra-allocation", "finalizer resource.kubernetes.io/delete-protection")
		})
	}
	for _, user := range []string{cluster.UserTopoDRAScheduler, claimController, cluster.UserStockScheduler} {
		t.Run("allowed to "+strings.ReplaceAll(user, ":", " "), func(t *testing.T) {
			client := bed.as(t, user)
			c := makeClaim(t, namespace, "held", gpu)
			wantAllowed(t, c.status(client, unreserve))
			wantAllowed(t, c.status(client, deallocate))
		})
	}
}

// A claim with as many users as the API allows is checked within the API server's limits for policies.
func TestManyUsers(t *testing.T) {
	namespace := bed.namespace(t)
	c := makeClaim(t, namespace, "shared", result(gpuNode, bed.devices[0]))
	client := bed.as(t, cluster.UserStockScheduler)
	wantAllowed(t, c.status(client, func(o *resourceapi.ResourceClaim) {
		o.Status.ReservedFor = consumers(t, namespace, resourceapi.ResourceClaimReservedForMaxSize)
	}))
	third := bed.as(t, thirdParty)
	wantRefused(t, c.status(third, func(o *resourceapi.ResourceClaim) {
		o.Status.ReservedFor = o.Status.ReservedFor[:resourceapi.ResourceClaimReservedForMaxSize-1]
	}), "topodra-allocation", "delete the pod instead")
	wantAllowed(t, c.status(client, func(o *resourceapi.ResourceClaim) {
		o.Status.ReservedFor = consumers(t, namespace, resourceapi.ResourceClaimReservedForMaxSize-1)
	}))
}

// node reads a node.
func node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	object, err := bed.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// driverOn returns a client of a driver in a pod on a node; without a name its token is bound to none.
func driverOn(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	if name == "" {
		return release.Client(t, release.Config(t, bed.Cluster, release.Namespace, "topodra-driver", nil))
	}
	return release.Client(t, release.Config(t, bed.Cluster, release.Namespace, "topodra-driver", node(t, name)))
}

// The slices of a node are written by its own driver alone.
func TestSlices(t *testing.T) {
	const policy = "topodra-resourceslices"
	ours := driverOn(t, otherNode).ResourceV1().ResourceSlices()
	create := func(client kubernetes.Interface, slice *resourceapi.ResourceSlice) error {
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
		return err
	}
	for _, user := range []string{cluster.UserAdmin, thirdParty} {
		wantRefused(t, create(bed.as(t, user), newSlice("forged", api.DriverName, otherNode)), policy, "are published by service account topodra-driver", `"`+user+`"`)
	}
	wantRefused(t, create(driverOn(t, ""), newSlice("unbound", api.DriverName, otherNode)), policy, "not bound to a node", "--bound-object-kind=Node")
	wantRefused(t, create(driverOn(t, gpuNode), newSlice("elsewhere", api.DriverName, otherNode)), policy, `the driver on node "gpus"`)
	wantRefused(t, create(driverOn(t, otherNode), newSlice("disguised", "nic.example.com", otherNode)), policy, "only slices of gpu.topodra.dev")
	everywhere := newSlice("everywhere", api.DriverName, otherNode)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, new(true)
	wantRefused(t, create(driverOn(t, otherNode), everywhere), policy, "for its own node")
	pool := newSlice("pool", api.DriverName, otherNode)
	pool.Spec.Pool.Name = gpuNode
	wantRefused(t, create(driverOn(t, otherNode), pool), policy, "the pool of its name")

	wantAllowed(t, create(driverOn(t, otherNode), newSlice("right", api.DriverName, otherNode)))
	wantAllowed(t, create(bed.as(t, thirdParty), newSlice("nic", "nic.example.com", otherNode)))
	slice, err := ours.Get(t.Context(), "right", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Spec.Pool.Generation++
	_, err = driverOn(t, gpuNode).ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
	wantRefused(t, err, policy, `the driver on node "gpus"`)
	_, err = bed.as(t, thirdParty).ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
	wantRefused(t, err, policy)
	_, err = ours.Update(t.Context(), slice, metav1.UpdateOptions{})
	wantAllowed(t, err)
	wantRefused(t, driverOn(t, gpuNode).ResourceV1().ResourceSlices().Delete(t.Context(), "right", metav1.DeleteOptions{}), policy)
	wantRefused(t, driverOn(t, otherNode).ResourceV1().ResourceSlices().Delete(t.Context(), "nic", metav1.DeleteOptions{}), policy)
	wantAllowed(t, ours.Delete(t.Context(), "right", metav1.DeleteOptions{}))
	wantAllowed(t, bed.as(t, thirdParty).ResourceV1().ResourceSlices().Delete(t.Context(), "nic", metav1.DeleteOptions{}))
	// The kubelet and the garbage collector clean up after a driver that is gone.
	wantAllowed(t, create(driverOn(t, otherNode), newSlice("left", api.DriverName, otherNode)))
	wantAllowed(t, bed.as(t, "system:serviceaccount:kube-system:generic-garbage-collector").ResourceV1().ResourceSlices().Delete(t.Context(), "left", metav1.DeleteOptions{}))
}

// What is said about an allocated GPU comes from the driver on its node.
func TestDeviceStatus(t *testing.T) {
	const policy = "topodra-device-status"
	namespace := bed.namespace(t)
	gpu := result(gpuNode, bed.devices[0])
	say := func(text string) func(*resourceapi.ResourceClaim) {
		return func(o *resourceapi.ResourceClaim) {
			o.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
				Driver: api.DriverName, Pool: gpu.Pool, Device: gpu.Device, Data: &runtime.RawExtension{Raw: []byte(`{"says":"` + text + `"}`)},
			}}
		}
	}
	silence := func(o *resourceapi.ResourceClaim) { o.Status.Devices = nil }
	c := makeClaim(t, namespace, "claim", gpu)
	for _, user := range []string{cluster.UserAdmin, thirdParty} {
		wantRefused(t, c.status(bed.as(t, user), say(user)), policy, "is written by topodra-driver on the node of these GPUs", `"`+user+`"`)
	}
	// RBAC alone refuses these: the rights of the driver are for the node of its token.
	for _, name := range []string{"", otherNode} {
		if err := c.status(driverOn(t, name), say("elsewhere")); err == nil || !strings.Contains(err.Error(), "resourceclaims/driver") {
			t.Errorf("the driver on node %q: %v, want a refusal for lack of a right on resourceclaims/driver", name, err)
		}
	}
	wantAllowed(t, c.status(driverOn(t, gpuNode), say("first")))
	wantAllowed(t, c.status(driverOn(t, gpuNode), say("second")))
	wantRefused(t, c.status(bed.as(t, thirdParty), say("forged")), policy)
	wantRefused(t, c.status(bed.as(t, thirdParty), silence), policy)
	// Others write beside it.
	wantAllowed(t, c.status(bed.as(t, thirdParty), func(o *resourceapi.ResourceClaim) { o.Status.ReservedFor = consumers(t, namespace, 2) }))
	wantAllowed(t, c.status(driverOn(t, gpuNode), silence))
	// The end of an allocation takes the status along, whoever ends it.
	wantAllowed(t, c.status(driverOn(t, gpuNode), say("last")))
	wantAllowed(t, c.status(bed.as(t, claimController), func(o *resourceapi.ResourceClaim) { o.Status = resourceapi.ResourceClaimStatus{} }))

	other := makeClaim(t, namespace, "other", foreign())
	wantAllowed(t, other.status(bed.as(t, thirdParty), func(o *resourceapi.ResourceClaim) {
		o.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "nic.example.com", Pool: gpuNode, Device: "nic-0"}}
	}))
}
