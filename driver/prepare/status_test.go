// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/topodra/topodra/driver/checkpoint"
)

// applied is one server-side apply, as it goes over the wire.
type applied struct {
	Manager string
	UID     types.UID
	Status  struct {
		Devices []resourceapi.AllocatedDeviceStatus
	}
}

// statusClient records applies; each is answered by answer.
func statusClient(answer func(n int) error) (*fake.Clientset, chan applied) {
	client := fake.NewClientset()
	out := make(chan applied, 100)
	var n atomic.Int32
	client.PrependReactor("patch", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchActionImpl)
		if !ok || patch.GetPatchType() != types.ApplyPatchType || patch.GetSubresource() != "status" {
			return true, nil, fmt.Errorf("unexpected action %+v", action)
		}
		var body struct {
			Metadata struct {
				UID types.UID `json:"uid"`
			} `json:"metadata"`
			Status struct {
				Devices []resourceapi.AllocatedDeviceStatus `json:"devices"`
			} `json:"status"`
		}
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
			return true, nil, err
		}
		got := applied{Manager: patch.PatchOptions.FieldManager, UID: body.Metadata.UID}
		got.Status.Devices = body.Status.Devices
		out <- got
		return true, &resourceapi.ResourceClaim{}, answer(int(n.Add(1)))
	})
	return client, out
}

