// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	_ "os/user" // makes this test binary use libc, without which there is no dynamic linker to test
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
)

func TestMain(m *testing.M) {
	if code, isChild := RunProbeChild(os.Stdout); isChild {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// gpu is one GPU of a container; a memory limit of 0 is none.
func gpu(uuid string, memory, cores int64) enforce.GPU {
	out := enforce.GPU{UUID: uuid, PCIAddress: "0000:01:00.0", MemoryMiB: 81920}
	if memory > 0 {
		out.Limit = &checkpoint.Limit{MemoryMiB: memory, CoresPercent: cores}
	}
	return out
}

// fakeLibrary writes the smallest file that counts as a shared library for the
// machine, followed by tail.
func fakeLibrary(t *testing.T, path string, machine elf.Machine, kind elf.Type, tail string) {
	t.Helper()
	header := elf.Header64{Type: uint16(kind), Machine: uint16(machine), Version: 1, Ehsize: 64, Shentsize: 64}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	content, err := binary.Append(nil, binary.LittleEndian, header)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(content, tail...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newEnforcer returns one that has set up a fake library.
func newEnforcer(t *testing.T) *Enforcer {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "source.so")
	fakeLibrary(t, source, machines[thisArch], elf.ET_DYN, "v1")
	enforcer, err := New(Options{Source: source, Root: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return enforcer
}

// TestEdits pins every variable and mount of a container with a share, a whole
// GPU and a share with best-effort compute.
func TestEdits(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	settings := api.SharingConfig{TaskPriority: api.TaskPriorityHigh, CorePolicy: api.CorePolicyForce, LogLevel: api.LogLevelDebug}
	got, err := enforcer.Edits(&enforce.Container{GPUs: []enforce.GPU{gpu("a", 10240, 50), gpu("b", 0, 0), gpu("c", 1, 0)}, Settings: settings, RegionDir: "/state/region"})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{}
	for _, variable := range got.Env {
		env = append(env, variable.Name+"="+variable.Value)
	}
	if diff := cmp.Diff([]string{
		"CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_MEMORY_LIMIT_1=81920m", "CUDA_DEVICE_MEMORY_LIMIT_2=1m",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/region/vgpu.cache", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
		"CUDA_DEVICE_SM_LIMIT=0", "CUDA_DEVICE_SM_LIMIT_0=50", "CUDA_DEVICE_SM_LIMIT_1=100", "CUDA_DEVICE_SM_LIMIT_2=100",
		"CUDA_REDIRECT=/usr/local/vgpu/libvgpu.so", "CUDA_TASK_PRIORITY=0", "CUDA_VISIBLE_DEVICES=0,1,2",
		"GPU_CORE_UTILIZATION_POLICY=FORCE", "LIBCUDA_LOG_LEVEL=4",
	}, env); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]enforce.Mount{
		{HostPath: enforcer.Dir() + "/ld.so.preload", ContainerPath: "/etc/ld.so.preload", ReadOnly: true},
		{HostPath: enforcer.Dir() + "/overrideEnv", ContainerPath: "/overrideEnv", ReadOnly: true},
		{HostPath: enforcer.Dir() + "/libvgpu.so", ContainerPath: "/usr/local/vgpu/libvgpu.so", ReadOnly: true},
		{HostPath: "/state/region", ContainerPath: "/usr/local/vgpu/region"},
	}, got.Mounts); diff != "" {
		t.Error(diff)
	}
	for _, variable := range got.Env {
		if !enforcer.OwnsEnv(variable.Name) {
			t.Errorf("a pod may set %q itself", variable.Name)
		}
	}
}

// TestWholeGPUsGetNoPreload: nothing at all, not even a directory.
func TestWholeGPUsGetNoPreload(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	container := &enforce.Container{GPUs: []enforce.GPU{gpu("a", 0, 0), gpu("b", 0, 0)}, RegionDir: filepath.Join(t.TempDir(), "region")}
	got, err := enforcer.Edits(container)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(enforce.Edits{}, got); diff != "" {
		t.Error(diff)
	}
	if err := enforcer.Provision(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(container.RegionDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("whole GPUs have a region: %v", err)
	}
}

// TestD12_NoCoresIsSpelledOut: best effort is written as 100, never as the 0
// that the library replaces by another variable.
func TestD12_NoCoresIsSpelledOut(t *testing.T) {
	t.Parallel()
	for cores, want := range map[int64]string{0: "100", 1: "1", 99: "99", 100: "100"} {
		if got := coreLimit(gpu("a", 1, cores)); got != want {
			t.Errorf("cores %d: got %q, want %q", cores, got, want)
		}
	}
	unknown := enforce.GPU{UUID: "x"}
	if memoryLimit(unknown) != "0" || coreLimit(unknown) != "100" {
		t.Errorf("a GPU of unknown size: got %q, %q", memoryLimit(unknown), coreLimit(unknown))
	}
}

// TestV08_PodCannotSwitchOff: each variable by which a pod could weaken the
// limits is ours.
func TestV08_PodCannotSwitchOff(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	for name, want := range map[string]bool{
		"CUDA_DISABLE_CONTROL": true, "CUDA_DEVICE_MEMORY_LIMIT": true, "CUDA_DEVICE_MEMORY_LIMIT_15": true, "CUDA_DEVICE_SM_LIMIT_3": true,
		"GPU_CORE_UTILIZATION_POLICY": true, "CUDA_REDIRECT": true, "CUDA_VISIBLE_DEVICES": true, "CUDA_DEVICE_ORDER": true, "CUDA_OVERSUBSCRIBE": true,
		"PATH": false, "CUDA_LAUNCH_BLOCKING": false, "NCCL_DEBUG": false, "CUDA_DEVICE_MAX_CONNECTIONS": false,
	} {
		if got := enforcer.OwnsEnv(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}

func TestEditsRefuses(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	many := &enforce.Container{RegionDir: "/r"}
	for range MaxGPUs {
		many.GPUs = append(many.GPUs, gpu("a", 1, 1))
	}
	if _, err := enforcer.Edits(many); err != nil {
		t.Errorf("%d GPUs: %v", MaxGPUs, err)
	}
	many.GPUs = append(many.GPUs, gpu("a", 0, 0))
	if _, err := enforcer.Edits(many); err == nil || !strings.Contains(err.Error(), "gets 17 GPUs") {
		t.Errorf("17 GPUs: got error %v", err)
	}
	if _, err := enforcer.Edits(&enforce.Container{GPUs: []enforce.GPU{gpu("a", 1, 1)}}); err == nil {
		t.Error("a container without region directory is accepted")
	}
	fresh, err := New(Options{Source: "x", Root: "/somewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.Edits(many); err == nil || !strings.Contains(err.Error(), "not been set up") {
		t.Errorf("before setup: got error %v", err)
	}
	for _, root := range []string{"", "relative", "/", "/."} {
		if _, err := New(Options{Root: root}); err == nil {
			t.Errorf("root %q is accepted", root)
		}
	}
}

// TestD14_UpdateLeavesRunningContainersAlone: a new version is a new directory,
// and a file that is open (or mapped) keeps its content.
func TestD14_UpdateLeavesRunningContainersAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, root := filepath.Join(dir, "source.so"), filepath.Join(dir, "root")
	fakeLibrary(t, source, machines[thisArch], elf.ET_DYN, "v1")
	enforcer, err := New(Options{Source: source, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := enforcer.Dir()
	before, err := os.Stat(filepath.Join(first, libraryName))
	if err != nil {
		t.Fatal(err)
	}
	fakeLibrary(t, source, machines[thisArch], elf.ET_DYN, "v2")
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if enforcer.Dir() == first {
		t.Fatal("another library has the same directory")
	}
	after, err := os.Stat(filepath.Join(first, libraryName))
	if err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the old version was touched: %v", err)
	}
	if err := enforcer.Prune(func(dir string) bool { return dir == first }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first); err != nil {
		t.Errorf("a version in use was removed: %v", err)
	}
	if err := enforcer.Prune(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old version is still there: %v", err)
	}
	if err := enforcer.Check(t.Context()); err != nil {
		t.Errorf("pruning has broken the version in use: %v", err)
	}
}

func TestSetupRepairsDamage(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	library := filepath.Join(enforcer.Dir(), libraryName)
	want, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(enforcer.Dir(), libraryName+".new"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(library+".new", library); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(enforcer.Dir(), preloadName)); err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Check(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file is not noticed: %v", err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(library); err != nil || string(got) != string(want) {
		t.Errorf("the library is still damaged: %v", err)
	}
	if err := enforcer.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStaleInstallsGo, but not one that may be under way.
func TestStaleInstallsGo(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{installTempPrefix + "old": time.Hour, installTempPrefix + "new": time.Minute, "version": time.Hour} {
		path := filepath.Join(parent, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chtimes(path, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	removeStaleInstalls(parent, now)
	for name, want := range map[string]bool{installTempPrefix + "old": false, installTempPrefix + "new": true, "version": true} {
		if _, err := os.Stat(filepath.Join(parent, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWrongLibraryIsRefused(t *testing.T) {
	t.Parallel()
	other := elf.EM_AARCH64
	if thisArch == "arm64" {
		other = elf.EM_X86_64
	}
	for name, test := range map[string]struct {
		write func(t *testing.T, path string)
		want  string
	}{
		"other machine": {func(t *testing.T, path string) { t.Helper(); fakeLibrary(t, path, other, elf.ET_DYN, "") }, "it is built for " + other.String()},
		"a program":     {func(t *testing.T, path string) { t.Helper(); fakeLibrary(t, path, machines[thisArch], elf.ET_EXEC, "") }, "it is of type ET_EXEC"},
		"a text": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("not a library"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is no ELF file"},
		"nothing": {func(*testing.T, string) {}, "no such file"},
	} {
		dir := t.TempDir()
		source, root := filepath.Join(dir, "source.so"), filepath.Join(dir, "root")
		test.write(t, source)
		enforcer, err := New(Options{Source: source, Root: root})
		if err != nil {
			t.Fatal(err)
		}
		if err := enforcer.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want %q", name, err, test.want)
		}
		if err := enforcer.Check(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Check says %v", name, err)
		}
		if _, err := os.Stat(root); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was installed: %v", name, err)
		}
	}
	if err := checkLibrary([]byte("\x7fELF"), "riscv64"); err == nil {
		t.Error("an unknown architecture is accepted")
	}
}

// TestConcurrentSetup is two versions of the driver starting at once.
func TestConcurrentSetup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, root := filepath.Join(dir, "source.so"), filepath.Join(dir, "root")
	fakeLibrary(t, source, machines[thisArch], elf.ET_DYN, "v1")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			enforcer, err := New(Options{Source: source, Root: root})
			if err != nil {
				t.Error(err)
				return
			}
			if err := enforcer.Setup(t.Context()); err != nil {
				t.Error(err)
			}
			if err := enforcer.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	entries, err := os.ReadDir(filepath.Join(root, libDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v, want one version", entries, err)
	}
}

// TestD15D16_AllPathsAreConfigurable: every host path is below the given root
// or is the given region, and none is in /tmp.
func TestD15D16_AllPathsAreConfigurable(t *testing.T) {
	t.Parallel()
	got, err := edits(&enforce.Container{GPUs: []enforce.GPU{gpu("a", 1, 1)}, RegionDir: "/opt/elsewhere/region"}, "/opt/elsewhere/lib/1")
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range got.Mounts {
		if !strings.HasPrefix(mount.HostPath, "/opt/elsewhere/") {
			t.Errorf("host path %q is fixed", mount.HostPath)
		}
		if strings.HasPrefix(mount.ContainerPath, "/tmp") {
			t.Errorf("container path %q is in /tmp", mount.ContainerPath)
		}
	}
	for _, variable := range got.Env {
		if strings.Contains(variable.Value, "/tmp") {
			t.Errorf("%s points into /tmp: %q", variable.Name, variable.Value)
		}
	}
}

// TestV05_NothingOfTheHost: a container gets read-only files and its own region,
// and nothing of the host by which it could see others, such as /proc.
func TestV05_NothingOfTheHost(t *testing.T) {
	t.Parallel()
	got, err := edits(&enforce.Container{GPUs: []enforce.GPU{gpu("a", 1, 1)}, RegionDir: "/state/region"}, "/state/lib/1")
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range got.Mounts {
		if !mount.ReadOnly && mount.HostPath != "/state/region" {
			t.Errorf("the container may write to %q", mount.HostPath)
		}
		if !strings.HasPrefix(mount.HostPath, "/state/") {
			t.Errorf("the container gets %q of the host", mount.HostPath)
		}
		if !slices.Contains(mount.Options(), "nodev") || !slices.Contains(mount.Options(), "nosuid") {
			t.Errorf("mount %+v allows devices or set-user-ID programs", mount)
		}
	}
}

func TestProvision(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	container := &enforce.Container{GPUs: []enforce.GPU{gpu("a", 1, 1)}, RegionDir: filepath.Join(t.TempDir(), "regions", "one")}
	for range 2 {
		if err := enforcer.Provision(t.Context(), container); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(container.RegionDir)
	if err != nil || info.Mode().Perm() != 0o777 || info.Mode()&fs.ModeSticky == 0 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	// The file has all its blocks, so that a full disk is an error here and not a
	// signal in the container.
	region := filepath.Join(container.RegionDir, RegionFile)
	var stat syscall.Stat_t
	if err := syscall.Stat(region, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Size != 2008953 || stat.Blocks*512 < stat.Size || stat.Mode&0o777 != 0o666 {
		t.Errorf("the region has %d bytes in %d blocks and mode %o", stat.Size, stat.Blocks, stat.Mode)
	}
	if err := os.WriteFile(region, []byte("in use"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Provision(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(region); err != nil || string(content) != "in use" {
		t.Errorf("a region in use was touched: %q, %v", content, err)
	}
	// A link that a tenant left is not followed.
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Remove(region), os.Symlink(outside, region)); err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Provision(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a tenant's link was followed: %v", err)
	}
	linked := &enforce.Container{GPUs: container.GPUs, RegionDir: filepath.Join(t.TempDir(), "link")}
	if err := os.Symlink("/etc", linked.RegionDir); err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Provision(t.Context(), linked); err == nil || !strings.Contains(err.Error(), "is no directory") {
		t.Errorf("a link is followed: %v", err)
	}
}

// TestProbe has the real dynamic linker load a real library, and refuse what it
// cannot load.
func TestProbe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := filepath.Join(dir, "good.so")
	compile := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", good, "-x", "c", "-")
	compile.Stdin = strings.NewReader("int topodra_probe_double(void) { return 1; }\n")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	probe := Probe(os.Args[0])
	if err := probe(t.Context(), good); err != nil {
		t.Errorf("a good library: %v", err)
	}
	bad := filepath.Join(dir, "bad.so")
	fakeLibrary(t, bad, machines[thisArch], elf.ET_DYN, "no segments")
	for name, library := range map[string]string{"damaged": bad, "missing": filepath.Join(dir, "missing.so")} {
		if err := probe(t.Context(), library); err == nil || !strings.Contains(err.Error(), "does not load") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if err := Probe(filepath.Join(dir, "no-program"))(t.Context(), good); err == nil {
		t.Error("a missing program is no failure")
	}

	enforcer, err := New(Options{Source: good, Root: filepath.Join(dir, "root"), Probe: probe})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no such symbol")
	enforcer.options.Probe = func(context.Context, string) error { return broken }
	if err := enforcer.Setup(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got error %v", err)
	}
	if err := enforcer.Check(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a failed probe is forgotten: %v", err)
	}
}

// TestOtherParts of the interface.
func TestOtherParts(t *testing.T) {
	t.Parallel()
	enforcer := newEnforcer(t)
	if enforcer.Name() != "hami-core" || enforcer.NeedsNRI() {
		t.Errorf("got name %q, needs NRI %t", enforcer.Name(), enforcer.NeedsNRI())
	}
	if err := enforcer.Start(t.Context(), &enforce.Container{}, "/x"); err != nil {
		t.Error(err)
	}
	for priority, want := range map[api.TaskPriority]string{api.TaskPriorityHigh: "0", api.TaskPriorityLow: "1", "": "1"} {
		if got := taskPriority(priority); got != want {
			t.Errorf("priority %q: got %q", priority, got)
		}
	}
	for level, want := range map[api.LogLevel]string{api.LogLevelOff: "0", api.LogLevelError: "1", api.LogLevelWarning: "2", api.LogLevelInfo: "3", api.LogLevelDebug: "4"} {
		if got := logLevel(level); got != want {
			t.Errorf("level %q: got %q", level, got)
		}
	}
}
