// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/api"
	topodradriver "github.com/topodra/topodra/driver"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/publish"
	"github.com/topodra/topodra/topology"
)

// quantities compares by value, whatever the format.
var quantities = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })

var okScans = regexp.MustCompile(`(?m)^topodra_driver_scans_total\{result="ok"\} (\d+)$`)

// scans reads how often a driver has looked.
func scans(t *testing.T, address string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(withTimeout(t), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	match := okScans.FindSubmatch(body)
	if match == nil {
		return 0
	}
	n, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fixed is a source that always finds the same.
type fixed struct{ snapshot *device.Snapshot }

// Discover implements device.Source.
func (f fixed) Discover(context.Context) (*device.Snapshot, error) { return f.snapshot, nil }

// run runs a driver in this process until the end of the test and returns the
// directory with its socket.
func (b *bed) run(t *testing.T, snapshot *device.Snapshot, options publish.Options) string {
	t.Helper()
	b.addNode(t, options.NodeName)
	dir, err := os.MkdirTemp("", "drv") //nolint:usetesting // The path of t.TempDir is too long for sockets.
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- topodradriver.Run(ctx, topodradriver.Config{
			Client: b.client(t), Source: fixed{snapshot}, Publish: options, RegistryDir: dir, DataDir: filepath.Join(dir, "p"),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "p")
}

// gpu returns a GPU of which everything is known.
func gpu(i int) device.GPU {
	return device.GPU{
		UUID:       device.UUID(fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", i)),
		PCIAddress: device.PCIAddress(fmt.Sprintf("0000:%02x:00.0", i+1)), PCIeRoot: "pci0000:00",
		Minor: new(device.Minor(i)), ModuleID: new(device.ModuleID(i + 1)), ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Unknown (99)",
		ComputeCapability: &device.Version{Major: 9}, Memory: 81559 * device.MiB, Fabric: &device.Fabric{ClusterUUID: [16]byte{1}, CliqueID: 4294967295},
	}
}

// node joins GPUs by a switch.
func node(gpus ...device.GPU) *device.Snapshot {
	m := topology.New("", len(gpus))
	m.Switched = len(gpus) > 1
	for i := range gpus {
		m.GPUs[i] = topology.GPUInfo{NUMA: i / 4, NVLinkMBps: 26562, PCIeGen: 5, NearestNIC: strings.Repeat("n", 64)}
		for j := range gpus {
			if i != j {
				m.NVLinks[i][j] = 18
			}
		}
	}
	return &device.Snapshot{
		DriverVersion: &device.Version{Major: 550, Minor: 54, Patch: 15}, CUDADriverVersion: &device.Version{Major: 12, Minor: 4}, Machine: m, GPUs: gpus,
	}
}

// hardware: what recordings do not have is accepted field by field as well.
func (b *bed) hardware(t *testing.T) {
	odd, noNUMA, tiny, unknown := gpu(0), gpu(1), gpu(2), gpu(3)
	odd.Memory, odd.MemoryReserved = 81559*device.MiB+123457, 600*device.MiB+1
	noNUMA.PCIeRoot, noNUMA.PCIAddress = "", "0000:02:00.0"
	tiny.Memory = device.MiB + 5
	unknown.Memory, unknown.ComputeCapability, unknown.Minor = 0, nil, nil
	mixed := node(odd, noNUMA, tiny, unknown)
	mixed.Machine.GPUs[1].NUMA = topology.NoNUMA

	partitioned, empty := gpu(1), gpu(2)
	partitioned.MIGEnabled, empty.MIGEnabled = true, true
	for k := range 7 {
		partitioned.MIGDevices = append(partitioned.MIGDevices, device.MIGDevice{
			UUID: device.UUID(fmt.Sprintf("MIG-%08x-1111-2222-3333-444444444444", k)), Profile: "1g.10gb", Memory: 9856 * device.MiB})
	}
	var sixteen, full []device.GPU
	for i := range 16 {
		sixteen = append(sixteen, gpu(i))
		one := gpu(i)
		one.MIGEnabled = true
		for k := range 7 {
			one.MIGDevices = append(one.MIGDevices, device.MIGDevice{UUID: device.UUID(fmt.Sprintf("MIG-%08x-0000-0000-0000-00000000000%d", 16*i+k, k))})
		}
		full = append(full, one)
	}
	widest := node(sixteen...)
	widest.Simulated = true
	for name, tc := range map[string]struct {
		snapshot *device.Snapshot
		options  publish.Options
	}{
		"odd":        {mixed, publish.Options{}},
		"odd-limits": {mixed, publish.Options{MinMemory: 100 << 30, MemoryReserve: 77, RequireCores: true, MaxSharers: 3}},
		"mig":        {node(gpu(0), partitioned, empty, gpu(3)), publish.Options{}},
		"sixteen":    {widest, publish.Options{MinMemory: 1<<30 + 1, MaxSharers: 48, MemoryReserve: 512 << 20}},
		"two-slices": {node(full...), publish.Options{}},
		"empty":      {&device.Snapshot{}, publish.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.options.NodeName = "hardware-" + name
			want, err := publish.Build(tc.snapshot, tc.options)
			if err != nil {
				t.Fatal(err)
			}
			b.run(t, tc.snapshot, tc.options)
			b.requireStored(t, tc.options.NodeName, want)
			if reason := "ResourceSliceFieldsDropped"; b.hasEvent(t, tc.options.NodeName, reason) {
				t.Errorf("there is an event %s", reason)
			}
		})
	}
	t.Run("warnings", func(t *testing.T) {
		if event := b.eventOf(t, "hardware-odd", "GPUDiscoveryWarning"); !strings.Contains(event.Message, `"gpu-000000031111": its memory is not known`) {
			t.Errorf("event: got %q", event.Message)
		}
	})
}

// hasEvent reports whether a node has an event by now.
func (b *bed) hasEvent(t *testing.T, node, reason string) bool {
	t.Helper()
	list, err := b.Client().CoreV1().Events(metav1.NamespaceAll).List(withTimeout(t), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + node + ",reason=" + reason})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items) > 0
}

// claims: through the socket that the kubelet uses, claims get a clear answer.
func (b *bed) claims(t *testing.T) {
	const name = "claims"
	dir := b.run(t, node(gpu(0)), publish.Options{NodeName: name})
	stored := b.slicesOf(t, name)[0]
	client := b.Client().ResourceV1().ResourceClaims("default")
	claim, err := client.Create(withTimeout(t), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: api.DeviceClassGPU},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: api.DriverName, Pool: name, Device: stored.Spec.Devices[0].Name,
	}}}}
	if claim, err = client.UpdateStatus(withTimeout(t), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient("unix://"+filepath.Join(dir, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plugin := drapb.NewDRAPluginClient(connection)
	reference := []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
	prepared, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: reference})
	if err != nil {
		t.Fatal(err)
	}
	if got := prepared.Claims[string(claim.UID)].GetError(); !strings.Contains(got, `preparing claim "default/claim": not supported in this version`) {
		t.Errorf("prepare: got %q", got)
	}
	unprepared, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: reference})
	if err != nil {
		t.Fatal(err)
	}
	if got := unprepared.Claims[string(claim.UID)].GetError(); !strings.Contains(got, `unpreparing claim "default/claim": not supported in this version`) {
		t.Errorf("unprepare: got %q", got)
	}
}
