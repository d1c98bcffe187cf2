// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/driver/recorded"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/topotest"
)

// testTimeout bounds the wait for anything.
const testTimeout = 4 * time.Minute

// bed is a control plane for one test.
type bed struct {
	*cluster.Cluster
}

// start starts a control plane that is stopped at the end of the test.
func start(t *testing.T, options cluster.Options) *bed {
	t.Helper()
	c, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &bed{c}
}

// withTimeout bounds a context.
func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// addNode creates a node.
func (b *bed) addNode(t *testing.T, name string) {
	t.Helper()
	if _, err := b.AddNode(withTimeout(t), cluster.NodeOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// client returns a client with the rights of the driver.
func (b *bed) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := b.ConfigFor(withTimeout(t), cluster.UserTopoDRADriver)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// slicesOf waits for the complete pool of a node.
func (b *bed) slicesOf(t *testing.T, node string) []resourceapi.ResourceSlice {
	t.Helper()
	slices, err := b.WaitForResourceSlices(withTimeout(t), node, api.DriverName)
	if err != nil {
		t.Fatal(err)
	}
	return slices
}

// requireStored waits until the pool of a node holds exactly what was published, in
// the same order. It returns the slices.
func (b *bed) requireStored(t *testing.T, node string, want *publish.Published) []resourceapi.ResourceSlice {
	t.Helper()
	pool := want.Resources.Pools[node]
	var slices []resourceapi.ResourceSlice
	diff := "nothing was compared"
	waitFor(t, "the published slices", func() (bool, string) {
		slices = b.slicesOf(t, node)
		if len(slices) != len(pool.Slices) {
			return false, fmt.Sprintf("%d slices, want %d", len(slices), len(pool.Slices))
		}
		diff = ""
		for i := range slices {
			diff += cmp.Diff(pool.Slices[i].Devices, slices[i].Spec.Devices, equateEmpty)
			if spec := &slices[i].Spec; spec.Pool.Name != node || spec.Driver != api.DriverName || spec.NodeName == nil || *spec.NodeName != node {
				diff += fmt.Sprintf("slice %q is of driver %q, pool %q, node %v", slices[i].Name, spec.Driver, spec.Pool.Name, spec.NodeName)
			}
		}
		return diff == "", diff
	})
	return slices
}

// equateEmpty compares quantities by value, and takes nil and empty lists of devices
// for the same.
var equateEmpty = cmp.Comparer(func(a, b []resourceapi.Device) bool {
	return (len(a) == 0 && len(b) == 0) || cmp.Equal(append([]resourceapi.Device{}, a...), append([]resourceapi.Device{}, b...), quantities)
})

// waitFor polls until f is true.
func waitFor(t *testing.T, what string, f func() (bool, string)) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
		done, state := f()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s took longer than %s: %s", what, testTimeout, state)
		}
	}
}

// versions returns names and resource versions.
func versions(slices []resourceapi.ResourceSlice) []string {
	var out []string
	for i := range slices {
		out = append(out, slices[i].Name+" "+slices[i].ResourceVersion)
	}
	return out
}

