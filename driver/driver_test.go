// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/topology"
)

// step is one answer of the source.
type step struct {
	snapshot *device.Snapshot
	err      error
}

// script is a source that answers step by step and then repeats the last.
type script struct {
	steps []step
	calls int
}

// Discover implements device.Source.
func (s *script) Discover(context.Context) (*device.Snapshot, error) {
	at := min(s.calls, len(s.steps)-1)
	s.calls++
	return s.steps[at].snapshot, s.steps[at].err
}

// recorder remembers what was published and which events there were.
type recorder struct {
	published []resourceslice.DriverResources
	events    []string
	err       error
}

// PublishResources implements publisher.
func (r *recorder) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	r.published = append(r.published, resources)
	return r.err
}

// warn implements warner.
func (r *recorder) warn(reason, message string) { r.events = append(r.events, reason+": "+message) }

// snapshotOf returns a node with GPUs that have the given product.
func snapshotOf(product string, warnings ...string) *device.Snapshot {
	return &device.Snapshot{Machine: topology.New("", 1), GPUs: []device.GPU{{UUID: "GPU-a", ProductName: product, Memory: 1 << 30}}, Warnings: warnings}
}

// newScanner returns a scanner over a script.
func newScanner(steps ...step) (*scanner, *recorder) {
	r := &recorder{}
	config := &Config{Source: &script{steps: steps}, Publish: publish.Options{NodeName: "node-a"}, RescanPeriod: 20 * time.Second}
	return &scanner{config: config, publisher: r, events: r, status: &status{}}, r
}

// scanTimes scans n times and returns the delays.
func scanTimes(t *testing.T, s *scanner, n int) []time.Duration {
	t.Helper()
	var out []time.Duration
	for range n {
		delay, err := s.scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, delay)
	}
	return out
}

// TestScanPublishesChangesOnly: the same answer is published once.
func TestScanPublishesChangesOnly(t *testing.T) {
	t.Parallel()
	s, r := newScanner(step{snapshot: snapshotOf("a")}, step{snapshot: snapshotOf("a")}, step{snapshot: snapshotOf("b")}, step{snapshot: snapshotOf("b")}, step{snapshot: snapshotOf("a")})
	delays := scanTimes(t, s, 6)
	var products []string
	for _, resources := range r.published {
		products = append(products, *resources.Pools["node-a"].Slices[0].Devices[0].Attributes["productName"].StringValue)
	}
	if diff := cmp.Diff([]string{"a", "b", "a"}, products); diff != "" {
		t.Error(diff)
	}
	if delays[5] != 20*time.Second || s.status.check() != nil || r.events != nil {
		t.Errorf("delay %s, status %v, events %q", delays[5], s.status.check(), r.events)
	}
}

// TestScanSurvivesFailures: a failure publishes nothing, is told once, and is tried
// again ever more slowly but not more slowly than usual.
func TestScanSurvivesFailures(t *testing.T) {
	t.Parallel()
	broken, other := errors.New("broken"), errors.New("other")
	s, r := newScanner(step{err: broken}, step{err: broken}, step{err: other}, step{snapshot: snapshotOf("a")}, step{err: broken}, step{err: broken},
		step{err: broken}, step{err: broken}, step{err: broken}, step{err: broken}, step{snapshot: snapshotOf("a")})
	if err := s.status.check(); err == nil || !strings.Contains(err.Error(), "first discovery") {
		t.Errorf("before: got %v", err)
	}
	delays := scanTimes(t, s, 3)
	if len(r.published) != 0 || !errors.Is(s.status.check(), other) {
		t.Errorf("published %d times, status %v", len(r.published), s.status.check())
	}
	delays = append(delays, scanTimes(t, s, 8)...)
	var want []time.Duration
	for _, seconds := range []int64{1, 2, 4, 20, 1, 2, 4, 8, 16, 20, 20} {
		want = append(want, time.Duration(seconds)*time.Second)
	}
	if diff := cmp.Diff(want, delays); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"GPUDiscoveryFailed: broken", "GPUDiscoveryFailed: other", "GPUDiscoveryFailed: broken"}, r.events); diff != "" {
		t.Error(diff)
	}
	if len(r.published) != 1 || s.status.check() != nil {
		t.Errorf("published %d times, status %v", len(r.published), s.status.check())
	}
}

