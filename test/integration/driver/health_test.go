// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/recorded"
	"github.com/topodra/topodra/test/cluster"
)

// TestHealth runs everything about taints on one control plane.
func TestHealth(t *testing.T) {
	b := start(t, cluster.Options{})
	t.Run("faults", b.faults)
	t.Run("lost GPU", b.lostGPU)
	t.Run("mig", b.migTaints)
	t.Run("other allocator first", func(t *testing.T) { b.otherAllocator(t, "other-first", true) })
	t.Run("other allocator second", func(t *testing.T) { b.otherAllocator(t, "other-second", false) })
}

// simulate replaces the faults of a machine; "" removes them.
func simulate(t *testing.T, machine, faults string) {
	t.Helper()
	path := machine + recorded.SimulationSuffix
	if faults == "" {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path+".new", []byte(`{"apiVersion":"`+recorded.SimulationVersion+`",`+faults+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// quick makes a driver look every second.
var quick = []string{"--health-period=1s", "--http-address=", "--taint-effects=lost=NoExecute"}

// startQuick starts a driver that looks every second.
func (b *bed) startQuick(t *testing.T, node, machine string) *cluster.Process {
	t.Helper()
	driver, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{Node: node, MachineFile: machine, ExtraArgs: quick})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

// requireTaints waits until exactly these devices, by index, have taints, each a line
// of "index key=value:effect"; several of one index are joined.
func (b *bed) requireTaints(t *testing.T, node string, want ...string) []resourceapi.Device {
	t.Helper()
	var devices []resourceapi.Device
	waitFor(t, fmt.Sprintf("taints %q", want), func() (bool, string) {
		devices = nil
		var got []string
		for _, slice := range b.slicesOf(t, node) {
			devices = append(devices, slice.Spec.Devices...)
		}
		for i := range devices {
			for _, taint := range devices[i].Taints {
				if taint.TimeAdded == nil || taint.TimeAdded.IsZero() {
					t.Errorf("taint %+v has no time", taint)
				}
				got = append(got, fmt.Sprintf("%d %s=%s:%s", i, taint.Key, taint.Value, taint.Effect))
			}
		}
		return slices.Equal(got, want), fmt.Sprintf("%q", got)
	})
	return devices
}

// requireSame checks that nothing but taints has changed.
func requireSame(t *testing.T, before, after []resourceapi.Device) {
	t.Helper()
	for i := range after {
		a, b := before[i].DeepCopy(), after[i].DeepCopy()
		a.Taints, b.Taints = nil, nil
		if !equal(a, b) {
			t.Errorf("device %q has changed", b.Name)
		}
	}
}

// equal compares as JSON, which is what is stored.
func equal(a, b *resourceapi.Device) bool {
	first, errA := json.Marshal(a)
	second, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(first) == string(second)
}

// faults: each is a taint of its GPU alone; taints outlast a restart; a link that is
// down changes the links of its two GPUs and nothing else; and all goes when all is
// well.
func (b *bed) faults(t *testing.T) {
	const node = "faults"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "dgx1v_8xv100", nil)
	driver := b.startQuick(t, node, path)
	before := b.requireTaints(t, node)

	simulate(t, path, `"gpus":[{"index":1,"xids":[13,79]},{"index":2,"uncorrectedErrors":1},{"index":6,"remap":"failed"}]`)
	const xid, remap = "1 gpu.topodra.dev/xid=79:NoSchedule", "6 gpu.topodra.dev/row-remap=failed:NoSchedule"
	// The memory error was one: three clean looks later its taint is gone.
	requireSame(t, before, b.requireTaints(t, node, xid, remap))
	event := b.eventOf(t, node, "GPUUnhealthy")
	if event.Type != corev1.EventTypeWarning || !strings.Contains(event.Message, "What to do: ") {
		t.Errorf("event: got %s %q", event.Type, event.Message)
	}
	b.eventOf(t, node, "GPURecovered")

	// Nothing is looked at before the slices are written anew, and still they have taints.
	if err := driver.Stop(); err != nil {
		t.Fatal(err)
	}
	simulate(t, path, `"gpus":[{"index":1,"xids":[79]},{"index":6,"remap":"failed"}]`)
	err := b.Client().ResourceV1().ResourceSlices().DeleteCollection(withTimeout(t), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	b.startQuick(t, node, path)
	first := b.slicesOf(t, node)
	if taints := first[0].Spec.Devices[1].Taints; len(taints) != 1 || taints[0].Key != "gpu.topodra.dev/xid" {
		t.Errorf("in the first slice after a restart: got taints %+v", taints)
	}
	requireSame(t, before, b.requireTaints(t, node, xid, remap))

	simulate(t, path, `"links":[{"gpus":[0,3],"down":1}]`)
	const down = "gpu.topodra.dev/nvlink=links-down:None"
	after := b.requireTaints(t, node, "0 "+down, "3 "+down)
	for i := range after {
		was, is := before[i].DeepCopy(), after[i].DeepCopy()
		was.Taints, is.Taints = nil, nil
		if i == 0 || i == 3 {
			if *was.Attributes[api.AttrNVLinks].StringValue == *is.Attributes[api.AttrNVLinks].StringValue {
				t.Errorf("device %d still publishes the link", i)
			}
			delete(was.Attributes, api.AttrNVLinks)
			delete(is.Attributes, api.AttrNVLinks)
		}
		if !equal(was, is) {
			t.Errorf("device %d has changed in more than its links", i)
		}
	}
	simulate(t, path, "")
	requireSame(t, before, b.requireTaints(t, node))
}

// lostGPU: it stays published at its position; NVML that is away as a whole taints
// all, and both are over when they are back.
func (b *bed) lostGPU(t *testing.T) {
	const node = "lost"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "rtx4090_8x_all_sys", nil)
	driver := b.startQuick(t, node, path)
	before := b.requireTaints(t, node)
	simulate(t, path, `"gpus":[{"index":2,"lost":true}]`)
	const lost = "2 gpu.topodra.dev/lost=lost:NoExecute"
	requireSame(t, before, b.requireTaints(t, node, lost))
	if err := driver.Stop(); err != nil {
		t.Fatal(err)
	}
	b.startQuick(t, node, path)
	waitFor(t, "the driver to have looked again", func() (bool, string) {
		state, err := os.ReadFile(filepath.Join(b.Dir(), "k", node, "p", "health.json"))
		return err == nil && strings.Contains(string(state), `"lost"`), string(state)
	})
	requireSame(t, before, b.requireTaints(t, node, lost))
	simulate(t, path, `"nvml":"unavailable"`)
	var all []string
	for i := range 8 {
		if i == 2 {
			all = append(all, lost)
		}
		all = append(all, fmt.Sprintf("%d gpu.topodra.dev/nvml=unavailable:NoSchedule", i))
	}
	requireSame(t, before, b.requireTaints(t, node, all...))
	simulate(t, path, "")
	requireSame(t, before, b.requireTaints(t, node))
}

// migTaints: a GPU in MIG mode is published as its MIG devices, which have its taints.
func (b *bed) migTaints(t *testing.T) {
	const node = "mig-health"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "a30_4x_pairs", nil)
	const partition = `"mig":[{"profile":"1g.6gb","gpuInstance":3},{"profile":"2g.12gb","gpuInstance":1}]`
	simulate(t, path, `"gpus":[{"index":1,`+partition+`}]`)
	b.startQuick(t, node, path)
	devices := b.requireTaints(t, node)
	var got []string
	for i := range devices {
		profile := ""
		if value := devices[i].Attributes[api.AttrProfile].StringValue; value != nil {
			profile = *value
		}
		got = append(got, fmt.Sprintf("%s %s index %d", *devices[i].Attributes[api.AttrType].StringValue, profile, *devices[i].Attributes[api.AttrIndex].IntValue))
	}
	if want := []string{"gpu  index 0", "mig 2g.12gb index 1", "mig 1g.6gb index 1", "gpu  index 2", "gpu  index 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	simulate(t, path, `"gpus":[{"index":1,"recovery":"drain-and-reset",`+partition+`}]`)
	const taint = "gpu.topodra.dev/recovery-action=drain-and-reset:NoSchedule"
	requireSame(t, devices, b.requireTaints(t, node, "1 "+taint, "2 "+taint))
}

// otherAllocator: while the node offers GPUs by a device plugin, none of ours is for
// new work, whoever came first; a DeviceClass that serves the same resource is no
// device plugin.
func (b *bed) otherAllocator(t *testing.T, node string, first bool) {
	b.addNode(t, node)
	class, err := b.Client().ResourceV1().DeviceClasses().Create(withTimeout(t), &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       resourceapi.DeviceClassSpec{ExtendedResourceName: new("nvidia.com/gpu")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Client().ResourceV1().DeviceClasses().Delete(context.WithoutCancel(t.Context()), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "a100_4x_one_pair", nil)
	var all []string
	for i := range 4 {
		all = append(all, fmt.Sprintf("%d gpu.topodra.dev/other-allocator=nvidia.com.gpu:NoSchedule", i))
	}
	offer := func(count string) {
		t.Helper()
		patch := fmt.Sprintf(`{"status":{"capacity":{"nvidia.com/gpu":"4"},"allocatable":{"nvidia.com/gpu":%q}}}`, count)
		if _, err := b.Client().CoreV1().Nodes().Patch(withTimeout(t), node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		stored, err := b.Client().CoreV1().Nodes().Get(withTimeout(t), node, metav1.GetOptions{})
		if quantity := stored.Status.Allocatable["nvidia.com/gpu"]; err != nil || quantity.Cmp(resource.MustParse(count)) != 0 {
			t.Fatalf("the node offers %s, %v", quantity.String(), err)
		}
	}
	if first {
		offer("4")
	}
	b.startQuick(t, node, path)
	if first {
		if taints := b.slicesOf(t, node)[0].Spec.Devices[0].Taints; len(taints) != 1 {
			t.Errorf("in the first slice: got taints %+v", taints)
		}
	} else {
		b.requireTaints(t, node)
		offer("4")
	}
	b.requireTaints(t, node, all...)
	event := b.eventOf(t, node, "GPUUnhealthy")
	if want := `All GPUs of this node: somebody else offers GPUs of this node as well (allocatable: 4 of "nvidia.com/gpu")`; !strings.HasPrefix(event.Message, want) {
		t.Errorf("event: got %q", event.Message)
	}
	offer("0") // As the kubelet does when the device plugin is gone.
	b.requireTaints(t, node)
}
