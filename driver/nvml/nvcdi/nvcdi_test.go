// SPDX-License-Identifier: Apache-2.0

package nvcdi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/cdi"
)

// driverTree makes a file system with NVIDIA's driver for the mock below root.
// Its device files have the numbers of /dev/null; making them takes root, as the
// tests on a real node do.
func driverTree(t *testing.T, lib *server.Server, devices ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	version, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for _, name := range []string{"libcuda.so." + version, "libnvidia-ml.so." + version} {
		path := filepath.Join(root, "usr/lib/x86_64-linux-gnu", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		makeDevice(t, root, device)
	}
	return root
}

func makeDevice(t *testing.T, root, name string) {
	t.Helper()
	const null = 1<<8 | 3
	if err := syscall.Mknod(filepath.Join(root, "dev", name), syscall.S_IFCHR|0o666, null); err != nil {
		t.Fatal(err)
	}
}

// library is go-nvml's mock, with what it lacks.
func library(t *testing.T) (lib *server.Server, uuids []string) {
	t.Helper()
	lib = dgxa100.New()
	for _, device := range lib.Devices {
		mock, ok := device.(*server.Device)
		if !ok {
			t.Fatalf("the mock's devices are of type %T", device)
		}
		mock.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
		uuids = append(uuids, mock.UUID)
	}
	return lib, uuids
}

func newBase(t *testing.T, lib nvml.Interface, root string) *Base {
	t.Helper()
	base, err := New(Options{Library: lib, DriverRoot: root, HostDriverRoot: "/opt/nvidia", HookPath: "/opt/hook"})
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// TestEdits: each GPU has its own device file, all have the control device and
// the libraries, every path is one of the host, and the spec is valid.
func TestEdits(t *testing.T) {
	t.Parallel()
	lib, uuids := library(t)
	base := newBase(t, lib, driverTree(t, lib, "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"))
	edits, err := base.Edits(t.Context(), uuids[:2])
	if err != nil {
		t.Fatal(err)
	}
	for i, uuid := range uuids[:2] {
		nodes := nodePaths(edits.Devices[uuid])
		if want := "/dev/nvidia" + string(rune('0'+i)); !slices.Contains(nodes, want) || len(nodes) != 1 {
			t.Errorf("GPU %d has device files %q, want %q alone", i, nodes, want)
		}
	}
	if nodes := nodePaths(edits.Common); !slices.Contains(nodes, "/dev/nvidiactl") || !slices.Contains(nodes, "/dev/nvidia-uvm") {
		t.Errorf("all containers get device files %q", nodes)
	}
	cuda := false
	for _, mount := range edits.Common.Mounts {
		if strings.HasPrefix(mount.HostPath, os.TempDir()) || strings.HasPrefix(mount.ContainerPath, os.TempDir()) {
			t.Errorf("mount %+v is none of the host", mount)
		}
		cuda = cuda || (strings.Contains(mount.ContainerPath, "libcuda.so") && strings.HasPrefix(mount.HostPath, "/opt/nvidia/usr/lib/"))
	}
	if !cuda {
		t.Errorf("libcuda is missing from mounts %+v", edits.Common.Mounts)
	}
	uid := types.UID("claim")
	spec, err := cdi.Build(edits, []cdi.Device{
		{Name: cdi.Name(uid, "a", "gpu-0", ""), UUID: uuids[0], DeviceName: "gpu-0"}, {Name: cdi.Name(uid, "a", "gpu-1", ""), UUID: uuids[1], DeviceName: "gpu-1"}})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cdi.NewDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(uid, spec); err != nil {
		t.Error(err)
	}
}

// TestNoMemoryLimitHook: limits come from claims, never from a pod's environment
// through the toolkit's hook.
func TestNoMemoryLimitHook(t *testing.T) {
	t.Parallel()
	lib, uuids := library(t)
	base := newBase(t, lib, driverTree(t, lib, "nvidiactl", "nvidia0"))
	edits, err := base.Edits(t.Context(), uuids[:1])
	if err != nil {
		t.Fatal(err)
	}
	hooks := 0
	for _, edit := range []specs.ContainerEdits{edits.Common, edits.Devices[uuids[0]]} {
		for _, hook := range edit.Hooks {
			hooks++
			if hook.Path != "/opt/hook" {
				t.Errorf("hook %q is not the one that was configured", hook.Path)
			}
			if slices.Contains(hook.Args, memoryLimitHook) {
				t.Errorf("got hook %q", hook.Args)
			}
		}
	}
	if hooks == 0 {
		t.Error("there are no hooks at all, so this test proves nothing")
	}
}

// TestNotYetThere: a device file that is missing is an error, and the next call
// finds it when it has come.
func TestNotYetThere(t *testing.T) {
	t.Parallel()
	lib, uuids := library(t)
	root := driverTree(t, lib, "nvidiactl")
	base := newBase(t, lib, root)
	if _, err := base.Edits(t.Context(), uuids[:1]); err == nil || !strings.Contains(err.Error(), uuids[0]) {
		t.Errorf("got error %v, want one that names the GPU", err)
	}
	makeDevice(t, root, "nvidia0")
	if _, err := base.Edits(t.Context(), uuids[:1]); err != nil {
		t.Error(err)
	}
	if _, err := base.Edits(t.Context(), []string{"GPU-unknown"}); err == nil || !strings.Contains(err.Error(), "GPU-unknown") {
		t.Errorf("got error %v, want one that names the GPU", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	lib, _ := library(t)
	good := Options{Library: lib, DriverRoot: "/", HostDriverRoot: "/", HookPath: "/hook"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o *Options){
		"library": func(o *Options) { o.Library = nil }, "driver root": func(o *Options) { o.DriverRoot = "" },
		"host": func(o *Options) { o.HostDriverRoot = "x" }, "hook": func(o *Options) { o.HookPath = "x" }, "dev": func(o *Options) { o.DevRoot = "x" },
	} {
		options := good
		change(&options)
		if _, err := New(options); err == nil {
			t.Errorf("%s: a bad value is accepted", name)
		}
	}
}

func nodePaths(edits specs.ContainerEdits) []string {
	var out []string
	for _, node := range edits.DeviceNodes {
		path := node.HostPath
		if path == "" {
			path = node.Path
		}
		out = append(out, path)
	}
	return out
}
