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

// TestMIGBesideWhole: a GPU and a MIG device of it are not for two claims, whichever
// is prepared first, and the refusal names both claims and devices. Once the claim in
// the way is gone, there is room.
func TestMIGBesideWhole(t *testing.T) {
	t.Parallel()
	part := migDevice()
	part.ParentUUID, part.PCIAddress = gpuDevice(0).UUID, gpuDevice(0).PCIAddress
	inMode := []Device{gpuDevice(1), part}
	for name, test := range map[string]struct {
		partFirst bool
		want      string
	}{
		"whole first": {false, `device mig-0123456789ab (MIG-0123456789ab at 0000:10:00.0) is allocated to claim "default/c" (request "r"), ` +
			`which is a part of GPU gpu-aaaaaaaaaaaa (GPU-aaaaaaaaaaaa-0 at 0000:10:00.0), and that is allocated to claim "default/w" (request "whole")`},
		"part first": {true, `device gpu-aaaaaaaaaaaa (GPU-aaaaaaaaaaaa-0 at 0000:10:00.0) is allocated to claim "default/w" (request "whole"), ` +
			`which has MIG devices that are allocated to claim "default/c" (request "r")`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.inventory.published[part.Name] = part
			one, two := podWith("one", "app:main=w"), podWith("two", "app:main=c")
			first, second := claim("w", []*corev1.Pod{one}, result{request: "whole", gpu: 0}), migClaim(two)
			before, after := f.inventory.present[:4:4], inMode
			if test.partFirst {
				first, second, before, after = second, first, after, before
			}
			f.cluster.add(one, two, first, second)
			manager := f.manager()
			f.inventory.present = before
			f.prepare(manager, first)
			f.inventory.present = after
			requireRefusal(t, manager, second, ReasonOverlap, test.want)
			if f.document().Claims[second.UID] != nil {
				t.Errorf("left over: %v", f.world())
			}
			f.cluster.remove(first)
			f.cluster.remove(map[bool]*corev1.Pod{false: one, true: two}[test.partFirst])
			f.prepare(manager, second)
		})
	}
}
