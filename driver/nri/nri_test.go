// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/google/go-cmp/cmp"
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

// TestOverTheWire has a real runtime side ask one and then two connected
// plugins, as during a rolling update, and applies what they say.
func TestOverTheWire(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	names := []string{
		f.claims.add("claim-b", "r", "GPU-2", "0000:20:00.0", 20), f.claims.add("claim-a", "r", "GPU-3", "0000:30:00.0", 30),
		f.claims.add("claim-a", "s", "GPU-1", "0000:10:00.0", 0),
	}
	socket := filepath.Join(t.TempDir(), "nri.sock")
	server := newRuntime(t, socket)
	defer server.Stop()
	for plugins := 1; plugins <= 2; plugins++ {
		runner := NewRunner(f.plugin, socket)
		defer run(t, runner)()
		server.wait(t)
		request := container("id-"+fmt.Sprint(plugins), names...)
		original := container("id-"+fmt.Sprint(plugins), names...)
		answer, err := server.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: pod(), Container: request})
		if err != nil {
			t.Fatalf("%d plugins: %v", plugins, err)
		}
		env, mounts := apply(t, original, answer.GetAdjust())
		if diff := cmp.Diff([]string{"LIMITLESS=", "LIMIT_0=GPU-1 whole", "LIMIT_1=GPU-2 20", "LIMIT_2=GPU-3 30", "LIMIT_9=", "NVIDIA_VISIBLE_DEVICES=void", "PATH=/bin"}, env); diff != "" {
			t.Errorf("%d plugins: %s", plugins, diff)
		}
		if diff := cmp.Diff(map[string]string{"/data": "/data", "/lib.so": "/lib.so", "/region": f.claims.ContainerRegion(request.GetId())}, mounts); diff != "" {
			t.Errorf("%d plugins: %s", plugins, diff)
		}
		if _, err := os.Stat(f.claims.ContainerRegion(request.GetId())); err != nil {
			t.Error(err)
		}
		server.add(original)
	}
	// A pod that may not have the devices gets no container at all.
	stranger := pod()
	stranger.Uid = "another"
	if _, err := server.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: stranger, Container: container("id-3", names...)}); err == nil || !strings.Contains(err.Error(), "has not reserved the claim") {
		t.Errorf("got error %v", err)
	}
	if f.events.count() == 0 {
		t.Error("nobody was told")
	}
	if err := server.StartContainer(t.Context(), &adaptation.StartContainerRequest{Pod: pod(), Container: container("id-2", names...)}); err != nil {
		t.Error(err)
	}
	if err := server.RemoveContainer(t.Context(), &adaptation.RemoveContainerRequest{Pod: pod(), Container: container("id-2", names...)}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.claims.ContainerRegion("id-2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the region of a removed container is still there: %v", err)
	}
	known, err := f.owners.List()
	if diff := cmp.Diff(map[string]*owners.Owner{"id-1": {Namespace: "default", Pod: "train", PodUID: "pod-uid", Container: "main", GPUs: []owners.GPU{
		{UUID: "GPU-1", Claims: []string{"claim-a"}}, {UUID: "GPU-2", Claims: []string{"claim-b"}, MemoryLimitMiB: 20}, {UUID: "GPU-3", Claims: []string{"claim-a"}, MemoryLimitMiB: 30}}}}, known); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
	if diff := cmp.Diff([]string{"3 GPUs in /kubepods/pod1/id-2", "3 GPUs in /kubepods/pod1/id-2"}, f.enforcer.started); diff != "" {
		t.Error(diff)
	}
}

