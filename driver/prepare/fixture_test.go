// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/enforce/hamicore"
	"github.com/topodra/topodra/driver/internal/owners"
)

const (
	nodeName = "node-1"
	gib      = int64(1) << 30
)

// TestMain keeps hundreds of injected faults out of the output.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // which discards
	os.Exit(m.Run())
}

// fakeCluster is an API server of two kinds of objects.
type fakeCluster struct {
	mu     sync.Mutex
	claims map[string]*resourceapi.ResourceClaim
	pods   map[string]*corev1.Pod
	err    error
}

func (c *fakeCluster) Claim(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if claim := c.claims[namespace+"/"+name]; claim != nil {
		return claim.DeepCopy(), nil
	}
	return nil, fmt.Errorf("getting claim: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name))
}

func (c *fakeCluster) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if pod := c.pods[namespace+"/"+name]; pod != nil {
		return pod.DeepCopy(), nil
	}
	return nil, fmt.Errorf("getting pod: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name))
}

func (c *fakeCluster) PodsOfNode(_ context.Context, node string) ([]corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	var out []corev1.Pod
	for _, key := range slices.Sorted(maps.Keys(c.pods)) {
		if pod := c.pods[key]; pod.Spec.NodeName == node {
			out = append(out, *pod.DeepCopy())
		}
	}
	return out, nil
}

func (c *fakeCluster) add(objects ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, object := range objects {
		switch object := object.(type) {
		case *resourceapi.ResourceClaim:
			c.claims[object.Namespace+"/"+object.Name] = object
		case *corev1.Pod:
			c.pods[object.Namespace+"/"+object.Name] = object
		default:
			panic(fmt.Sprintf("a %T is not known here", object))
		}
	}
}

func (c *fakeCluster) remove(object metav1.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.claims, object.GetNamespace()+"/"+object.GetName())
	delete(c.pods, object.GetNamespace()+"/"+object.GetName())
}

// fakeInventory has devices that tests take away and exchange.
type fakeInventory struct {
	mu        sync.Mutex
	published map[string]Device
	present   []Device
	err       error
}

func (i *fakeInventory) Published(name string) (Device, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	device, ok := i.published[name]
	return device, ok
}

func (i *fakeInventory) Present(context.Context) ([]Device, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.present), i.err
}

// log is what people were told; both Events and StatusSink.
type log struct {
	mu       sync.Mutex
	events   []string
	statuses map[types.UID]string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, fmt.Sprintf(format, args...))
}

func (l *log) Claim(namespace, name string, _ types.UID, reason, message string) {
	l.add("claim %s/%s %s: %s", namespace, name, reason, message)
}
func (l *log) Node(reason, message string) { l.add("node %s: %s", reason, message) }

func (l *log) status(uid types.UID, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[uid] = text
}
func (l *log) Prepared(uid types.UID, _ *checkpoint.Claim) { l.status(uid, "prepared") }
func (l *log) Failed(uid types.UID, _ *checkpoint.Claim, message string) {
	l.status(uid, "failed: "+message)
}
func (l *log) Unprepared(uid types.UID, _ *checkpoint.Claim) { l.status(uid, "unprepared") }

func (l *log) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.events, func(event string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event, part) })
	})
}

// fixture is a node with four GPUs of 80 GiB.
type fixture struct {
	t         testing.TB
	state     string
	cdiDir    string
	bootID    string
	nri       bool
	owners    *owners.Store
	cluster   *fakeCluster
	inventory *fakeInventory
	log       *log
	enforcer  enforce.Enforcer
	base      cdi.Base
	wrap      func(Host) Host
}

func gpuDevice(i int) Device {
	digits := strings.Repeat(string(rune('a'+i)), 12)
	return Device{Name: "gpu-" + digits, UUID: fmt.Sprintf("GPU-%s-%d", digits, i), Type: api.DeviceTypeGPU,
		PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)), Shareable: true,
		Capacity: map[string]int64{"memory": 80 * gib, "cores": 100}}
}