// TestScanWithoutPeriod: no period means no scan by itself, but for retries.
func TestScanWithoutPeriod(t *testing.T) {
	t.Parallel()
	s, _ := newScanner(step{err: errors.New("broken")}, step{snapshot: snapshotOf("a")})
	s.config.RescanPeriod = 0
	if diff := cmp.Diff([]time.Duration{time.Second, 0}, scanTimes(t, s, 2)); diff != "" {
		t.Error(diff)
	}
	for range 20 {
		s.failed(t.Context(), errors.New("broken"))
	}
	if got := s.failed(t.Context(), errors.New("broken")); got != time.Minute {
		t.Errorf("longest delay: got %s, want 1m", got)
	}
}

// TestScanWarnings: every warning is told when it is new, of the source as of the
// publisher.
func TestScanWarnings(t *testing.T) {
	t.Parallel()
	unknown := snapshotOf("a", "x", "y")
	unknown.GPUs[0].Memory = 0
	s, r := newScanner(step{snapshot: snapshotOf("a", "x")}, step{snapshot: unknown}, step{snapshot: snapshotOf("a")}, step{snapshot: snapshotOf("a", "x")})
	scanTimes(t, s, 4)
	want := []string{
		"GPUDiscoveryWarning: x", "GPUDiscoveryWarning: y",
		`GPUDiscoveryWarning: device "` + s.last.Pools["node-a"].Slices[0].Devices[0].Name + `": its memory is not known: publishing it without capacities, for one claim at a time`,
		"GPUDiscoveryWarning: x",
	}
	if diff := cmp.Diff(want, r.events); diff != "" {
		t.Error(diff)
	}
}

// TestScanInvalidSnapshot: a source that breaks its contract is a failure like any
// other.
func TestScanInvalidSnapshot(t *testing.T) {
	t.Parallel()
	invalid := snapshotOf("a")
	invalid.Machine = nil
	s, r := newScanner(step{snapshot: invalid})
	scanTimes(t, s, 1)
	if len(r.published) != 0 || s.status.check() == nil {
		t.Errorf("published %d times, status %v", len(r.published), s.status.check())
	}
}

// TestRunRescans: the loop scans at the start, on request and by the clock, and ends
// with its context; what cannot be published ends it with an error.
func TestRunRescans(t *testing.T) {
	t.Parallel()
	s, _ := newScanner(step{snapshot: snapshotOf("a")})
	source := &script{steps: []step{{snapshot: snapshotOf("a")}}}
	rescan := make(chan struct{})
	s.config.Source, s.config.Rescan, s.config.RescanPeriod = source, rescan, 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.run(ctx) }()
	for range 3 {
		rescan <- struct{}{}
	}
	cancel()
	if err := <-done; err != nil || source.calls < 3 || source.calls > 4 {
		t.Errorf("got error %v after %d discoveries", err, source.calls)
	}

	s, _ = newScanner(step{snapshot: snapshotOf("a")}, step{snapshot: snapshotOf("b")})
	s.config.RescanPeriod = time.Millisecond
	failing := &recorder{err: errors.New("no node name")}
	s.publisher = failing
	if err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "publishing ResourceSlices: no node name") {
		t.Errorf("got error %v", err)
	}
}

// TestPluginClaims: claims get a clear answer each, and the calls themselves do not
// fail.
func TestPluginClaims(t *testing.T) {
	t.Parallel()
	p := &plugin{}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "u"}}
	prepared, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if result := prepared["u"]; err != nil || len(prepared) != 1 || !errors.Is(result.Err, ErrNotSupported) || !strings.Contains(result.Err.Error(), `preparing claim "ns/claim": not supported in this version`) {
		t.Errorf("got %v, %v", prepared, err)
	}
	named := kubeletplugin.NamespacedObject{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "claim"}, UID: "u"}
	unprepared, err := p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{named})
	if err != nil || len(unprepared) != 1 || !errors.Is(unprepared["u"], ErrNotSupported) || !strings.Contains(unprepared["u"].Error(), `unpreparing claim "ns/claim": not supported`) {
		t.Errorf("got %v, %v", unprepared, err)
	}
	if err := p.WatchHealthStatus(t.Context(), nil); !errors.Is(err, kubeletplugin.ErrHealthNotSupported) {
		t.Errorf("health: got %v", err)
	}
}

