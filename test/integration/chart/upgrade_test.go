// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/chart/release"
)

// previous is the chart of the release before.
const previous = "test/integration/chart/testdata/topodra-0.1.0"

// uids returns who the objects of the installed release are, by kind and name.
func uids(t *testing.T) map[string]types.UID {
	t.Helper()
	out := map[string]types.UID{}
	for _, object := range release.Objects(t, bed.helm(t, "get", "manifest", release.Name)) {
		stored, err := bed.get(object)
		if err != nil {
			t.Fatal(err)
		}
		out[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = stored.GetUID()
	}
	return out
}

// wantKept checks that every object that was there is the same one still.
func wantKept(t *testing.T, before map[string]types.UID) {
	t.Helper()
	now := uids(t)
	for name, uid := range before {
		if now[name] != uid {
			t.Errorf("%s had UID %q before and has %q now", name, uid, now[name])
		}
	}
}

// wantChosen checks that what the administrator chose at the first installation is in force.
func wantChosen(t *testing.T) {
	t.Helper()
	client := bed.Client()
	deployment, err := client.AppsV1().Deployments(release.Namespace).Get(t.Context(), "topodra-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := *deployment.Spec.Replicas; got != 3 {
		t.Errorf("the scheduler has %d replicas, 3 were chosen", got)
	}
	daemonSet, err := client.AppsV1().DaemonSets(release.Namespace).Get(t.Context(), "topodra-driver", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if args := daemonSet.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--max-sharers=7") {
		t.Errorf("the driver runs with %q, seven sharers were chosen", args)
	}
	class, err := client.ResourceV1().DeviceClasses().Get(t.Context(), api.DeviceClassGPU, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := class.Spec.ExtendedResourceName; got == nil || *got != "nvidia.com/gpu" {
		t.Errorf("the class serves extended resource %v, nvidia.com/gpu was chosen", got)
	}
}

// An upgrade from the release before keeps every object, what was chosen, and what is allocated; so does the way back.
func TestUpgrade(t *testing.T) {
	t.Cleanup(func() { bed.uninstall(t) })
	bed.helm(t, "install", release.Name, previous, "--set", "scheduler.replicas=3,driver.maxSharers=7,deviceClasses.extendedResourceName=nvidia.com/gpu")
	job(t, "running", 1)
	claims := bed.Client().ResourceV1().ResourceClaims("default")
	claim, err := claims.Get(t.Context(), "running", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := bed.Client().CoreV1().Pods("default").Get(t.Context(), "running", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpus", Driver: api.DriverName, Pool: gpuNode, Device: "gpu-0"},
	}}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	if claim, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := uids(t)
	wantRunning := func() {
		t.Helper()
		now, err := claims.Get(t.Context(), "running", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(claim.Status, now.Status); diff != "" {
			t.Errorf("the claim of the running pod has changed (-before +now):\n%s", diff)
		}
	}

	bed.helm(t, "upgrade", release.Name, release.Chart)
	wantKept(t, before)
	wantChosen(t)
	wantRunning()
	wantPoliciesChecked(t)
	upgraded := uids(t)

	// Once more changes nothing, and values may be added.
	bed.helm(t, "upgrade", release.Name, release.Chart, "--reuse-values", "--set", "scheduler.tierPercent=20")
	wantKept(t, upgraded)
	wantChosen(t)
	config, err := bed.Client().CoreV1().ConfigMaps(release.Namespace).Get(t.Context(), "topodra-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(config.Data["scheduler-config.yaml"], "tierPercent: 20") {
		t.Errorf("the new value is not in force: %s", config.Data["scheduler-config.yaml"])
	}

	bed.helm(t, "rollback", release.Name, "1")
	wantKept(t, before)
	wantChosen(t)
	wantRunning()
	bed.helm(t, "upgrade", release.Name, release.Chart)
	wantKept(t, before)
	wantChosen(t)
	wantRunning()

	var history []struct {
		Revision int    `json:"revision"`
		Status   string `json:"status"`
		Chart    string `json:"chart"`
	}
	if err := json.Unmarshal(bed.helm(t, "history", release.Name, "-o", "json"), &history); err != nil {
		t.Fatal(err)
	}
	if last := history[len(history)-1]; len(history) != 5 || last.Status != "deployed" || last.Chart == history[0].Chart {
		t.Errorf("the history is %+v", history)
	}
}

// A cluster has one TopoDRA: a second release is refused, and leaves nothing behind.
func TestSecondRelease(t *testing.T) {
	bed.install(t)
	before := uids(t)
	out, err := release.Helm(t.Context(), t.TempDir(), "install", "another", release.Chart, "--kubeconfig", bed.kubeconfig, "--namespace", "default")
	if err == nil || !strings.Contains(err.Error(), "invalid ownership metadata") {
		t.Errorf("a second release: %s, %v, want a refusal for what belongs to the first", out, err)
	}
	wantKept(t, before)
	deployments, err := bed.Client().AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(deployments.Items) != 0 {
		t.Errorf("there is a second scheduler")
	}
}