func migDevice() Device {
	return Device{Name: "mig-0123456789ab", UUID: "MIG-0123456789ab", ParentUUID: "GPU-parent", Type: api.DeviceTypeMIG, PCIAddress: "0000:f0:00.0"}
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureWith(t, newHAMiCore(t))
}

func newFixtureWith(t testing.TB, enforcer enforce.Enforcer) *fixture {
	t.Helper()
	f := &fixture{t: t, state: t.TempDir(), bootID: "boot-1", base: cdi.Simulated{}, enforcer: enforcer,
		cluster:   &fakeCluster{claims: map[string]*resourceapi.ResourceClaim{}, pods: map[string]*corev1.Pod{}},
		inventory: &fakeInventory{published: map[string]Device{}},
		log:       &log{statuses: map[types.UID]string{}},
	}
	f.cdiDir = filepath.Join(f.state, "cdi")
	f.owners = owners.NewStore(filepath.Join(f.state, "containers"))
	for i := range 4 {
		f.inventory.present = append(f.inventory.present, gpuDevice(i))
	}
	f.inventory.present = append(f.inventory.present, migDevice())
	for _, device := range f.inventory.present {
		f.inventory.published[device.Name] = device
	}
	return f
}

// newHAMiCore returns the real enforcer with a library that is only a header.
func newHAMiCore(t testing.TB) *hamicore.Enforcer {
	t.Helper()
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	header := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 64, Shentsize: 64}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	content, err := binary.Append(nil, binary.LittleEndian, header)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "libvgpu.so")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	enforcer, err := hamicore.New(hamicore.Options{Source: source, Root: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return enforcer
}

// manager is a new driver process on the same node.
func (f *fixture) manager() *Manager {
	f.t.Helper()
	bootIDPath := filepath.Join(f.state, "boot_id")
	if err := os.WriteFile(bootIDPath, []byte(f.bootID), 0o600); err != nil {
		f.t.Fatal(err)
	}
	nri := f.nri
	manager, err := NewManager(Options{NodeName: nodeName, StateDir: f.state, CDIDir: f.cdiDir, BootIDPath: bootIDPath, Inventory: f.inventory, Base: f.base,
		Enforcer: f.enforcer, NRIOffered: func() bool { return nri }, Containers: f.owners.List, Cluster: f.cluster, Events: f.log, Status: f.log, wrapHost: f.wrap,
		Now: func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }})
	if err != nil {
		f.t.Fatal(err)
	}
	return manager
}

// result of an allocation; memory 0 takes the device whole by its memory.
type result struct {
	request string
	gpu     int
	memory  int64 // in GiB
	cores   int64
	admin   bool
}

// claim makes an allocated claim that the pods have reserved.
func claim(name string, pods []*corev1.Pod, results ...result) *resourceapi.ResourceClaim {
	out := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	out.Status.Allocation = &resourceapi.AllocationResult{}
	for i, r := range results {
		device := gpuDevice(r.gpu)
		memory := r.memory * gib
		if memory == 0 {
			memory = device.Capacity["memory"]
		}
		entry := resourceapi.DeviceRequestAllocationResult{Request: r.request, Driver: api.DriverName, Pool: nodeName, Device: device.Name,
			ShareID: new(types.UID(fmt.Sprintf("share-%s-%d", name, i))),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": *resource.NewQuantity(memory, resource.BinarySI), "cores": *resource.NewQuantity(r.cores, resource.DecimalSI)}}
		if r.admin {
			entry.AdminAccess, entry.ConsumedCapacity = new(true), nil
		}
		out.Status.Allocation.Devices.Results = append(out.Status.Allocation.Devices.Results, entry)
	}
	for _, p := range pods {
		out.Status.ReservedFor = append(out.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	return out
}

// podWith makes a pod of this node; each container is "kind:name=claim/request"
// with several references separated by commas, and no request for all.
func podWith(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}, Spec: corev1.PodSpec{NodeName: nodeName}}
	seen := map[string]bool{}
	for _, text := range containers {
		kind, rest, _ := strings.Cut(text, ":")
		containerName, references, _ := strings.Cut(rest, "=")
		spec := corev1.Container{Name: containerName}
		for reference := range strings.SplitSeq(references, ",") {
			claimName, request, _ := strings.Cut(reference, "/")
			spec.Resources.Claims = append(spec.Resources.Claims, corev1.ResourceClaim{Name: "in-pod-" + claimName, Request: request})
			if !seen[claimName] {
				seen[claimName] = true
				pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "in-pod-" + claimName, ResourceClaimName: &claimName})
			}
		}
		switch kind {
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, spec)
		case "sidecar":
			spec.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, spec)
		case "app":
			pod.Spec.Containers = append(pod.Spec.Containers, spec)
		default:
			panic("container kind " + kind)
		}
	}
	return pod
}

