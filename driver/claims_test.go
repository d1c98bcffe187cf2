// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/publish"
)

// gpuA is how the GPU of snapshotOf is published.
func gpuA(t *testing.T) string {
	t.Helper()
	described, err := publish.Build(snapshotOf("a"), publish.Options{NodeName: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	return flatten(&described.Resources)[0].Name
}

// fakeEnforcer can be set up after a few attempts.
type fakeEnforcer struct {
	mu       sync.Mutex
	failures int
	ready    bool
}

var errNoLibrary = errors.New("no library")

func (e *fakeEnforcer) Setup(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures--
	e.ready = e.failures < 0
	if !e.ready {
		return errNoLibrary
	}
	return nil
}

func (e *fakeEnforcer) Check(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ready {
		return errNoLibrary
	}
	return nil
}

func (e *fakeEnforcer) Name() string        { return "fake" }
func (e *fakeEnforcer) NeedsNRI() bool      { return false }
func (e *fakeEnforcer) OwnsEnv(string) bool { return false }
func (e *fakeEnforcer) Edits(*enforce.Container) (enforce.Edits, error) {
	return enforce.Edits{Env: []enforce.EnvVar{{Name: "LIMITED", Value: "yes"}}}, nil
}
func (e *fakeEnforcer) Provision(context.Context, *enforce.Container) error     { return nil }
func (e *fakeEnforcer) Start(context.Context, *enforce.Container, string) error { return nil }

// claimObjects are a pod and its claim with half of the GPU of snapshotOf.
func claimObjects(t *testing.T) (*corev1.Pod, *resourceapi.ResourceClaim) {
	t.Helper()
	name := "claim"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod-uid"}, Spec: corev1.PodSpec{NodeName: "node-a",
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "claim-uid"}, Status: resourceapi.ResourceClaimStatus{
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "r", Driver: "gpu.topodra.dev", Pool: "node-a", Device: gpuA(t), ShareID: new(pod.UID),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("512Mi"), "cores": resource.MustParse("50")},
		}}}}}}
	return pod, claim
}

// kubelet connects to the driver's socket.
func kubelet(t *testing.T, socket string) drapb.DRAPluginClient {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return drapb.NewDRAPluginClient(connection)
}

// TestRunPreparesClaims runs two versions of the driver side by side, as during
// an update: the first prepares, the second unprepares, by the kubelet's calls.
func TestRunPreparesClaims(t *testing.T) {
	t.Parallel()
	pod, claim := claimObjects(t)
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "uid"}}, pod, claim)
	config.Client = client
	state := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	var versions []drapb.DRAPluginClient
	for _, uid := range []types.UID{"1", "2"} {
		version := config
		version.Source = &script{steps: []step{{snapshot: snapshotOf("a")}}}
		version.Claims = &ClaimsConfig{StateDir: filepath.Join(state, "state"), CDIDir: filepath.Join(state, "cdi"), Base: cdi.Simulated{},
			Enforcer: &fakeEnforcer{}, PodUID: uid, NRISocket: filepath.Join(state, "no-nri.sock")}
		group.Go(func() {
			if err := Run(ctx, version); err != nil {
				t.Error(err)
			}
		})
		socket := filepath.Join(version.DataDir, "dra-"+string(uid)+".sock")
		eventually(t, "socket "+socket, func() bool { _, err := os.Stat(socket); return err == nil })
		versions = append(versions, kubelet(t, socket))
	}
	asked := &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
	for i, version := range versions {
		answer, err := version.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{asked}})
		if err != nil {
			t.Fatal(err)
		}
		result := answer.GetClaims()["claim-uid"]
		if result.GetError() != "" || len(result.GetDevices()) != 1 || result.GetDevices()[0].GetShareId() != "pod-uid" ||
			result.GetDevices()[0].GetCdiDeviceIds()[0] != cdi.Name("claim-uid", "r", gpuA(t), "pod-uid") {
			t.Errorf("version %d: got %v", i, result)
		}
	}
	eventually(t, "the claim's status", func() bool {
		got, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "claim", metav1.GetOptions{})
		return err == nil && len(got.Status.Devices) == 1 && *got.Status.Devices[0].ShareID == "pod-uid"
	})
	specs, err := filepath.Glob(filepath.Join(state, "cdi", "*"))
	if err != nil || len(specs) != 1 {
		t.Fatalf("specs: %q, %v", specs, err)
	}
	if content, err := os.ReadFile(specs[0]); err != nil || !strings.Contains(string(content), "LIMITED=yes") {
		t.Errorf("the spec is %s, %v", content, err)
	}
	answer, err := versions[1].NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{asked}})
	if err != nil || answer.GetClaims()["claim-uid"].GetError() != "" {
		t.Errorf("got %v, %v", answer, err)
	}
	if specs, err := filepath.Glob(filepath.Join(state, "cdi", "*")); err != nil || len(specs) > 0 {
		t.Errorf("left: %q, %v", specs, err)
	}
}

