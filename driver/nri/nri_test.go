// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/internal/owners"
)

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
		runner := NewRunner(f.plugin, socket, nil)
		stop := run(t, runner)
		defer stop() //nolint:revive // both plugins run to the end
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
	runner := NewRunner(f.plugin, socket, nil)
	if runner.Offered() || runner.Healthy() != nil {
		t.Error("without a runtime: offered or unhealthy")
	}
	stop := run(t, runner)
	defer stop()
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
	runner := NewRunner(f.plugin, socket, nil)
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
	if NewRunner(f.plugin, plain, nil).Offered() {
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

// TestOtherNamesOfOurPaths: a pod that spells a path of ours in another way has no mount
// on top of ours.
func TestOtherNamesOfOurPaths(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10)
	request, original := container("id", name), container("id", name)
	for _, c := range []*api.Container{request, original} {
		for _, destination := range []string{"/lib.so/", "//lib.so", "/x/../lib.so", "lib.so", "/region/.", "/region/mine", "/lib.so.1"} {
			c.Mounts = append(c.Mounts, &api.Mount{Destination: destination, Source: "/tenant", Type: "bind"})
		}
	}
	adjustment, _, err := f.plugin.CreateContainer(t.Context(), pod(), request)
	if err != nil {
		t.Fatal(err)
	}
	_, mounts := apply(t, original, adjustment)
	want := map[string]string{
		"/data": "/data", "/lib.so": "/lib.so", "/region": f.claims.ContainerRegion("id"),
		// Below a directory that the pod may write to, and beside what is ours.
		"/region/mine": "/tenant", "/lib.so.1": "/tenant",
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}
