// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/health"
	"github.com/topodra/topodra/driver/internal/owners"
)

// prober answers what a test has set, for the GPU of snapshotOf. It is safe for
// concurrent use.
type prober struct {
	mu   sync.Mutex
	seen health.Observation
}

func (p *prober) set(seen health.Observation) {
	seen.UUID = "GPU-a"
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = seen
}

func (p *prober) Probe(context.Context) ([]health.Observation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []health.Observation{p.seen}, nil
}

func (p *prober) Watch(ctx context.Context, _ func(health.Event)) { <-ctx.Done() }

// healthConfig watches often.
func healthConfig(t *testing.T) (*HealthConfig, *prober) {
	t.Helper()
	p := &prober{}
	p.set(health.Observation{})
	return &HealthConfig{StateDir: t.TempDir(), Prober: p, Period: 10 * time.Millisecond, OtherAllocators: DefaultOtherAllocators, OtherAllocatorPeriod: 10 * time.Millisecond}, p
}

// runDriver runs a driver until the returned function is called.
func runDriver(t *testing.T, config Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// taintsIn the API of the only device; "no device" while there is none.
func taintsIn(t *testing.T, config *Config) string {
	t.Helper()
	list, err := config.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || len(list.Items[0].Spec.Devices) != 1 {
		return "no device"
	}
	var out []string
	for _, taint := range list.Items[0].Spec.Devices[0].Taints {
		out = append(out, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
	}
	return strings.Join(out, ",")
}

// TestHealthTaints: a fault becomes a taint and an event, survives a restart of the
// driver during which nobody looks, and goes after clean looks.
func TestHealthTaints(t *testing.T) {
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	var p *prober
	config.Health, p = healthConfig(t)
	stop := runDriver(t, config)
	eventually(t, "no taint", func() bool { return taintsIn(t, &config) == "" })
	p.set(health.Observation{Remap: &health.Remap{Pending: true}})
	const pending = "gpu.topodra.dev/row-remap=pending:NoSchedule"
	eventually(t, "the taint", func() bool { return taintsIn(t, &config) == pending })
	stop()

	// Until there is an answer from the hardware, what was known counts.
	p.set(health.Observation{Partial: true})
	if err := config.Client.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	stop = runDriver(t, config)
	eventually(t, "the taint after a restart", func() bool { return taintsIn(t, &config) == pending })
	stop()

	p.set(health.Observation{Remap: &health.Remap{}})
	runDriver(t, config)
	eventually(t, "the taint to go", func() bool { return taintsIn(t, &config) == "" })
	eventually(t, "both events", func() bool {
		list, err := config.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for i := range list.Items {
			got[list.Items[i].Reason] = list.Items[i].Type + " " + list.Items[i].Message
		}
		return strings.HasPrefix(got[ReasonUnhealthy], `Warning GPU "GPU-a"`) &&
			strings.Contains(got[ReasonUnhealthy], "bad memory waits to be replaced by spare memory. It has the taint "+pending+" until that is over. What to do: drain the GPU") &&
			strings.Contains(got[ReasonRecovered], "taint gpu.topodra.dev/row-remap=pending is gone")
	})
}

// TestWatchHealthStatus: a client of the kubelet's protocol, in both versions, is told
// at once and after every change.
func TestWatchHealthStatus(t *testing.T) {
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	var p *prober
	config.Health, p = healthConfig(t)
	runDriver(t, config)
	eventually(t, "the slice", func() bool { return taintsIn(t, &config) == "" })
	connection, err := grpc.NewClient("unix://"+filepath.Join(config.DataDir, pluginSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := healthv1.NewDRAResourceHealthClient(connection).NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := healthv1alpha1.NewDRAResourceHealthClient(connection).NodeWatchResources(ctx, &healthv1alpha1.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	device := gpuA(t)
	next := func() *healthv1.DeviceHealth {
		t.Helper()
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Devices) != 1 || answer.Devices[0].Device.PoolName != "node-a" || answer.Devices[0].Device.DeviceName != device || answer.Devices[0].HealthCheckTimeoutSeconds != 30 {
			t.Fatalf("got %+v", answer.Devices)
		}
		return answer.Devices[0]
	}
	if got := next(); got.Health != healthv1.HealthStatus_HEALTHY || got.LastUpdatedTime < time.Now().Add(-time.Minute).Unix() {
		t.Errorf("at first: got %+v", got)
	}
	// Before anything changes: the server begins to watch when it gets to the stream.
	if answer, err := old.Recv(); err != nil || len(answer.Devices) != 1 || answer.Devices[0].Health != healthv1alpha1.HealthStatus_HEALTHY {
		t.Errorf("v1alpha1: got %+v, %v", answer, err)
	}
	p.set(health.Observation{Lost: "it is gone"})
	if got := next(); got.Health != healthv1.HealthStatus_UNHEALTHY || !strings.HasPrefix(got.Message, "the GPU is lost: it is gone; ") {
		t.Errorf("lost: got %+v", got)
	}
	p.set(health.Observation{})
	if got := next(); got.Health != healthv1.HealthStatus_HEALTHY || got.Message != "" {
		t.Errorf("back: got %+v", got)
	}
}

// TestNoHealth: without anybody who looks, the kubelet is told not to ask, and what was
// found before does not keep work away.
func TestNoHealth(t *testing.T) {
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	config.Health, _ = healthConfig(t)
	config.Health.Prober = nil
	remembered := health.NewDocument("node-a", "")
	health.NewLedger(health.Policy{}, remembered, health.NewStore(config.Health.StateDir, "node-a"), nil).Raise("probe", "GPU-a", health.XIDFinding(79))
	runDriver(t, config)
	eventually(t, "the slice", func() bool { return taintsIn(t, &config) == "" })
	connection, err := grpc.NewClient("unix://"+filepath.Join(config.DataDir, pluginSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := healthv1.NewDRAResourceHealthClient(connection).NodeWatchResources(t.Context(), &healthv1.NodeWatchResourcesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if grpcstatus.Code(err) != codes.Unimplemented {
		t.Errorf("got error %v", err)
	}
}

// hanging is a source whose second answer does not come before its context ends.
type hanging struct {
	mu    sync.Mutex
	calls int
}

// Discover implements device.Source.
func (h *hanging) Discover(ctx context.Context) (*device.Snapshot, error) {
	h.mu.Lock()
	h.calls++
	first := h.calls == 1
	h.mu.Unlock()
	if first {
		return snapshotOf("a"), nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestTaintsWhileDiscoveryHangs: a GPU in trouble can keep the source from answering,
// and just then its taint matters.
func TestTaintsWhileDiscoveryHangs(t *testing.T) {
	config := runConfig(t)
	source := &hanging{}
	config.Source, config.RescanPeriod = source, time.Second
	var p *prober
	config.Health, p = healthConfig(t)
	runDriver(t, config)
	eventually(t, "the slice", func() bool { return taintsIn(t, &config) == "" })
	eventually(t, "the second discovery", func() bool { source.mu.Lock(); defer source.mu.Unlock(); return source.calls == 2 })
	p.set(health.Observation{Hangs: "GetName"})
	eventually(t, "the taint", func() bool { return taintsIn(t, &config) == "gpu.topodra.dev/not-responding=hangs:NoSchedule" })
}

// TestLostGPUStays: a GPU that disappears stays published, as it was but tainted.
func TestLostGPUStays(t *testing.T) {
	t.Parallel()
	two := func() *device.Snapshot {
		s := snapshotOf("a")
		s.GPUs[0].PCIAddress = "0000:01:00.0"
		return s
	}
	s, r := newScanner(step{snapshot: two()}, step{snapshot: &device.Snapshot{}}, step{err: errors.New("no NVML")}, step{snapshot: two()})
	ledger := health.NewLedger(health.Policy{}, health.NewDocument("node-a", ""), nil, nil)
	monitor, err := health.New(health.Options{Prober: &prober{}, Ledger: ledger})
	if err != nil {
		t.Fatal(err)
	}
	stop := s.watchHealth(&healthWatch{monitor: monitor})
	defer stop()
	scanTimes(t, s, 3)
	if len(r.published) != 2 {
		t.Fatalf("published %d times", len(r.published))
	}
	before, after := r.published[0].Pools["node-a"].Slices[0].Devices[0], r.published[1].Pools["node-a"].Slices[0].Devices[0]
	if len(before.Taints) != 0 || len(after.Taints) != 1 || after.Taints[0].Key != "gpu.topodra.dev/lost" || after.Taints[0].Value != "missing" {
		t.Errorf("got taints %+v, then %+v", before.Taints, after.Taints)
	}
	after.Taints = nil
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	// The source fails, but taints go on.
	ledger.Raise("x", "GPU-a", health.XIDFinding(79))
	if err := s.republish(t.Context()); err != nil || len(lastTaints(r)) != 2 {
		t.Errorf("got %+v, %v", lastTaints(r), err)
	}
	scanTimes(t, s, 1)
	for range health.DefaultCleanLooks {
		ledger.Look("probe", "GPU-a")
		ledger.Look("x", "GPU-a")
	}
	if err := s.republish(t.Context()); err != nil || len(lastTaints(r)) != 0 {
		t.Errorf("back: got %+v, %v", lastTaints(r), err)
	}
	n := len(r.published)
	if err := s.republish(t.Context()); err != nil || len(r.published) != n {
		t.Error("published the same twice")
	}
	fresh, _ := newScanner()
	if err := fresh.republish(t.Context()); err != nil {
		t.Errorf("before the first discovery: %v", err)
	}
}

// lastTaints of the only device.
func lastTaints(r *recorder) []resourceapi.DeviceTaint {
	last := func(all []resourceslice.DriverResources) resourceslice.DriverResources { return all[len(all)-1] }
	return last(r.published).Pools["node-a"].Slices[0].Devices[0].Taints
}

// TestPodsAreTold: pods whose claims have the ill GPU, or a MIG device of it, get an
// event each, and others none.
func TestPodsAreTold(t *testing.T) {
	t.Parallel()
	document := checkpoint.New("node-a", "")
	for i, uuid := range []string{"GPU-a", "GPU-b", "MIG-a", "GPU-a"} {
		claim := &checkpoint.Claim{Namespace: "ns", Name: fmt.Sprint("c", i), Devices: []checkpoint.Device{{UUID: uuid}}}
		if uuid == "MIG-a" {
			claim.Devices[0].ParentUUID = "GPU-a"
		}
		claim.Consumers = []checkpoint.Consumer{{Name: fmt.Sprint("pod-", i%3), UID: types.UID(fmt.Sprint("uid-", i%3))}}
		document.Claims[types.UID(fmt.Sprint("claim-", i))] = claim
	}
	events, pods := record.NewFakeRecorder(10), &podLog{}
	monitor, err := health.New(health.Options{Ledger: health.NewLedger(health.Policy{}, health.NewDocument("node-a", ""), nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	h := &healthWatch{monitor: monitor, events: &eventSink{recorder: events, node: &corev1.ObjectReference{}}, pods: pods,
		users: func(uuid device.UUID) ([]podUser, error) { return usersIn(document, uuid), nil }}
	monitor.Ledger().Listen(func(c health.Change) { h.tell(t.Context(), c) })
	monitor.Ledger().Raise("x", "GPU-a", health.XIDFinding(79))
	monitor.Ledger().Raise("x", "GPU-b", health.Finding{Kind: health.KindViolation, Value: "over-limit", Severity: health.Degraded, Message: "m", Advice: "a"})
	const message = `GPUUnhealthy: GPU "GPU-a", which this pod uses: XID 79: the GPU has fallen off the bus. What to do: drain the node and reboot it; if it comes back, have the GPU looked at`
	if diff := cmp.Diff([]string{"ns/pod-0 uid-0 " + message, "ns/pod-2 uid-2 " + message}, pods.got); diff != "" || len(events.Events) != 2 {
		t.Errorf("%d events of the node: %s", len(events.Events), diff)
	}
}

// TestOnViolationTaint: the GPU has a taint while somebody is above the limit there,
// and after a look that could not see everything; three clean looks end it.
func TestOnViolationTaint(t *testing.T) {
	t.Parallel()
	ledger := health.NewLedger(health.Policy{}, health.NewDocument("node-a", ""), nil, nil)
	over := []watch.Violation{{UUID: "GPU-1", UsedMiB: 11, LimitMiB: 10, Owner: &owners.Owner{Namespace: "default", Pod: "train", Container: "main"}},
		{UUID: "GPU-1", UsedMiB: 12, LimitMiB: 10, Owner: &owners.Owner{Namespace: "default", Pod: "other", Container: "main"}}}
	taints := func() int { return len(ledger.Taints("GPU-1", "")) }
	for policy, want := range map[OnViolation]int{OnViolationTell: 0, OnViolationEvict: 0, OnViolationTaint: 1} {
		actions := &violationActions{policy: policy, ledger: ledger, events: &podLog{}, client: fake.NewClientset()}
		actions.Looked(t.Context(), []string{"GPU-1"}, over, nil)
		if got := taints(); got != want {
			t.Errorf("%s: %d taints, want %d", policy, got, want)
		}
		ledger.Forget("GPU-1")
	}
	actions := &violationActions{policy: OnViolationTaint, ledger: ledger}
	actions.Looked(t.Context(), []string{"GPU-1"}, over, nil)
	if taint := ledger.Taints("GPU-1", "")[0]; taint.Key != "gpu.topodra.dev/memory-violation" || taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
		t.Errorf("got %+v", taint)
	}
	if state, _ := ledger.Health("GPU-1", ""); state != health.Healthy {
		t.Errorf("the GPU is %s by what a pod does", state)
	}
	inPart := errors.New("one GPU could not be asked")
	for i, step := range []struct {
		seen []string
		err  error
		want int
	}{{[]string{"GPU-1"}, nil, 1}, {nil, inPart, 1}, {[]string{"GPU-2"}, inPart, 1}, {[]string{"GPU-1", "GPU-2"}, inPart, 1}, {nil, nil, 0}} {
		actions.Looked(t.Context(), step.seen, nil, step.err)
		if got := taints(); got != step.want {
			t.Errorf("look %d: %d taints, want %d", i, got, step.want)
		}
	}
	actions.Looked(t.Context(), nil, over[:1], inPart)
	if taints() != 1 {
		t.Error("what was seen in part does not count")
	}
	for range health.DefaultCleanLooks {
		actions.Looked(t.Context(), []string{"GPU-1"}, nil, inPart)
	}
	if taints() != 0 {
		t.Error("another GPU that cannot be asked keeps the taint")
	}
	config := goodConfig()
	config.Claims = &ClaimsConfig{StateDir: "/state", CDIDir: "/cdi", Base: cdi.Simulated{}, OnViolation: OnViolationTaint}
	if err := config.Validate(); !errors.Is(err, errNoHealth) {
		t.Errorf("got error %v", err)
	}
}

// TestViolationTaintsEnd: a taint of an earlier configuration stays only where
// somebody looks whether it still holds.
func TestViolationTaintsEnd(t *testing.T) {
	t.Parallel()
	for _, step := range []struct {
		claims *ClaimsConfig
		want   int
	}{
		{nil, 0},
		{&ClaimsConfig{OnViolation: OnViolationTell, Processes: noUsage{}}, 0},
		{&ClaimsConfig{OnViolation: OnViolationEvict, Processes: noUsage{}}, 0},
		{&ClaimsConfig{OnViolation: OnViolationTaint}, 0},
		{&ClaimsConfig{OnViolation: OnViolationTaint, Processes: noUsage{}}, 1},
	} {
		config := goodConfig()
		config.Client, config.Claims = fake.NewClientset(), step.claims
		config.Health = &HealthConfig{StateDir: t.TempDir()}
		before := health.NewLedger(health.Policy{}, health.NewDocument("node-a", ""), health.NewStore(config.Health.StateDir, "node-a"), nil)
		(&violationActions{policy: OnViolationTaint, ledger: before}).Looked(t.Context(), []string{"GPU-1"},
			[]watch.Violation{{UUID: "GPU-1", UsedMiB: 11, LimitMiB: 10, Owner: &owners.Owner{Namespace: "default", Pod: "train", Container: "main"}}}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		events := record.NewFakeRecorder(10)
		h, err := startHealth(ctx, &config, &eventSink{recorder: events, node: &corev1.ObjectReference{}}, &podLog{})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		h.wait()
		if got := len(h.monitor.Ledger().Taints("GPU-1", "")); got != step.want || len(events.Events) != 1-step.want {
			t.Errorf("%+v: %d taints, want %d; %d events", step.claims, got, step.want, len(events.Events))
		}
	}
}

// noUsage is a source that is never asked.
type noUsage struct{}

// Sample implements watch.Source.
func (noUsage) Sample(context.Context) (*watch.Sample, error) { return nil, errors.New("nobody asks") }

// TestOtherAllocators: only what a node really offers counts, by name or beginning of
// a name.
func TestOtherAllocators(t *testing.T) {
	t.Parallel()
	list := corev1.ResourceList{}
	for name, count := range map[corev1.ResourceName]string{"cpu": "8", "nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpumem": "1000", "amd.com/gpu": "8"} {
		list[name] = resource.MustParse(count)
	}
	got := offeredByOthers(list, DefaultOtherAllocators)
	if diff := cmp.Diff(map[string]int64{"nvidia.com/gpu.shared": 4, "nvidia.com/mig-1g.10gb": 7}, got); diff != "" {
		t.Error(diff)
	}
	finding := otherAllocatorFinding(got)
	if finding.Value != "nvidia.com.gpu.shared" || !strings.Contains(finding.Message, `allocatable: 4 of "nvidia.com/gpu.shared", 7 of "nvidia.com/mig-1g.10gb"`) {
		t.Errorf("got %+v", finding)
	}
	if value := taintValue("example.com/" + strings.Repeat("a", 50) + "-b"); value != "example.com."+strings.Repeat("a", 50) {
		t.Errorf("got %q", value)
	}
	for _, bad := range []string{"", "*", "gpu", "gpu*", "a/b*c", "a/*b*"} {
		if checkPatterns([]string{bad}) == nil {
			t.Errorf("%q is no error", bad)
		}
	}
	if err := checkPatterns(DefaultOtherAllocators); err != nil {
		t.Error(err)
	}
}
