// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/enforce/hamicore"
)

// TestMain lets this program be started with a library preloaded, as the driver
// starts itself.
func TestMain(m *testing.M) {
	if code, isChild := hamicore.RunProbeChild(os.Stdout); isChild {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// sharedLibrary compiles one that does nothing.
func sharedLibrary(t *testing.T, path string) {
	t.Helper()
	compile := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", path, "-x", "c", "-")
	compile.Stdin = strings.NewReader("int topodra_nothing;\n")
	if said, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compiling a library: %v: %s", err, said)
	}
}

// shareOf makes a pod and its claim with a part of the device.
func shareOf(device string) (*corev1.Pod, *resourceapi.ResourceClaim) {
	name := "claim"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod-uid"}, Spec: corev1.PodSpec{NodeName: "node-a",
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "claim-uid"}, Status: resourceapi.ResourceClaimStatus{
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "r", Driver: api.DriverName, Pool: "node-a", Device: device, ShareID: new(types.UID("share")),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi"), "cores": resource.MustParse("50")},
		}}}}}}
	return pod, claim
}

// prepareShare waits for the driver and prepares a claim as the kubelet does.
func prepareShare(t *testing.T, client kubernetes.Interface, socket string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	device := ""
	for device == "" {
		list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 {
			device = list.Items[0].Spec.Devices[0].Name
		}
		time.Sleep(20 * time.Millisecond)
	}
	pod, claim := shareOf(device)
	if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	answer, err := drapb.NewDRAPluginClient(connection).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
	if err != nil || answer.GetClaims()["claim-uid"].GetError() != "" {
		t.Fatalf("got %v, %v", answer, err)
	}
}

// TestD15_PathsMove runs the driver with every directory elsewhere: all that it
// makes is there, and all that containers get comes from there.
func TestD15_PathsMove(t *testing.T) {
	moved := t.TempDir()
	at := func(name string) string { return filepath.Join(moved, name) }
	if err := os.Mkdir(at("registry"), 0o750); err != nil {
		t.Fatal(err)
	}
	sharedLibrary(t, at("source.so"))
	opts, err := parse(t, nil, "--kubeconfig="+kubeconfig(t), "--node-name=node-a", "--machine=../../topology/topotest/machines/h100nvl_8x_pairs.json", "--http-address=",
		"--plugin-registry-dir="+at("registry"), "--plugin-data-dir="+at("data"), "--state-dir="+at("state"), "--cdi-dir="+at("cdi"),
		"--hami-core-library="+at("source.so"), "--nri-socket="+at("nri.sock"), "--pod-uid=1")
	if err != nil {
		t.Fatal(err)
	}
	config, err := opts.config()
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "uid"}})
	config.Client = client
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- driver.Run(ctx, *config) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	prepareShare(t, client, at("data/dra-1.sock"))

	for _, want := range []string{"registry/gpu.topodra.dev-1-reg.sock", "data/dra-1.sock", "state/checkpoint.json", "state/regions/claims/claim-uid/pod-uid_main/vgpu.cache"} {
		if _, err := os.Stat(at(want)); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	dir, err := cdi.NewDir(at("cdi"))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := dir.Read("claim-uid")
	if err != nil {
		t.Fatal(err)
	}
	paths := cdi.HostPaths(spec)
	if len(paths) != 4 {
		t.Errorf("the container gets %q, want three files and its region", paths)
	}
	for _, path := range paths {
		if !strings.HasPrefix(path, at("state")+"/") {
			t.Errorf("the container gets %q", path)
		}
	}
	// Whatever names a path in what was written names one of these.
	for _, root := range []string{"/var/lib/kubelet", "/var/run/cdi", "/tmp/vgpulock", "/etc/topodra"} {
		err := filepath.WalkDir(moved, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || !strings.HasSuffix(path, ".json") {
				return err
			}
			content, err := os.ReadFile(path)
			if strings.Contains(string(content), root) {
				t.Errorf("%q names %q", path, root)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestD15_DriverRootsMove: the same for what real GPUs need.
func TestD15_DriverRootsMove(t *testing.T) {
	t.Parallel()
	opts, err := parse(t, nil, "--driver-root=/moved/here", "--host-driver-root=/moved/there", "--nvidia-cdi-hook=/moved/hook", "--sysfs-root=/moved/sys", "--cgroup-root=/moved/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	got, err := opts.baseOptions()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/moved/here", "/moved/there", "/moved/hook"}, []string{got.DriverRoot, got.HostDriverRoot, got.HookPath}); diff != "" || got.Library == nil {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/moved/sys", "/moved/cgroup"}, []string{opts.sysfsRoot, opts.cgroupRoot}); diff != "" {
		t.Error(diff)
	}
}
