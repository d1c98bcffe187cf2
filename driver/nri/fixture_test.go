// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/internal/owners"
	"github.com/topodra/topodra/driver/prepare"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(beaconEnv); dir != "" {
		lightAndWait(dir)
	}
	klog.SetLogger(klog.Logger{}) // which discards
	nrilog.Set(adapter{logger: klog.Background()})
	os.Exit(m.Run())
}

// fakeClaims has one pod that may use everything.
type fakeClaims struct {
	regions string
	devices map[string]checkpoint.Device
}

func (c *fakeClaims) Lookup(_ context.Context, pod prepare.Pod, names []string) ([]prepare.Held, error) {
	if pod.UID != "pod-uid" {
		return nil, fmt.Errorf("pod %q has not reserved the claim", pod.Name)
	}
	var out []prepare.Held
	for _, name := range names {
		device, ok := c.devices[name]
		if !ok {
			return nil, fmt.Errorf("device %q is not prepared", name)
		}
		claim, _ := cdi.ClaimOf(name)
		out = append(out, prepare.Held{Claim: claim, Namespace: "default", ClaimName: string(claim), Device: device})
	}
	return out, nil
}

func (c *fakeClaims) ContainerRegion(id string) string { return filepath.Join(c.regions, id) }

// add prepares a device; a memory of 0 is a whole GPU.
func (c *fakeClaims) add(claim, request, uuid, pci string, memory int64) string {
	name := cdi.Name(types.UID(claim), request, "gpu-"+uuid, "share")
	device := checkpoint.Device{CDIDevice: name, Request: request, UUID: uuid, PCIAddress: pci, Type: "gpu", MemoryMiB: 100}
	if memory > 0 {
		device.Limit = &checkpoint.Limit{MemoryMiB: memory}
	}
	c.devices[name] = device
	return name
}

// fakeEnforcer writes down what it was asked for.
type fakeEnforcer struct {
	check, startErr error
	mu              sync.Mutex
	started         []string
}

func (e *fakeEnforcer) Name() string                { return "fake" }
func (e *fakeEnforcer) Check(context.Context) error { return e.check }
func (e *fakeEnforcer) NeedsNRI() bool              { return false }
func (e *fakeEnforcer) OwnsEnv(name string) bool    { return strings.HasPrefix(name, "LIMIT") }

func (e *fakeEnforcer) Edits(c *enforce.Container) (enforce.Edits, error) {
	out := enforce.Edits{Mounts: []enforce.Mount{{HostPath: c.RegionDir, ContainerPath: "/region"}, {HostPath: "/lib.so", ContainerPath: "/lib.so", ReadOnly: true}}}
	for i, gpu := range c.GPUs {
		value := gpu.UUID + " whole"
		if gpu.Limit != nil {
			value = fmt.Sprintf("%s %d", gpu.UUID, gpu.Limit.MemoryMiB)
		}
		out.Env = append(out.Env, enforce.EnvVar{Name: fmt.Sprintf("LIMIT_%d", i), Value: value})
	}
	return out, nil
}

func (e *fakeEnforcer) Provision(_ context.Context, c *enforce.Container) error {
	return os.MkdirAll(c.RegionDir, 0o700)
}

func (e *fakeEnforcer) Start(_ context.Context, c *enforce.Container, cgroup string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started = append(e.started, fmt.Sprintf("%d GPUs in %s", len(c.GPUs), cgroup))
	return e.startErr
}

// fakeEvents are kept as text.
type fakeEvents struct {
	mu     sync.Mutex
	events []string
}

func (e *fakeEvents) Pod(namespace, name string, _ types.UID, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, fmt.Sprintf("%s/%s %s %s", namespace, name, reason, message))
}

func (e *fakeEvents) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.events)
}

type fixture struct {
	claims   *fakeClaims
	enforcer *fakeEnforcer
	events   *fakeEvents
	plugin   *Plugin
	owners   *owners.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{claims: &fakeClaims{regions: filepath.Join(t.TempDir(), "containers"), devices: map[string]checkpoint.Device{}}, enforcer: &fakeEnforcer{}, events: &fakeEvents{}}
	f.owners = owners.NewStore(filepath.Join(t.TempDir(), "owners"))
	f.plugin = NewPlugin(f.claims, f.enforcer, f.events, f.owners)
	return f
}

func pod() *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox", Name: "train", Namespace: "default", Uid: "pod-uid"}
}

// container has CDI devices, and what their specs have put into it.
func container(id string, names ...string) *api.Container {
	out := &api.Container{Id: id, PodSandboxId: "sandbox", Name: "main", Env: []string{"PATH=/bin", "LIMIT_0=tenant", "LIMIT_9=tenant", "LIMITLESS=", "NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []*api.Mount{{Destination: "/data", Source: "/data", Type: "bind"}, {Destination: "/lib.so", Source: "/tenant.so", Type: "bind"}},
		Linux:  &api.LinuxContainer{CgroupsPath: "/kubepods/pod1/" + id}}
	for _, name := range names {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: name})
		claim, _ := cdi.ClaimOf(name)
		out.Mounts = append(out.Mounts, &api.Mount{Destination: cdi.GuardPath(claim), Source: "/state/guards/" + cdi.Missing, Type: "bind"})
	}
	return out
}