// ran marks the pod as one whose containers the kubelet has started.
func ran(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "any", ContainerID: "containerd://1"}}
	return pod
}

// world is everything that claims leave on the node: records with their state,
// specs and regions.
func (f *fixture) world() []string {
	f.t.Helper()
	document, err := checkpoint.NewStore(f.state, nodeName).Load()
	if err != nil {
		f.t.Fatal(err)
	}
	out := []string{}
	for _, uid := range document.SortedUIDs() {
		out = append(out, fmt.Sprintf("record %s %s", uid, document.Claims[uid].State))
	}
	dir, err := cdi.NewDir(f.cdiDir)
	if err != nil {
		f.t.Fatal(err)
	}
	listed, err := dir.List()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, uid := range listed {
		out = append(out, "spec "+string(uid))
	}
	err = filepath.WalkDir(filepath.Join(f.state, regionsDir), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && strings.Count(strings.TrimPrefix(path, f.state), "/") == 4 {
			out = append(out, "region "+strings.TrimPrefix(path, filepath.Join(f.state, regionsDir)+"/"))
		}
		_ = entry
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// spec reads the claim's spec; each device's environment by its request.
func (f *fixture) spec(uid types.UID) *specs.Spec {
	f.t.Helper()
	dir, err := cdi.NewDir(f.cdiDir)
	if err != nil {
		f.t.Fatal(err)
	}
	spec, err := dir.Read(uid)
	if err != nil {
		f.t.Fatal(err)
	}
	return spec
}

// document reads the checkpoint.
func (f *fixture) document() *checkpoint.Document {
	f.t.Helper()
	document, err := checkpoint.NewStore(f.state, nodeName).Load()
	if err != nil {
		f.t.Fatal(err)
	}
	return document
}

// prepare prepares and must succeed.
func (f *fixture) prepare(m *Manager, claims ...*resourceapi.ResourceClaim) {
	f.t.Helper()
	got, err := m.PrepareResourceClaims(f.t.Context(), claims)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, claim := range claims {
		if result := got[claim.UID]; result.Err != nil || len(result.Devices) != len(claim.Status.Allocation.Devices.Results) {
			f.t.Fatalf("claim %s: got %+v", claim.Name, result)
		}
	}
}

// env of the i-th device of the spec, by name.
func env(spec *specs.Spec, i int) map[string]string {
	out := map[string]string{}
	for _, variable := range spec.Devices[i].ContainerEdits.Env {
		name, value, _ := strings.Cut(variable, "=")
		out[name] = value
	}
	return out
}

// guarded says whether the i-th device has a guard.
func guarded(spec *specs.Spec, i int) bool {
	return slices.ContainsFunc(spec.Devices[i].ContainerEdits.Mounts, func(mount *specs.Mount) bool {
		_, guard := cdi.IsGuard(mount.ContainerPath)
		return guard
	})
}
