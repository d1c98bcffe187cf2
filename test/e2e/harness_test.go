// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// probeName is the driver of TestHarness.
const probeName = "probe.topodra.dev"

// probe is the smallest driver: one device, one CDI spec per claim, which preloads the double with one limit.
type probe struct {
	cdiDir, library, regions string

	mu       sync.Mutex
	prepared map[types.UID]int // how often
	errs     []error
}

var _ kubeletplugin.DRAPlugin = &probe{}

func (p *probe) specFile(uid types.UID) string {
	return filepath.Join(p.cdiDir, "probe-"+string(uid)+".json")
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *probe) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = p.prepare(claim)
	}
	return results, nil
}

func (p *probe) prepare(claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepared[claim.UID]++
	mount := func(host, target, access string) map[string]any {
		return map[string]any{"hostPath": host, "containerPath": target, "options": []string{access, "bind"}}
	}
	spec := map[string]any{
		"cdiVersion": "0.6.0", "kind": probeName + "/claim",
		"devices": []map[string]any{{"name": string(claim.UID), "containerEdits": map[string]any{
			"env": []string{
				"LD_PRELOAD=" + libraryFile, "CUDA_DEVICE_MEMORY_LIMIT_0=1024m", "CUDA_DEVICE_SM_LIMIT_0=10",
				"CUDA_DEVICE_MEMORY_SHARED_CACHE=" + regionDir + "/r", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0",
			},
			"mounts": []map[string]any{mount(p.library, libraryFile, "ro"), mount(p.regions, regionDir, "rw")},
		}}},
	}
	data, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(p.specFile(claim.UID), data, 0o600)
	}
	return kubeletplugin.PrepareResult{Err: err, Devices: []kubeletplugin.Device{{
		PoolName: nodeName, DeviceName: "probe", CDIDeviceIDs: []string{probeName + "/claim=" + string(claim.UID)},
	}}}
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *probe) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
		if err := os.Remove(p.specFile(claim.UID)); err != nil && !os.IsNotExist(err) {
			results[claim.UID] = err
		}
	}
	return results, nil
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (p *probe) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError implements kubeletplugin.DRAPlugin.
func (p *probe) HandleError(_ context.Context, err error, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.errs = append(p.errs, fmt.Errorf("%s: %w", message, err))
	}
}

// TestHarness takes a claim the whole way with the smallest possible driver: what fails here is not our driver's fault.
func TestHarness(t *testing.T) {
	f := newFixture(t)
	p := &probe{cdiDir: f.node.CDIDir(), library: f.library, regions: filepath.Join(f.node.Dir(), "probe"), prepared: map[types.UID]int{}}
	data := filepath.Join(f.node.PluginsDir(), probeName)
	for _, dir := range []string{p.regions, data} {
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // seen from containers
			t.Fatal(err)
		}
	}
	helper, err := kubeletplugin.Start(f.ctx, p, kubeletplugin.DriverName(probeName), kubeletplugin.KubeClient(f.client),
		kubeletplugin.NodeName(nodeName), kubeletplugin.RegistrarDirectoryPath(f.node.PluginRegistryDir()), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop) // before the fixture's clean-up, which needs no probe any more
	err = helper.PublishResources(f.ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		nodeName: {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "probe"}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: probeName}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + probeName + `"`}}}
	if _, err := f.client.ResourceV1().DeviceClasses().Create(f.ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.client.ResourceV1().DeviceClasses().Delete(context.WithoutCancel(t.Context()), probeName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: f.ns}}
	claim.Spec.Devices = deviceClaim([]request{{}})
	claim.Spec.Devices.Requests[0].Exactly.DeviceClassName = probeName
	if _, err := f.client.ResourceV1().ResourceClaims(f.ns).Create(f.ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := f.run(f.simplePod("pod", "claim"))
	got := f.look(pod, "main")
	f.checkLimits("the container", view{report: got.report, mounts: append(got.mounts, preloadFile)}, []share{{MemoryMiB: 1024, Cores: 10, Limited: true}})
	f.remove("pod") // while its driver is there
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.prepared) != 1 || len(p.errs) != 0 {
		t.Errorf("probe: prepared %v, errors %v, want one claim and no error", p.prepared, p.errs)
	}
}