// ociSpec is what the runtime has before NRI.
func ociSpec(c *api.Container) *oci.Spec {
	spec := &oci.Spec{Process: &oci.Process{Env: slices.Clone(c.GetEnv())}, Linux: &oci.Linux{}}
	for _, mount := range c.GetMounts() {
		spec.Mounts = append(spec.Mounts, oci.Mount{Destination: mount.GetDestination(), Source: mount.GetSource(), Type: mount.GetType(), Options: mount.GetOptions()})
	}
	return spec
}

// editor edits an OCI spec for NRI's generator; what we never adjust is left to
// the nil interface, which would panic.
type editor struct {
	generate.UnderlyingGenerator
	spec *oci.Spec
}

func (e *editor) Spec() *oci.Spec      { return e.spec }
func (e *editor) ClearProcessEnv()     { e.spec.Process.Env = nil }
func (e *editor) AddMount(m oci.Mount) { e.spec.Mounts = append(e.spec.Mounts, m) }
func (e *editor) Mounts() []oci.Mount  { return e.spec.Mounts }
func (e *editor) ClearMounts()         { e.spec.Mounts = nil }
func (e *editor) AddProcessEnv(name, value string) {
	e.spec.Process.Env = append(e.spec.Process.Env, name+"="+value)
}
func (e *editor) RemoveMount(destination string) {
	e.spec.Mounts = slices.DeleteFunc(e.spec.Mounts, func(m oci.Mount) bool { return m.Destination == destination })
}

// apply does with an adjustment what runtimes do.
func apply(t *testing.T, c *api.Container, adjustment *api.ContainerAdjustment) (env []string, mounts map[string]string) {
	t.Helper()
	spec := ociSpec(c)
	if err := generate.SpecGenerator(&editor{spec: spec}).Adjust(adjustment); err != nil {
		t.Fatal(err)
	}
	mounts = map[string]string{}
	for _, mount := range spec.Mounts {
		mounts[mount.Destination] = mount.Source
	}
	return slices.Sorted(slices.Values(spec.Process.Env)), mounts
}

// runtime is the runtime's side of NRI on a socket of its own.
type runtime struct {
	*adaptation.Adaptation
	socket     string
	mu         sync.Mutex
	containers []*api.Container
	synced     chan struct{}
}

func newRuntime(t *testing.T, socket string, containers ...*api.Container) *runtime {
	t.Helper()
	r := &runtime{socket: socket, containers: containers, synced: make(chan struct{}, 10)}
	var err error
	r.Adaptation, err = adaptation.New("test", "v2.3.0", r.synchronize, func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	},
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(t.TempDir()), adaptation.WithPluginConfigPath(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	<-r.synced // for the plugins that the runtime has started itself, none
	return r
}

func (r *runtime) synchronize(ctx context.Context, cb adaptation.SyncCB) error {
	r.mu.Lock()
	containers := slices.Clone(r.containers)
	r.mu.Unlock()
	_, err := cb(ctx, []*adaptation.PodSandbox{pod()}, containers)
	r.synced <- struct{}{}
	return err
}

// add notes a container that was made.
func (r *runtime) add(c *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers = append(r.containers, c)
}

// wait for a plugin to connect.
func (r *runtime) wait(t *testing.T) {
	t.Helper()
	select {
	case <-r.synced:
	case <-time.After(20 * time.Second):
		t.Fatal("no plugin has connected")
	}
	r.BlockPluginSync().Unblock() // returns when the plugin is in use
}

// proxy stands between plugin and runtime, so that a test can cut the
// connection, as the death of the runtime does.
type proxy struct {
	mu    sync.Mutex
	conns []net.Conn
	to    string
}

func newProxy(t *testing.T, socket string) *proxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			plugin, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			server, err := net.Dial("unix", p.to)
			if err != nil {
				_ = plugin.Close() // nobody is there; the plugin tries again
				p.mu.Unlock()
				continue
			}
			p.conns = append(p.conns, plugin, server)
			p.mu.Unlock()
			for _, pair := range [][2]net.Conn{{plugin, server}, {server, plugin}} {
				group.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // ends when either side is closed
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // ends the loop
		p.lead("")
		group.Wait()
	})
	return p
}

// lead cuts all connections and leads new ones to the socket.
func (p *proxy) lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for _, conn := range p.conns {
		_ = conn.Close() // it may be closed already
	}
	p.conns = nil
}

// run runs a runner until the returned function is called.
func run(t *testing.T, runner *Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { runner.Run(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}
