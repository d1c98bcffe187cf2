// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/chart/release"
)

const leaderPolicy = "topodra-leader"

// schedulerPod returns what a scheduler in a pod of this name is to the API server.
func schedulerPod(t *testing.T, name string) *rest.Config {
	t.Helper()
	pods := bed.Client().CoreV1().Pods(release.Namespace)
	pod := newPod(name, "nobody")
	pod.Spec.ServiceAccountName = "topodra-scheduler"
	created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
	})
	return release.Config(t, bed.Cluster, release.Namespace, "topodra-scheduler", created)
}

// fence puts the policy in force for one test.
func fence(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for _, object := range release.Objects(t, release.Render(t), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding") {
		if object.GetName() != leaderPolicy {
			continue
		}
		data, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		text.Write(data)
		text.WriteString("\n---\n")
	}
	if err := bed.ApplyYAML(t.Context(), []byte(text.String())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		registration := bed.Client().AdmissionregistrationV1()
		if err := registration.ValidatingAdmissionPolicyBindings().Delete(context.Background(), leaderPolicy, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := registration.ValidatingAdmissionPolicies().Delete(context.Background(), leaderPolicy, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// lease gives the lease to a pod.
func lease(t *testing.T, holder string) {
	t.Helper()
	leases := bed.Client().CoordinationV1().Leases(release.Namespace)
	err := leases.Delete(context.Background(), api.SchedulerName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if holder == "" {
		return
	}
	object := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: api.SchedulerName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(holder + "_6c2f5a1e"), LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NewMicroTime(time.Now())),
		},
	}
	if _, err := leases.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Of the processes that have the rights of our scheduler's service account, only the one with the lease allocates.
func TestLeaderAllocates(t *testing.T) {
	namespace := bed.namespace(t)
	fence(t)
	t.Cleanup(func() { lease(t, "") })
	leader, other := release.Client(t, schedulerPod(t, "sched-1")), release.Client(t, schedulerPod(t, "sched-10"))
	anywhere := release.Client(t, release.Config(t, bed.Cluster, release.Namespace, "topodra-scheduler", nil))
	c := makeClaim(t, namespace, "claim")
	allocate := func(o *resourceapi.ResourceClaim) {
		o.Status.Allocation = allocation(result(gpuNode, bed.devices[0]))
		o.Status.ReservedFor = consumers(t, namespace, 1)
	}
	release := func(o *resourceapi.ResourceClaim) { o.Status = resourceapi.ResourceClaimStatus{} }
	// Without a lease there is no leader.
	lease(t, "")
	eventually(t.Context(), t, func() string {
		err := c.status(leader, allocate)
		if err == nil {
			wantAllowed(t, c.status(leader, release))
			return "a scheduler without a lease allocates"
		}
		if !strings.Contains(err.Error(), "'"+leaderPolicy+"'") {
			return err.Error()
		}
		return ""
	})
	lease(t, "sched-1")
	eventually(t.Context(), t, func() string {
		if err := c.status(leader, allocate); err != nil {
			return err.Error()
		}
		return ""
	})
	// Whoever lost the lease may still give back.
	wantAllowed(t, c.status(other, release))
	wantRefused(t, c.status(other, allocate), leaderPolicy, `held by "sched-1_6c2f5a1e", this is pod "sched-10"`, "lease topodra-scheduler in namespace topodra-system")
	wantRefused(t, c.status(anywhere, allocate), leaderPolicy, `this is pod ""`)
	// Other drivers' devices are not fenced.
	wantAllowed(t, c.status(other, func(o *resourceapi.ResourceClaim) { o.Status.Allocation = allocation(foreign()) }))
	wantAllowed(t, c.status(other, release))
	lease(t, "sched-10")
	eventually(t.Context(), t, func() string {
		if err := c.status(other, allocate); err != nil {
			return err.Error()
		}
		return ""
	})
	wantAllowed(t, c.status(leader, release))
	wantRefused(t, c.status(leader, allocate), leaderPolicy, `held by "sched-10_6c2f5a1e"`)
}

// Two real copies with the same service account: one leads, the other was started without an election and wants the same GPUs.
func TestCopyWithoutElection(t *testing.T) {
	namespace := bed.namespace(t)
	fence(t)
	t.Cleanup(func() { lease(t, "") })
	lease(t, "")
	host, err := os.Hostname() // what the leader calls itself; in a pod it is the pod's name
	if err != nil {
		t.Fatal(err)
	}
	rendered := release.Render(t)
	config := schedulerPod(t, strings.ToLower(host))
	leader := release.StartScheduler(t, bed.Cluster, rendered, "leader", config)
	owner := watchOwners(t)
	submit(t, namespace, "first", api.SchedulerName)
	bound(t, namespace, "first")
	// While the leader is away GPUs are free, and the stray one gets none of them.
	if err := leader.Stop(); err != nil {
		t.Fatal(err)
	}
	release.StartScheduler(t, bed.Cluster, rendered, "stray", schedulerPod(t, "stray"), "--leader-elect=false")
	submit(t, namespace, "second", api.SchedulerName)
	told(t, namespace, "second", "only the leader of the copies of topodra-scheduler allocates GPUs", `this is pod "stray"`)
	if got := owner.of(namespace); !slices.Equal(got, []string{"first"}) {
		t.Errorf("claims %q have GPUs, want the first only", got)
	}
	// With the leader back, both want the rest for more pods than there are GPUs.
	release.StartScheduler(t, bed.Cluster, rendered, "leader", config)
	for _, name := range []string{"third", "fourth", "fifth"} {
		submit(t, namespace, name, api.SchedulerName)
	}
	eventually(t.Context(), t, func() string {
		if got := owner.of(namespace); len(got) != len(bed.devices) {
			return "the GPUs belong to " + strings.Join(got, ", ")
		}
		return ""
	})
	if got := owner.of(namespace); !slices.Contains(got, "first") || len(got) != len(bed.devices) {
		t.Errorf("claims %q have GPUs", got)
	}
	names := []string{"first", "second", "third", "fourth", "fifth"}
	finish(t, namespace, names...)
}