// TestEnforcerIsSetUpAgain: a node that cannot limit says so, refuses shares, and
// works when it can.
func TestEnforcerIsSetUpAgain(t *testing.T) {
	t.Parallel()
	pod, claim := claimObjects(t)
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	config.Client = fake.NewClientset(pod, claim)
	recorder := record.NewFakeRecorder(10)
	config.Claims = &ClaimsConfig{StateDir: t.TempDir(), CDIDir: t.TempDir(), Base: cdi.Simulated{}, Enforcer: &fakeEnforcer{failures: 1}}
	ctx, cancel := context.WithCancel(t.Context())
	started, err := startClaims(ctx, &config, newInventory(config.Source, config.Publish), &eventSink{recorder: recorder, node: &corev1.ObjectReference{Kind: "Node", Name: "node-a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer started.wait()
	defer cancel()
	if event := <-recorder.Events; !strings.Contains(event, ReasonCannotEnforce) || !strings.Contains(event, "no library") {
		t.Errorf("got event %q", event)
	}
	if _, err := started.manager.Prepare(ctx, claim); !errors.Is(err, errNoLibrary) && (err == nil || !strings.Contains(err.Error(), "no library")) {
		t.Errorf("got error %v", err)
	}
	if !started.wholeOnly() {
		t.Error("shares are offered that nothing limits")
	}
	started.setup(ctx)
	if started.wholeOnly() {
		t.Error("shares are not offered although they can be limited")
	}
	if _, err := started.manager.Prepare(ctx, claim); err != nil {
		t.Error(err)
	}
	if err := started.healthy(); err != nil {
		t.Errorf("without NRI: %v", err)
	}
}

// TestWholeOnly: what is published without limits has no capacity that a share
// could ask for, and is for one claim at a time.
func TestWholeOnly(t *testing.T) {
	t.Parallel()
	s, r := newScanner(step{snapshot: snapshotOf("a")})
	whole := true
	s.wholeOnly = func() bool { return whole }
	scanTimes(t, s, 1)
	whole = false
	scanTimes(t, s, 2)
	if len(r.published) != 2 {
		t.Fatalf("published %d times", len(r.published))
	}
	for i, want := range []bool{false, true} {
		device := flatten(&r.published[i])[0]
		if device.Shareable != want || (len(device.Capacity) > 0) != want {
			t.Errorf("publication %d: got %+v", i, device)
		}
	}
	if len(r.events) > 0 {
		t.Errorf("got events %q", r.events)
	}
	if (&claims{config: &ClaimsConfig{}}).wholeOnly() {
		t.Error("a driver that was started without anything to limit with stops offering shares to those who only look")
	}
}

// TestInventory: one discovery serves the claims of a moment, devices that are
// not published any more are remembered, and a failure is passed on.
func TestInventory(t *testing.T) {
	t.Parallel()
	source := &script{steps: []step{{snapshot: snapshotOf("a")}, {snapshot: snapshotOf("b")}, {err: errNoLibrary}}}
	i := newInventory(source, publish.Options{NodeName: "node-a"})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	i.now = func() time.Time { return now }
	for range 3 {
		devices, err := i.Present(t.Context())
		if err != nil || len(devices) != 1 || devices[0].UUID != "GPU-a" || !devices[0].Shareable || devices[0].Capacity["memory"] != 1<<30 {
			t.Fatalf("got %+v, %v", devices, err)
		}
	}
	if source.calls != 1 {
		t.Errorf("asked %d times within a moment", source.calls)
	}
	now = now.Add(freshness + 1)
	if _, err := i.Present(t.Context()); err != nil || source.calls != 2 {
		t.Errorf("asked %d times, %v", source.calls, err)
	}
	if _, err := i.Discover(t.Context()); !errors.Is(err, errNoLibrary) {
		t.Errorf("got error %v", err)
	}
	if _, err := i.Present(t.Context()); !errors.Is(err, errNoLibrary) {
		t.Errorf("an old answer is given after a failure: %v", err)
	}
	described, err := publish.Build(snapshotOf("a"), i.options)
	if err != nil {
		t.Fatal(err)
	}
	i.setPublished(&described.Resources)
	i.setPublished(&resourceslice.DriverResources{})
	if got, ok := i.Published(gpuA(t)); !ok || got.UUID != "GPU-a" {
		t.Errorf("got %+v, %t", got, ok)
	}
	if _, ok := i.Published("other"); ok {
		t.Error("a device that was never published is known")
	}
}

func TestClaimsConfigValidate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *ClaimsConfig){
		"state": func(c *ClaimsConfig) { c.StateDir = "x" }, "CDI": func(c *ClaimsConfig) { c.CDIDir = "" }, "base": func(c *ClaimsConfig) { c.Base = nil },
		"period": func(c *ClaimsConfig) { c.ReconcilePeriod = -1 }, "paths": func(c *ClaimsConfig) { c.Paths = cdi.PathMap{{Host: "x", Local: "/"}} },
	} {
		config := goodConfig()
		config.Claims = &ClaimsConfig{StateDir: "/state", CDIDir: "/cdi", Base: cdi.Simulated{}}
		if err := config.Validate(); err != nil {
			t.Fatal(err)
		}
		change(config.Claims)
		if err := config.Validate(); err == nil {
			t.Errorf("%s: a bad value is accepted", name)
		}
	}
	config := goodConfig()
	config.Claims = &ClaimsConfig{StateDir: "/state", CDIDir: "/cdi", Base: cdi.Simulated{}, PodUID: "01234567-89ab-cdef-0123-456789abcdef"}
	config.DataDir = "/" + strings.Repeat("x", 70)
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "dra-01234567-89ab-cdef-0123-456789abcdef.sock") {
		t.Errorf("got error %v, want one about the longer socket", err)
	}
}
