// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/enforce"
)

const uid = types.UID("0d1c7f0e-1111-2222-3333-444455556666")

// simulated builds a spec for two shares of one recorded GPU.
func simulated(t *testing.T, guard *Guard) (*specs.Spec, []string) {
	t.Helper()
	base, err := Simulated{}.Edits(t.Context(), []string{"GPU-1"})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{Name(uid, "a", "gpu-0123456789ab", "share-1"), Name(uid, "b/first", "gpu-0123456789ab", "share-2")}
	spec, err := Build(base, []Device{
		{Name: names[0], UUID: "GPU-1", DeviceName: "gpu-0123456789ab", Extra: enforce.Edits{Env: []enforce.EnvVar{{Name: "LIMIT", Value: "1"}}}, Guard: guard},
		{Name: names[1], UUID: "GPU-1", DeviceName: "gpu-0123456789ab", Extra: enforce.Edits{Mounts: []enforce.Mount{{HostPath: "/etc/hostname", ContainerPath: "/x", ReadOnly: true}}}, Guard: guard},
	})
	if err != nil {
		t.Fatal(err)
	}
	return spec, names
}

func newDir(t *testing.T) *Dir {
	t.Helper()
	dir, err := NewDir(filepath.Join(t.TempDir(), "cdi"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// inject does what a container runtime does.
func inject(t *testing.T, dir *Dir, names ...string) *oci.Spec {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir.path), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{Env: []string{"PATH=/bin", "LIMIT=tenant", "NVIDIA_VISIBLE_DEVICES=all"}}}
	if unresolved, err := cache.InjectDevices(spec, names...); err != nil {
		t.Fatalf("%v (unresolved: %q)", err, unresolved)
	}
	return spec
}

// TestD07_TwoSharesAreTwoDevices: the spec is valid, and a container gets what
// belongs to the share that it asks for.
func TestD07_TwoSharesAreTwoDevices(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	spec, names := simulated(t, nil)
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	first := inject(t, dir, names[0])
	if diff := cmp.Diff([]string{"PATH=/bin", "LIMIT=1", "NVIDIA_VISIBLE_DEVICES=void", "TOPODRA_DEVICE_GPU_0123456789AB=GPU-1"}, first.Process.Env); diff != "" {
		t.Error(diff)
	}
	second := inject(t, dir, names[1])
	if want := "LIMIT=tenant"; !slices.Contains(second.Process.Env, want) {
		t.Errorf("the second share got the first one's limit: %q", second.Process.Env)
	}
	if diff := cmp.Diff([]oci.Mount{{Destination: "/x", Source: "/etc/hostname", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind"}}}, second.Mounts); diff != "" {
		t.Error(diff)
	}
	if both := inject(t, dir, names...); len(both.Mounts) != 1 || !slices.Contains(both.Process.Env, "LIMIT=1") {
		t.Errorf("both shares: got %+v, %q", both.Mounts, both.Process.Env)
	}
	if first.Linux != nil || len(spec.ContainerEdits.Hooks) > 0 {
		t.Error("a simulated device has device nodes or hooks")
	}
}

func TestGuardIsOnEveryDevice(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	state := t.TempDir()
	spec, names := simulated(t, &Guard{Claim: uid, Dir: state})
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		guards := 0
		for _, mount := range inject(t, dir, name).Mounts {
			if claim, is := IsGuard(mount.Destination); is {
				guards++
				if claim != uid || mount.Source != filepath.Join(state, Missing) {
					t.Errorf("got guard %+v", mount)
				}
			}
		}
		if guards != 1 {
			t.Errorf("%q has %d guards", name, guards)
		}
	}
	if err := (PathMap{}).Check(spec); err != nil {
		t.Errorf("a guard's missing source is a problem: %v", err)
	}
	if err := os.Mkdir(filepath.Join(state, Missing), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (PathMap{}).Check(spec); err == nil || !strings.Contains(err.Error(), "its absence is what guards the limits") {
		t.Errorf("a guard that guards nothing is accepted: %v", err)
	}
}

// TestGuardDevice: the runtime refuses the container while the device is not
// there, and when it is, the container has what all containers have.
func TestGuardDevice(t *testing.T) {
	t.Parallel()
	dir, state := newDir(t), t.TempDir()
	spec, names := simulated(t, &Guard{Claim: uid, Dir: state, Device: GuardDevice(state)})
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	if err := (PathMap{}).Check(spec); err != nil {
		t.Errorf("a guard's device, which comes and goes, is a problem: %v", err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir.path), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := cache.InjectDevices(&oci.Spec{}, names[0]); err == nil || !strings.Contains(err.Error(), GuardDeviceDir) {
			t.Errorf("without the device: got error %v, want one that quotes its name", err)
		}
		link := filepath.Join(state, GuardDeviceDir)
		if err := os.Symlink("/dev", link); err != nil {
			t.Fatal(err)
		}
		got := inject(t, dir, names...)
		want := []oci.LinuxDevice{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3, FileMode: new(os.FileMode(0o666)), UID: new(uint32), GID: new(uint32)}}
		if diff := cmp.Diff(want, got.Linux.Devices); diff != "" {
			t.Error(diff)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	// A device of the GPU's own must be there, whatever it is called.
	spec.Devices[0].ContainerEdits.DeviceNodes = []*specs.DeviceNode{{Path: "/dev/null", HostPath: filepath.Join(state, "null")}}
	if err := (PathMap{}).Check(spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that is missing: got error %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	name := Name(uid, "main/sub", "gpu-1", "s")
	if want := "k8s.gpu.topodra.dev/claim=" + string(uid) + "_main.sub_gpu-1_s"; name != want {
		t.Errorf("got %q, want %q", name, want)
	}
	if got, ok := ClaimOf(name); !ok || got != uid {
		t.Errorf("got %q, %t", got, ok)
	}
	for _, other := range []string{"", "x", "nvidia.com/gpu=0", "k8s.gpu.topodra.dev/other=a_b", "k8s.gpu.topodra.dev/claim=_b", "k8s.gpu.topodra.dev/claim=ab"} {
		if got, ok := ClaimOf(other); ok {
			t.Errorf("%q belongs to claim %q", other, got)
		}
	}
	seen := map[string]bool{}
	for _, request := range []string{"a", "a/b", "a/c"} {
		for _, device := range []string{"gpu-1", "gpu-2"} {
			for _, share := range []string{"", "s1", "s2"} {
				seen[Name(uid, request, device, share)] = true
			}
		}
	}
	if len(seen) != 18 {
		t.Errorf("18 results have %d names", len(seen))
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	base := &BaseEdits{Devices: map[string]specs.ContainerEdits{"GPU-1": {}}}
	if _, err := Build(base, []Device{{Name: Name(uid, "a", "b", ""), UUID: "GPU-2", DeviceName: "gpu-2"}}); err == nil || !strings.Contains(err.Error(), `"GPU-2" (gpu-2)`) {
		t.Errorf("unknown device: got error %v", err)
	}
	if _, err := Build(base, []Device{{Name: "plain", UUID: "GPU-1"}}); err == nil {
		t.Error("an unqualified name is accepted")
	}
	dir := newDir(t)
	if err := dir.Write(uid, &specs.Spec{Version: "0.5.0", Kind: Vendor + "/" + Class}); err == nil {
		t.Error("an invalid spec is written")
	}
	for _, bad := range []types.UID{"", "../x", "a_b"} {
		spec, _ := simulated(t, nil)
		if err := dir.Write(bad, spec); err == nil {
			t.Errorf("a spec for claim %q is written", bad)
		}
		if err := dir.Remove(bad); err == nil {
			t.Errorf("a spec of claim %q is removed", bad)
		}
	}
	if _, err := NewDir("relative"); err == nil {
		t.Error("a relative directory is accepted")
	}
}

func TestDir(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if got, err := dir.List(); len(got) > 0 || err != nil {
		t.Errorf("before the first spec: got %v, %v", got, err)
	}
	if err := dir.Remove(uid); err != nil {
		t.Errorf("removing before the first spec: %v", err)
	}
	spec, _ := simulated(t, nil)
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(dir.Path(uid))
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode().Perm() != 0o644 {
		t.Errorf("got mode %v, want one that a runtime can read", before.Mode())
	}
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(dir.Path(uid)); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged spec was written again: %v", err)
	}
	// Whatever is wrong with a file, the next Write heals it.
	for _, damage := range []string{"", "{", `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"a","containerEdits":{"env":["A=b"]}}]}`} {
		if err := os.WriteFile(dir.Path(uid), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := dir.Read(uid); err == nil {
			t.Errorf("%q is read as a spec of ours", damage)
		}
		if err := dir.Write(uid, spec); err != nil {
			t.Errorf("after %q: %v", damage, err)
		}
	}
	for _, other := range []string{"nvidia.yaml", ".hidden", Vendor + "-" + Class + "_a_b.json", Vendor + "-" + Class + "_.json", Vendor + "-" + Class + "_x.yaml"} {
		if err := os.WriteFile(filepath.Join(dir.path, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := dir.List(); err != nil || fmt.Sprint(got) != fmt.Sprint([]types.UID{uid}) {
		t.Errorf("got %v, %v", got, err)
	}
	for range 2 {
		if err := dir.Remove(uid); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dir.Read(uid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v", err)
	}
}

// TestRemoveStale: what is unfinished goes, and nothing else.
func TestRemoveStale(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	spec, _ := simulated(t, nil)
	if err := dir.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{stagingPrefix + "1", stagingPrefix + "2", "other"} {
		path := filepath.Join(dir.path, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "spec.1.tmp"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.RemoveStale(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir.path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if diff := cmp.Diff([]string{filepath.Base(dir.Path(uid)), "other"}, got); diff != "" {
		t.Error(diff)
	}
	inject(t, dir, Name(uid, "a", "gpu-0123456789ab", "share-1")) // runtimes are not disturbed
}

func TestWriteFailsVisibly(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	blocked := filepath.Join(base, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := NewDir(filepath.Join(blocked, "cdi"))
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := simulated(t, nil)
	if err := dir.Write(uid, spec); err == nil || !strings.Contains(err.Error(), string(uid)) {
		t.Errorf("got error %v, want one that names the claim", err)
	}
}

func TestHostPathsAndCheck(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec := &specs.Spec{
		ContainerEdits: specs.ContainerEdits{
			Mounts: []*specs.Mount{{HostPath: "/usr/lib/libcuda.so.1", ContainerPath: "/c"}, {HostPath: "tmpfs", ContainerPath: "/t", Type: "tmpfs"}},
			Hooks:  []*specs.Hook{{HookName: "createContainer", Path: "/usr/bin/hook"}},
		},
		Devices: []specs.Device{{Name: "a", ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0"}, {Path: "/dev/x", HostPath: "/dev/nvidiactl"}},
			Mounts:      []*specs.Mount{{HostPath: "/usr/lib/libcuda.so.1", ContainerPath: "/d", Options: []string{"bind"}}},
		}}},
	}
	if diff := cmp.Diff([]string{"/dev/nvidia0", "/dev/nvidiactl", "/usr/bin/hook", "/usr/lib/libcuda.so.1"}, HostPaths(spec)); diff != "" {
		t.Error(diff)
	}
	paths := PathMap{{Host: "/", Local: root}, {Host: "/dev", Local: filepath.Join(root, "devices")}}
	write("usr/bin/hook")
	write("devices/nvidia0")
	write("usr/lib/real.so")
	// A link to an absolute path means one of the host.
	if err := os.Symlink("/usr/lib/real.so", filepath.Join(root, "usr/lib/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	err := paths.Check(spec)
	if err == nil || !strings.Contains(err.Error(), `host path "/dev/nvidiactl"`) || strings.Contains(err.Error(), "libcuda") || strings.Contains(err.Error(), "hook\"") {
		t.Errorf("got error %v, want one about nvidiactl alone", err)
	}
	write("devices/nvidiactl")
	if err := paths.Check(spec); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(root, "usr/lib/real.so")); err != nil {
		t.Fatal(err)
	}
	if err := paths.Check(spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dangling link is fine: %v", err)
	}
	if err := os.Symlink("libcuda.so.1", filepath.Join(root, "usr/lib/real.so")); err != nil {
		t.Fatal(err)
	}
	if err := paths.Check(spec); err == nil || !strings.Contains(err.Error(), "more than 16 links") {
		t.Errorf("a circle of links: got error %v", err)
	}
}

func TestPathMapLocal(t *testing.T) {
	t.Parallel()
	paths := PathMap{{Host: "/", Local: "/host"}, {Host: "/var/lib/kubelet/", Local: "/kubelet"}, {Host: "/var", Local: "/v"}}
	for host, want := range map[string]string{
		"/": "/host", "/usr/lib": "/host/usr/lib", "/var": "/v", "/variable": "/host/variable", "/var/lib/kubelet": "/kubelet",
		"/var/lib/kubelet/plugins/x": "/kubelet/plugins/x", "/var/lib/kubelet2": "/v/lib/kubelet2",
	} {
		if got := paths.Local(host); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
	if got := (PathMap{}).Local("/a/b"); got != "/a/b" {
		t.Errorf("got %q", got)
	}
	if (PathMap{{Host: "x", Local: "/"}}).Validate() == nil || paths.Validate() != nil {
		t.Error("Validate is wrong")
	}
}

func TestSharedDirectoryOfTwoWriters(t *testing.T) {
	t.Parallel()
	first := newDir(t)
	second, err := NewDir(first.path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for i, dir := range []*Dir{first, second} {
		go func() {
			var errs []error
			for k := range 10 {
				claim := types.UID(fmt.Sprintf("claim-%d-%d", i, k))
				base, _ := Simulated{}.Edits(t.Context(), []string{"GPU-1"})
				spec, err := Build(base, []Device{{Name: Name(claim, "a", "gpu-1", ""), UUID: "GPU-1", DeviceName: "gpu-1"}})
				errs = append(errs, err, dir.Write(claim, spec))
			}
			done <- errors.Join(errs...)
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got, err := first.List(); len(got) != 20 || err != nil {
		t.Errorf("got %d specs, %v", len(got), err)
	}
}