// runWriter runs the writer until the test ends.
func runWriter(t *testing.T, writer *StatusWriter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { writer.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

func record1() *checkpoint.Claim {
	return &checkpoint.Claim{Namespace: "default", Name: "c", Enforcer: "hami-core", Devices: []checkpoint.Device{
		{Request: "r", Pool: nodeName, Name: "gpu-1", ShareID: "share-1", UUID: "GPU-1", PCIAddress: "0000:01:00.0", Limit: &checkpoint.Limit{MemoryMiB: 10, CoresPercent: 20}},
		{Request: "s", Pool: nodeName, Name: "gpu-2", UUID: "GPU-2", PCIAddress: "0000:02:00.0"},
	}}
}

// TestStatusOnTheWire pins what is applied: only our entries, with share IDs,
// under our name, for exactly this claim.
func TestStatusOnTheWire(t *testing.T) {
	t.Parallel()
	client, requests := statusClient(func(int) error { return nil })
	writer := NewStatusWriter(client)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	writer.now = func() time.Time { return now }
	runWriter(t, writer)
	writer.Prepared("uid-c", record1())
	got := <-requests
	ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Prepared", LastTransitionTime: metav1.NewTime(now.Local()),
		Message: "the device is ready for the containers of the claim's pods"}}
	want := applied{Manager: "gpu.topodra.dev", UID: "uid-c"}
	want.Status.Devices = []resourceapi.AllocatedDeviceStatus{
		{Driver: "gpu.topodra.dev", Pool: nodeName, Device: "gpu-1", ShareID: new("share-1"), Conditions: ready, Data: &runtime.RawExtension{
			Raw: []byte(`{"uuid":"GPU-1","pciBusID":"0000:01:00.0","request":"r","memoryLimitMiB":10,"coresLimitPercent":20,"enforcer":"hami-core"}`)}},
		{Driver: "gpu.topodra.dev", Pool: nodeName, Device: "gpu-2", Conditions: ready, Data: &runtime.RawExtension{
			Raw: []byte(`{"uuid":"GPU-2","pciBusID":"0000:02:00.0","request":"s"}`)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	writer.Failed("uid-c", record1(), "the GPU is gone")
	if got := (<-requests).Status.Devices[1].Conditions[0]; got.Status != metav1.ConditionFalse || got.Message != "the GPU is gone" || got.Reason != "NotAvailable" {
		t.Errorf("got condition %+v", got)
	}
	writer.Unprepared("uid-c", record1())
	if got := <-requests; len(got.Status.Devices) > 0 || got.UID != "uid-c" {
		t.Errorf("got %+v, want no entries", got)
	}
}

// TestStatusIsTriedAgain until it works, with what is newest; a claim that is
// gone, or is another one now, is given up.
func TestStatusIsTriedAgain(t *testing.T) {
	t.Parallel()
	gone := apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), "c")
	conflict := apierrors.NewConflict(resourceapi.Resource("resourceclaims"), "c", errors.New("uid mismatch"))
	for name, test := range map[string]struct {
		answers []error
		want    int
	}{
		"works": {[]error{nil}, 1}, "third time": {[]error{errors.New("busy"), errors.New("busy"), nil}, 3}, "gone": {[]error{gone}, 1}, "another": {[]error{conflict}, 1},
	} {
		client, requests := statusClient(func(n int) error { return test.answers[min(n, len(test.answers))-1] })
		writer := NewStatusWriter(client)
		runWriter(t, writer)
		writer.Prepared("uid-c", record1())
		for range test.want {
			<-requests
		}
		select {
		case <-requests:
			t.Errorf("%s: written more than %d times", name, test.want)
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// TestStatusKeepsOthers: with the fake server's own server-side apply, entries
// of another driver stay, and ours go without a trace.
func TestStatusKeepsOthers(t *testing.T) {
	t.Parallel()
	c := claim("c", nil, result{request: "r", gpu: 0, memory: 1})
	client := fake.NewClientset(c)
	other := resourceapply.ResourceClaim("c", "default").WithStatus(resourceapply.ResourceClaimStatus().WithDevices(
		resourceapply.AllocatedDeviceStatus().WithDriver("nic.example.com").WithPool("p").WithDevice("eth1").WithConditions()))
	if _, err := client.ResourceV1().ResourceClaims("default").ApplyStatus(t.Context(), other, metav1.ApplyOptions{FieldManager: "nic.example.com"}); err != nil {
		t.Fatal(err)
	}
	writer := NewStatusWriter(client)
	drivers := func() []string {
		got, err := client.ResourceV1().ResourceClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, device := range got.Status.Devices {
			out = append(out, device.Driver+"/"+device.Device)
		}
		slices.Sort(out)
		return out
	}
	record := record1()
	if err := writer.write(t.Context(), c.UID, desired{namespace: "default", name: "c", devices: writer.entries(record, metav1.ConditionTrue, "Prepared", "")}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu.topodra.dev/gpu-1", "gpu.topodra.dev/gpu-2", "nic.example.com/eth1"}, drivers()); diff != "" {
		t.Error(diff)
	}
	if err := writer.write(t.Context(), c.UID, desired{namespace: "default", name: "c"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"nic.example.com/eth1"}, drivers()); diff != "" {
		t.Error(diff)
	}
}

// TestClusterAndEvents on a fake server.
func TestClusterAndEvents(t *testing.T) {
	t.Parallel()
	mine, other := podWith("mine", "app:a=c"), podWith("other", "app:a=c")
	other.Spec.NodeName = "node-2"
	cluster := NewCluster(fake.NewClientset(mine, other, claim("c", nil, result{request: "r", gpu: 0})))
	pods, err := cluster.PodsOfNode(t.Context(), nodeName)
	if err != nil || len(pods) != 1 || pods[0].Name != "mine" {
		t.Errorf("got %d pods, %v", len(pods), err)
	}
	if got, err := cluster.Claim(t.Context(), "default", "c"); err != nil || got.Name != "c" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := cluster.Claim(t.Context(), "default", "x"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `getting claim "default/x"`) {
		t.Errorf("got error %v", err)
	}
	if _, err := cluster.Pod(t.Context(), "default", "x"); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v", err)
	}
	recorder := record.NewFakeRecorder(2)
	sink := NewRecorder(recorder, &corev1.ObjectReference{Kind: "Node", Name: nodeName})
	sink.Claim("default", "c", "uid", "Overlap", strings.Repeat("ä", 1000))
	sink.Node("CheckpointCorrupt", "short")
	if got := <-recorder.Events; !strings.HasPrefix(got, "Warning Overlap ää") || !strings.HasSuffix(got, "ä…") || len(got) > len("Warning Overlap ")+1024 {
		t.Errorf("got event of %d bytes: %q", len(got), got)
	}
	if got := <-recorder.Events; got != "Warning CheckpointCorrupt short" {
		t.Errorf("got event %q", got)
	}
	sink.Pod("default", "p", "uid", "GPULimitsNotSet", "short")
	if got := <-recorder.Events; got != "Warning GPULimitsNotSet short" {
		t.Errorf("got event %q", got)
	}
}