// TestReconnect: the runtime goes away and comes back; the plugin is connected
// again and hears of the containers that there are.
func TestReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10)
	for _, id := range []string{"alive", "gone"} {
		if err := f.owners.Put(id, &owners.Owner{Container: "of before"}); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(f.claims.ContainerRegion(id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "nri.sock")
	runner := NewRunner(f.plugin, socket)
	if runner.Offered() || runner.Healthy() != nil {
		t.Error("without a runtime: offered or unhealthy")
	}
	defer run(t, runner)()
	first := newRuntime(t, filepath.Join(dir, "1.sock"), container("alive", name), container("gone", name))
	defer first.Stop()
	way := newProxy(t, socket)
	way.lead(first.socket)
	first.wait(t)
	if !runner.isConnected() || !runner.Offered() {
		t.Error("connected, but it does not say so")
	}
	second := newRuntime(t, filepath.Join(dir, "2.sock"), container("alive", name))
	defer second.Stop()
	way.lead("")
	waitFor(t, func() bool { return !runner.isConnected() })
	way.lead(second.socket)
	second.wait(t)
	if _, err := os.Stat(f.claims.ContainerRegion("alive")); err != nil {
		t.Errorf("the region of a container was removed: %v", err)
	}
	if _, err := os.Stat(f.claims.ContainerRegion("gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the region of a container that is gone is still there: %v", err)
	}
	known, err := f.owners.List()
	if err != nil || len(known) != 1 || known["alive"].Container != "main" || known["alive"].GPUs[0].MemoryLimitMiB != 10 {
		t.Errorf("got owners %+v, %v", known, err)
	}
}

func (r *Runner) isConnected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connected
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

// TestHealthy: a runtime that offers NRI but does not take the plugin becomes a
// failure after a while.
func TestHealthy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	socket := filepath.Join(t.TempDir(), "nri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	runner := NewRunner(f.plugin, socket)
	runner.now = func() time.Time { return now }
	runner.changed = now
	runner.lastErr = errors.New("refused")
	now = now.Add(UnhealthyAfter - time.Second)
	if err := runner.Healthy(); err != nil {
		t.Errorf("unhealthy at once: %v", err)
	}
	now = now.Add(2 * time.Second)
	if err := runner.Healthy(); !errors.Is(err, runner.lastErr) || !strings.Contains(err.Error(), "no container with a share of a GPU can start") {
		t.Errorf("got error %v", err)
	}
	runner.set(true, nil)
	if err := runner.Healthy(); err != nil {
		t.Error(err)
	}
	// A file that is no socket is no offer.
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if NewRunner(f.plugin, plain).Offered() {
		t.Error("a plain file is taken for NRI")
	}
}

// TestContainersOfOthers are left alone: no adjustment, no question.
func TestContainersOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := container("id", "nvidia.com/gpu=0")
	other.Mounts = other.Mounts[:2]
	got, updates, err := f.plugin.CreateContainer(t.Context(), pod(), other)
	if got != nil || updates != nil || err != nil {
		t.Errorf("got %v, %v, %v", got, updates, err)
	}
	if err := f.plugin.StartContainer(t.Context(), pod(), other); err != nil {
		t.Error(err)
	}
	if err := f.plugin.RemoveContainer(t.Context(), pod(), other); err != nil {
		t.Error(err)
	}
}

// TestWholeGPUs get no edits, not even variables, but must be the pod's.
func TestWholeGPUs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 0)
	c := container("id", name)
	c.Mounts = c.Mounts[:2]
	got, _, err := f.plugin.CreateContainer(t.Context(), pod(), c)
	if err != nil || len(got.GetEnv())+len(got.GetMounts()) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := os.Stat(f.claims.ContainerRegion("id")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("whole GPUs have a region: %v", err)
	}
	stranger := pod()
	stranger.Uid = "another"
	if _, _, err := f.plugin.CreateContainer(t.Context(), stranger, c); err == nil {
		t.Error("a stranger gets a whole GPU")
	}
}