// eventOf waits for an event of a node.
func (b *bed) eventOf(t *testing.T, node, reason string) corev1.Event {
	t.Helper()
	var found corev1.Event
	waitFor(t, "event "+reason, func() (bool, string) {
		list, err := b.Client().CoreV1().Events(metav1.NamespaceAll).List(withTimeout(t), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 {
			found = list.Items[0]
		}
		return len(list.Items) > 0, "there is none"
	})
	return found
}

// machineFile writes a recorded machine into a file.
func machineFile(t *testing.T, path, name string, change func(string) string) {
	t.Helper()
	data, err := topotest.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if change != nil {
		if text = change(text); text == string(data) {
			t.Fatalf("machine %q was not changed", name)
		}
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// expected returns what a driver must publish for a machine file.
func expected(t *testing.T, path, node string) *publish.Published {
	t.Helper()
	recording, err := capture.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := recorded.Snapshot(recording, node)
	if err != nil {
		t.Fatal(err)
	}
	published, err := publish.Build(snapshot, publish.Options{NodeName: node})
	if err != nil {
		t.Fatal(err)
	}
	return published
}

// freeAddress returns an address on loopback that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestDriver runs everything that needs no special control plane on one.
func TestDriver(t *testing.T) {
	b := start(t, cluster.Options{})
	t.Run("recorded machines", b.recordedMachines)
	t.Run("hang-up", b.hangup)
	t.Run("period", b.period)
	t.Run("deleted slice", b.deletedSlice)
	t.Run("hardware", b.hardware)
	t.Run("claims", b.claims)
}

// recordedMachines: what the binary publishes is stored field by field, up to 16
// GPUs.
func (b *bed) recordedMachines(t *testing.T) {
	for _, machine := range []string{"derived_dgx2_16xv100", "dgx1v_8xv100", "b200_8x_degraded_gpu2", "rtx4090_8x_all_sys"} {
		node := "recorded-" + machine[:4]
		b.addNode(t, node)
		path := filepath.Join(t.TempDir(), machine+".json")
		machineFile(t, path, machine, nil)
		driver, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{Node: node, MachineFile: path})
		if err != nil {
			t.Fatal(err)
		}
		b.requireStored(t, node, expected(t, path, node))
		if err := driver.Stop(); err != nil {
			t.Error(err)
		}
		// A driver that ends leaves its slices, so that an update disturbs nobody.
		b.requireStored(t, node, expected(t, path, node))
	}
}

// hangup: SIGHUP makes the driver look again, and only a change is written.
func (b *bed) hangup(t *testing.T) {
	const node = "hangup"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "dgx1v_8xv100", nil)
	address := freeAddress(t)
	driver, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{
		Node: node, MachineFile: path, ExtraArgs: []string{"--rescan-period=0", "--http-address=" + address}})
	if err != nil {
		t.Fatal(err)
	}
	rescan := func() {
		t.Helper()
		before := scans(t, address)
		if err := driver.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "a discovery", func() (bool, string) { return scans(t, address) > before, driver.LogTail() })
	}
	first := versions(b.requireStored(t, node, expected(t, path, node)))
	for range 3 {
		rescan()
	}
	time.Sleep(time.Second) // A write would have happened by now.
	if diff := cmp.Diff(first, versions(b.slicesOf(t, node))); diff != "" {
		t.Errorf("slices were written without a change: %s", diff)
	}

	// A link between GPUs 0 and 3 goes down, and a file in disorder changes nothing.
	machineFile(t, path, "dgx1v_8xv100", func(text string) string {
		text = strings.Replace(text, `["X", "NV1", "NV1", "NV2",`, `["X", "NV1", "NV1", "NV1",`, 1)
		return strings.Replace(text, `["NV2", "NV1", "NV2", "X",`, `["NV1", "NV1", "NV2", "X",`, 1)
	})
	degraded := expected(t, path, node)
	rescan()
	b.requireStored(t, node, degraded)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := driver.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	event := b.eventOf(t, node, "GPUDiscoveryFailed")
	if !strings.Contains(event.Message, "decoding JSON") || event.Type != corev1.EventTypeWarning {
		t.Errorf("event: got %s %q", event.Type, event.Message)
	}
	b.requireStored(t, node, degraded)
}

// period: the driver looks again by itself.
func (b *bed) period(t *testing.T) {
	const node = "period"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "a30_4x_pairs", nil)
	if _, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{Node: node, MachineFile: path, RescanPeriod: time.Second}); err != nil {
		t.Fatal(err)
	}
	b.requireStored(t, node, expected(t, path, node))
	machineFile(t, path, "a100_4x_one_pair", nil)
	after := b.requireStored(t, node, expected(t, path, node))
	time.Sleep(3 * time.Second) // Two more discoveries at least.
	if diff := cmp.Diff(versions(after), versions(b.slicesOf(t, node))); diff != "" {
		t.Errorf("slices were written without a change: %s", diff)
	}
}

// deletedSlice: a slice that somebody deletes comes back.
func (b *bed) deletedSlice(t *testing.T) {
	const node = "deleted"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "a30_4x_pairs", nil)
	if _, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{Node: node, MachineFile: path}); err != nil {
		t.Fatal(err)
	}
	slices := b.requireStored(t, node, expected(t, path, node))
	if err := b.Client().ResourceV1().ResourceSlices().Delete(withTimeout(t), slices[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if again := b.requireStored(t, node, expected(t, path, node)); again[0].UID == slices[0].UID {
		t.Error("the slice was not deleted")
	}
}

// TestDroppedFields: an API server that does not share devices takes less than was
// published, which is an event and a line in the log.
func TestDroppedFields(t *testing.T) {
	b := start(t, cluster.Options{FeatureGates: "DRAConsumableCapacity=false,DRAFractionalCapacityRange=false"})
	const node = "dropped"
	b.addNode(t, node)
	path := filepath.Join(t.TempDir(), "machine.json")
	machineFile(t, path, "a30_4x_pairs", nil)
	driver, err := b.StartDriver(withTimeout(t), cluster.DriverOptions{Node: node, MachineFile: path})
	if err != nil {
		t.Fatal(err)
	}
	event := b.eventOf(t, node, "ResourceSliceFieldsDropped")
	want := `The API server dropped fields of ResourceSlice #0 of pool "dropped", so its devices are not offered as they should be. Feature gates to enable: DRAConsumableCapacity`
	if event.Message != want || event.Type != corev1.EventTypeWarning {
		t.Errorf("event: got %s %q, want %q", event.Type, event.Message, want)
	}
	waitFor(t, "the log line", func() (bool, string) {
		tail := driver.LogTail()
		return strings.Contains(tail, "The API server dropped fields of a ResourceSlice") && strings.Contains(tail, `disabledFeatures="DRAConsumableCapacity"`), tail
	})
	if device := b.slicesOf(t, node)[0].Spec.Devices[0]; device.AllowMultipleAllocations != nil {
		t.Error("the API server kept the field, so the test tests nothing")
	}
}