// TestHandleError: dropped fields and rejections become events, what is retried does
// not, and anything else ends the driver.
func TestHandleError(t *testing.T) {
	t.Parallel()
	slice := func(taints ...resourceapi.DeviceTaint) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{Taints: taints}}}}
	}
	dropped := &resourceslice.DroppedFieldsError{PoolName: "node-a", SliceIndex: 1, DesiredSlice: slice(resourceapi.DeviceTaint{Key: "k"}), ActualSlice: slice()}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "slice", nil)
	for name, tc := range map[string]struct {
		err   error
		event string
		fatal bool
	}{
		"dropped": {fmt.Errorf("syncing: %w", errors.Join(dropped, kubeletplugin.ErrRecoverable)), "Warning ResourceSliceFieldsDropped The API server dropped fields of ResourceSlice #1 of pool \"node-a\", so its devices are not offered as they should be. Feature gates to enable: DRADeviceTaints", false},
		"invalid": {errors.Join(invalid, kubeletplugin.ErrRecoverable), "Warning ResourceSlicePublishingFailed The API server rejected a ResourceSlice: ", false},
		"retried": {errors.Join(errors.New("timeout"), kubeletplugin.ErrRecoverable), "", false},
		"the end": {errors.New("socket is gone"), "", true},
	} {
		events := record.NewFakeRecorder(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		p := &plugin{events: &eventSink{recorder: events, node: &corev1.ObjectReference{}}, fatal: cancel}
		p.HandleError(ctx, tc.err, "publishing")
		got := ""
		if len(events.Events) > 0 {
			got = <-events.Events
		}
		if !strings.HasPrefix(got, tc.event) || tc.event == "" && got != "" || len(events.Events) > 0 {
			t.Errorf("%s: got event %q, want %q", name, got, tc.event)
		}
		if cause := context.Cause(ctx); (cause != nil) != tc.fatal || tc.fatal && !errors.Is(cause, tc.err) {
			t.Errorf("%s: the context ended with %v", name, cause)
		}
		cancel(nil)
	}
}

// TestShorten: messages are cut to 1024 bytes, between characters.
func TestShorten(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for message, want := range map[string]string{
		"short": "short", x(1024): x(1024), x(1025): x(1021) + "…", x(1019) + "äöü": x(1019) + "ä…", x(1020) + "äöü": x(1020) + "…",
	} {
		if got := shorten(message); got != want {
			t.Errorf("%d bytes: got %d bytes, want %d", len(message), len(got), len(want))
		}
	}
}

// goodConfig is valid.
func goodConfig() Config {
	return Config{
		Client: fake.NewClientset(), Source: &script{}, Publish: publish.Options{NodeName: "node-a"},
		RegistryDir: "/registry", DataDir: "/data", RescanPeriod: time.Minute,
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	config := goodConfig()
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	longest := "/" + strings.Repeat("r", maxSocketPath-len("//"+registrationSocket))
	for want, change := range map[string]func(*Config){
		"there is no client":                     func(c *Config) { c.Client = nil },
		"there is no source":                     func(c *Config) { c.Source = nil },
		"rescan period 1ms is less than 1s":      func(c *Config) { c.RescanPeriod = time.Millisecond },
		"the node name is missing":               func(c *Config) { c.Publish.NodeName = "" },
		`plugin data directory "data" is not an`: func(c *Config) { c.DataDir = "data" },
		"would have 108 bytes, the limit is 107; choose a directory that is at least 1 bytes shorter": func(c *Config) { c.RegistryDir = longest + "r" },
		`plugin data directory "/`: func(c *Config) { c.DataDir = "/" + strings.Repeat("d", 200) },
	} {
		config := goodConfig()
		change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	config.RegistryDir, config.RescanPeriod = longest, 0
	if err := config.Validate(); err != nil {
		t.Errorf("longest directory, no period: %v", err)
	}
}
