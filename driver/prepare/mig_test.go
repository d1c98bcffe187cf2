// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
)

// migClaim has the MIG device of the fixture.
func migClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	c := claim("c", []*corev1.Pod{pod})
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "r", Driver: api.DriverName, Pool: nodeName, Device: migDevice().Name},
	}}}
	return c
}

// TestMIGDevice: it is prepared without limits, under its own UUID, as often as asked.
func TestMIGDevice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("train", "app:main=c")
	c := migClaim(pod)
	f.cluster.add(pod, c)
	manager := f.manager()
	for range 2 {
		f.prepare(manager, c)
	}
	dir, err := cdi.NewDir(f.cdiDir)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(dir.Path(c.UID))
	if err != nil || !strings.Contains(string(content), migDevice().UUID) || strings.Contains(string(content), "CUDA_DEVICE_MEMORY_LIMIT") {
		t.Errorf("the spec is %s, %v", content, err)
	}
}

// TestMIGIdentity: an instance that was destroyed, made anew, or is part of another GPU
// now, or whose GPU left MIG mode since publishing, is refused by name, before and after
// a first preparation.
func TestMIGIdentity(t *testing.T) {
	t.Parallel()
	pod := podWith("train", "app:main=c")
	for name, test := range map[string]struct {
		change func(f *fixture)
		reason Reason
		want   string
	}{
		"destroyed": {func(f *fixture) { f.inventory.present = f.inventory.present[:4] }, ReasonDeviceGone, "mig-0123456789ab (MIG-0123456789ab at 0000:f0:00.0) is gone since it was published"},
		"made anew": {func(f *fixture) {
			f.inventory.present[4].Name, f.inventory.present[4].UUID = "mig-ffffffffffff", "MIG-ffffffffffff"
		}, ReasonDeviceGone, "is gone since it was published; present are gpu-aaaaaaaaaaaa, gpu-bbbbbbbbbbbb, gpu-cccccccccccc, gpu-dddddddddddd, mig-ffffffffffff"},
		"other GPU": {func(f *fixture) { f.inventory.present[4].ParentUUID = "GPU-other" }, ReasonDeviceSwapped, `a part of GPU "GPU-parent", but now it is one of GPU "GPU-other"`},
		"no MIG mode": {func(f *fixture) {
			whole := gpuDevice(9)
			whole.UUID, whole.PCIAddress = "GPU-parent", migDevice().PCIAddress
			f.inventory.present[4] = whole
		}, ReasonDeviceGone, "mig-0123456789ab (MIG-0123456789ab at 0000:f0:00.0) is gone since it was published"},
	} {
		for _, preparedBefore := range []bool{false, true} {
			f := newFixture(t)
			c := migClaim(pod)
			f.cluster.add(pod, c)
			manager := f.manager()
			if preparedBefore {
				f.prepare(manager, c)
			}
			test.change(f)
			t.Log(name, preparedBefore)
			requireRefusal(t, manager, c, test.reason, test.want)
		}
	}
}
