// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/enforce/hamicore"
	"github.com/topodra/topodra/driver/health"
	gpumetrics "github.com/topodra/topodra/driver/metrics"
	"github.com/topodra/topodra/driver/prepare"
)

// answers is a preparer that answers by UID.
type answers struct {
	prepare, unprepare map[types.UID]error
	err                error
	calls              [][]types.UID
}

func (a *answers) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out, uids := map[types.UID]kubeletplugin.PrepareResult{}, []types.UID{}
	for _, claim := range claims {
		out[claim.UID] = kubeletplugin.PrepareResult{Err: a.prepare[claim.UID]}
		uids = append(uids, claim.UID)
	}
	a.calls = append(a.calls, uids)
	return out, a.err
}

func (a *answers) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, claim := range claims {
		out[claim.UID] = a.unprepare[claim.UID]
	}
	return out, a.err
}

// count returns how often a histogram has measured a result.
func count(t *testing.T, result string, prepared bool) uint64 {
	t.Helper()
	histogram := unprepareSeconds
	if prepared {
		histogram = prepareSeconds
	}
	n, err := testutil.GetHistogramMetricCount(histogram.WithLabelValues(result))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTimed: every claim is measured by itself, with its own result, and the
// results stay what they are.
func TestTimed(t *testing.T) {
	registerMetrics()
	broken := errors.New("broken")
	inner := &answers{prepare: map[types.UID]error{"b": broken, "c": &prepare.Refusal{}}, unprepare: map[types.UID]error{"b": broken}}
	before := map[string]uint64{}
	for _, result := range []string{resultOK, resultFailed, resultRefused} {
		before["prepare "+result], before["unprepare "+result] = count(t, result, true), count(t, result, false)
	}
	var claims []*resourceapi.ResourceClaim
	var objects []kubeletplugin.NamespacedObject
	for _, uid := range []types.UID{"a", "b", "c"} {
		claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		objects = append(objects, kubeletplugin.NamespacedObject{UID: uid})
	}
	prepared, err := timed{inner}.PrepareResourceClaims(t.Context(), claims)
	if err != nil || len(prepared) != 3 || prepared["a"].Err != nil || !errors.Is(prepared["b"].Err, broken) || prepared["c"].Err == nil {
		t.Errorf("got %v, %v", prepared, err)
	}
	unprepared, err := timed{inner}.UnprepareResourceClaims(t.Context(), objects)
	if err != nil || len(unprepared) != 3 || unprepared["a"] != nil || !errors.Is(unprepared["b"], broken) {
		t.Errorf("got %v, %v", unprepared, err)
	}
	if diff := cmp.Diff([][]types.UID{{"a"}, {"b"}, {"c"}}, inner.calls); diff != "" {
		t.Error(diff)
	}
	inner.err = broken
	if _, err := (timed{inner}).PrepareResourceClaims(t.Context(), claims); !errors.Is(err, broken) {
		t.Errorf("got error %v", err)
	}
	if _, err := (timed{inner}).UnprepareResourceClaims(t.Context(), objects); !errors.Is(err, broken) {
		t.Errorf("got error %v", err)
	}
	for what, want := range map[string]uint64{"prepare ok": 1, "prepare refused": 1, "prepare failed": 2, "unprepare ok": 2, "unprepare refused": 0, "unprepare failed": 2} {
		kind, result, _ := strings.Cut(what, " ")
		if got := count(t, result, kind == "prepare") - before[what]; got != want {
			t.Errorf("%s: measured %d times, want %d", what, got, want)
		}
	}
}

func TestHealthGauges(t *testing.T) {
	t.Parallel()
	condition := func(target string, kind health.Kind) health.Condition {
		c := health.Condition{Finding: health.Finding{Kind: kind}}
		c.Target = health.AllDevices
		if target != "" {
			c.Target = device.UUID(target)
		}
		return c
	}
	got := healthGauges([]health.DeviceHealth{
		{UUID: "GPU-0", State: health.Healthy}, {UUID: "GPU-1", State: health.Unhealthy}, {UUID: "MIG-a", Parent: "GPU-2", State: health.Unknown},
	}, []health.Condition{condition("GPU-1", health.KindXID), condition("GPU-1", health.KindXID), condition("GPU-2", health.KindECC), condition("MIG-a", health.KindXID), condition("", health.KindNVML)})
	want := []gpumetrics.Health{
		{UUID: "GPU-0", State: gpumetrics.StateHealthy, Conditions: map[string]int{"nvml": 1}},
		{UUID: "GPU-1", State: gpumetrics.StateUnhealthy, Conditions: map[string]int{"nvml": 1, "xid": 2}},
		{UUID: "MIG-a", Conditions: map[string]int{"nvml": 1, "ecc": 1, "xid": 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// runWithMetrics runs a driver until the test ends, and returns what it tells.
func runWithMetrics(t *testing.T, aliases bool) string {
	t.Helper()
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	config.HTTPAddress, config.HAMiMetricAliases = freeAddress(t), aliases
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	eventually(t, "readiness", func() bool { code, _ := get(t, config.HTTPAddress, "/readyz"); return code == http.StatusOK })
	code, body := get(t, config.HTTPAddress, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("got status %d: %s", code, body)
	}
	return body
}

// TestTelemetry: a driver tells about the GPUs that it publishes, by our names and,
// when asked, by HAMi's; two drivers in one process do not disturb each other.
func TestTelemetry(t *testing.T) {
	for _, aliases := range []bool{false, true} {
		body := runWithMetrics(t, aliases)
		for _, want := range []string{
			`topodra_gpu_info{device="gpu-`, `topodra_gpu_memory_total_bytes{device_uuid="GPU-a"} 1.073741824e+09`, `topodra_gpu_shares{device_uuid="GPU-a"} 0`, "topodra_driver_prepared_claims 0",
		} {
			if !strings.Contains(body, "\n"+want) {
				t.Errorf("%s is not in %s", want, body)
			}
		}
		if got := strings.Contains(body, "\nhami_gpu_memory_limit_bytes{"); got != aliases {
			t.Errorf("aliases %v: got %v", aliases, got)
		}
	}
}

// TestPromisesAtOnce: what a claim promises is told as soon as the kubelet has its
// answer, by name of the container, and not any more after it is taken back. What a
// container puts in the place of its region is skipped.
func TestPromisesAtOnce(t *testing.T) {
	pod, claim := claimObjects(t)
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	config.Client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "uid"}}, pod, claim)
	config.HTTPAddress = freeAddress(t)
	state := t.TempDir()
	config.Claims = &ClaimsConfig{
		StateDir: filepath.Join(state, "state"), CDIDir: filepath.Join(state, "cdi"), Base: cdi.Simulated{}, Enforcer: &fakeEnforcer{}, NRISocket: filepath.Join(state, "no-nri.sock"),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "readiness", func() bool { code, _ := get(t, config.HTTPAddress, "/readyz"); return code == http.StatusOK })
	const labels = `{claim="claim",container="main",device_uuid="GPU-a",namespace="default",pod="pod"}`
	promised := []string{
		"topodra_container_gpu_memory_limit_bytes" + labels + " 5.36870912e+08", "topodra_container_gpu_compute_limit_ratio" + labels + " 0.5",
		`topodra_gpu_memory_allocated_bytes{device_uuid="GPU-a"} 5.36870912e+08`, "topodra_driver_prepared_claims 1",
	}
	check := func(when string, want bool) {
		t.Helper()
		_, body := get(t, config.HTTPAddress, "/metrics")
		for _, line := range promised {
			if strings.Contains(body, "\n"+line+"\n") != want {
				t.Errorf("%s: %s: want %v in %s", when, line, want, body)
			}
		}
	}
	driver := kubelet(t, filepath.Join(config.DataDir, pluginSocket))
	asked := []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
	check("before", false)
	answer, err := driver.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: asked})
	if err != nil || answer.GetClaims()["claim-uid"].GetError() != "" {
		t.Fatalf("got %v, %v", answer, err)
	}
	check("prepared", true)
	place := filepath.Join(config.Claims.StateDir, "regions", "claims", "claim-uid", "pod-uid_main")
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(place, hamicore.RegionFile), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipe to be skipped", func() bool {
		_, body := get(t, config.HTTPAddress, "/metrics")
		return strings.Contains(body, "\ntopodra_driver_regions_skipped_total{reason=\"kind\"} 1\n")
	})
	gone, err := driver.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: asked})
	if err != nil || gone.GetClaims()["claim-uid"].GetError() != "" {
		t.Fatalf("got %v, %v", gone, err)
	}
	check("unprepared", false)
}