// TestV09_FailsClosed: whatever is wrong, the container is not made, its guard
// stays, and the pod gets an event.
func TestV09_FailsClosed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(f *fixture, p *api.PodSandbox, c *api.Container)
		want   string
	}{
		"pod has not reserved":      {func(_ *fixture, p *api.PodSandbox, _ *api.Container) { p.Uid = "another" }, "has not reserved the claim"},
		"claim is not prepared":     {func(f *fixture, _ *api.PodSandbox, _ *api.Container) { clear(f.claims.devices) }, "is not prepared"},
		"runtime hides CDI devices": {func(_ *fixture, _ *api.PodSandbox, c *api.Container) { c.CDIDevices = nil }, `guard of claim UID "claim"`},
		"guard of another claim": {func(_ *fixture, _ *api.PodSandbox, c *api.Container) {
			c.Mounts = append(c.Mounts, &api.Mount{Destination: cdi.GuardPath("other")})
		}, `guard of claim UID "other"`},
		"cannot enforce": {func(f *fixture, _ *api.PodSandbox, _ *api.Container) {
			f.enforcer.check = errors.New("library is gone")
		}, "library is gone"},
		"no enforcer":     {func(f *fixture, _ *api.PodSandbox, _ *api.Container) { f.plugin.enforcer = nil }, "without anything to limit"},
		"no ID":           {func(_ *fixture, _ *api.PodSandbox, c *api.Container) { c.Id = "" }, "no container ID"},
		"ID leads astray": {func(_ *fixture, _ *api.PodSandbox, c *api.Container) { c.Id = "../x" }, "no container ID"},
		"no region": {func(f *fixture, _ *api.PodSandbox, _ *api.Container) {
			if err := os.WriteFile(f.claims.regions, nil, 0o600); err != nil {
				panic(err)
			}
		}, "not a directory"},
		"MIG and share": {func(f *fixture, _ *api.PodSandbox, c *api.Container) {
			mig := f.claims.add("claim", "mig", "MIG-1", "0000:10:00.0", 0)
			device := f.claims.devices[mig]
			device.Type = "mig"
			f.claims.devices[mig] = device
			c.CDIDevices = append(c.CDIDevices, &api.CDIDevice{Name: mig})
		}, "MIG device"},
	} {
		f := newFixture(t)
		p, c := pod(), container("id", f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10))
		test.change(f, p, c)
		adjustment, _, err := f.plugin.CreateContainer(t.Context(), p, c)
		if err == nil || adjustment != nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `container "main" of pod "default/train"`) {
			t.Errorf("%s: got %v, error %v, want %q", name, adjustment, err, test.want)
		}
		if f.events.count() != 1 {
			t.Errorf("%s: got events %q", name, f.events.events)
		}
	}
}

// TestStartFails: an enforcer that acts at the start can keep a container from
// starting.
func TestStartFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := container("id", f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10))
	f.enforcer.startErr = errors.New("the GPU driver says no")
	if err := f.plugin.StartContainer(t.Context(), pod(), c); !errors.Is(err, f.enforcer.startErr) || f.events.count() != 1 {
		t.Errorf("got error %v, events %q", err, f.events.events)
	}
	stranger := pod()
	stranger.Uid = "another"
	if err := f.plugin.StartContainer(t.Context(), stranger, c); err == nil {
		t.Error("a stranger's container starts")
	}
}

// TestSynchronizeTells about running containers that have what they should not.
func TestSynchronizeTells(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mine, foreign := container("mine", f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10)), container("foreign", cdi.Name("unknown", "r", "gpu-1", ""))
	stopped := container("stopped", cdi.Name("unknown", "r", "gpu-1", ""))
	stopped.State = api.ContainerState_CONTAINER_STOPPED
	if _, err := f.plugin.Synchronize(t.Context(), []*api.PodSandbox{pod()}, []*api.Container{mine, foreign, stopped}); err != nil {
		t.Fatal(err)
	}
	if len(f.events.events) != 1 || !strings.Contains(f.events.events[0], "is running with devices that it should not have") {
		t.Errorf("got events %q", f.events.events)
	}
}

func TestCgroupPath(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/kubepods/burstable/pod1/id":           "/kubepods/burstable/pod1/id",
		"":                                      "",
		"kubepods-pod1.slice:cri-containerd:id": "/kubepods.slice/kubepods-pod1.slice/cri-containerd-id.scope",
		"kubepods-burstable-pod1.slice:cri-containerd:id": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-id.scope",
		"system.slice:p:n":      "/system.slice/p-n.scope",
		"-.slice:p:n":           "/p-n.scope",
		"a.slice:p:inner.slice": "/a.slice/inner.slice",
		"not:a:systemd:path":    "not:a:systemd:path",
	} {
		if got := cgroupPath(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
