// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/enforce/hamicore"
	"github.com/topodra/topodra/driver/internal/owners"
)

// installed sets up HAMi-core below root with a library of its own version and
// returns it with the version's directory.
func installed(t *testing.T, root, version string) (*hamicore.Enforcer, string) {
	t.Helper()
	header := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]),
		Version: 1, Ehsize: 64, Shentsize: 64}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	content, err := binary.Append(nil, binary.LittleEndian, header)
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "libvgpu.so")
	if err := os.WriteFile(source, append(content, version...), 0o600); err != nil {
		t.Fatal(err)
	}
	enforcer, err := hamicore.New(hamicore.Options{Source: source, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return enforcer, enforcer.Dir()
}

// writeSpec writes the spec of a claim whose limits are in the spec.
func writeSpec(t *testing.T, dir *cdi.Dir, claim types.UID, enforcer enforce.Enforcer) {
	t.Helper()
	container := &enforce.Container{GPUs: []enforce.GPU{{UUID: "GPU-1", Limit: &checkpoint.Limit{MemoryMiB: 1}}}, RegionDir: t.TempDir(), Settings: api.EffectiveSharing(nil, nil)}
	edits, err := enforcer.Edits(container)
	if err != nil {
		t.Fatal(err)
	}
	base, err := cdi.Simulated{}.Edits(t.Context(), []string{"GPU-1"})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.Build(base, []cdi.Device{{Name: cdi.Name(claim, "r", "gpu-1", ""), UUID: "GPU-1", DeviceName: "gpu-1", Extra: edits}})
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(claim, spec); err != nil {
		t.Fatal(err)
	}
}

// TestPruneVersions: of three versions, one that a container has mounted and one
// that a claim's spec refers to stay until container and claim are gone, and then
// for a while. What is not certain keeps all.
func TestPruneVersions(t *testing.T) {
	t.Parallel()
	state, cdiDir := t.TempDir(), filepath.Join(t.TempDir(), "cdi")
	root := filepath.Join(state, "hami-core")
	specs, err := cdi.NewDir(cdiDir)
	if err != nil {
		t.Fatal(err)
	}
	store := owners.NewStore(filepath.Join(state, ownersDir))
	container := func(paths ...string) *owners.Owner {
		return &owners.Owner{Container: "running", GPUs: []owners.GPU{{UUID: "GPU-1", MemoryLimitMiB: 1}}, Paths: paths}
	}
	before, first := installed(t, root, "v1")
	between, second := installed(t, root, "v2")
	current, third := installed(t, root, "v3")
	writeSpec(t, specs, "claim", between)
	if err := errors.Join(store.Put("running", container(first+"/libvgpu.so")), before.Close(), between.Close()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	v := &versions{enforcer: current, cdiDir: cdiDir, owners: store, now: func() time.Time { return now }}
	require := func(what string, later time.Duration, want ...string) {
		t.Helper()
		now = now.Add(later)
		v.prune(t.Context())
		got, err := filepath.Glob(filepath.Join(root, "lib", "*"))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	require("at the start", 0, first, second, third)
	require("in use", time.Hour, first, second, third)
	if err := specs.Remove("claim"); err != nil {
		t.Fatal(err)
	}
	require("no spec any more", time.Hour, first, second, third)
	require("for a moment", pruneAfter-time.Second, first, second, third)
	// Somebody uses it again, so that the time begins anew.
	again, dir := installed(t, root, "v2")
	writeSpec(t, specs, "claim", again)
	if err := again.Close(); err != nil || dir != second {
		t.Fatalf("it is in %q and was in %q, %v", dir, second, err)
	}
	require("used again", time.Second, first, second, third)
	if err := specs.Remove("claim"); err != nil {
		t.Fatal(err)
	}
	require("unused again", time.Second, first, second, third)
	require("not yet", pruneAfter-time.Second, first, second, third)
	require("second is old", time.Second, first, third)
	// What cannot be read may be in use by anything.
	if err := store.Put("running", container()); err != nil {
		t.Fatal(err)
	}
	require("a container of which nothing is known", time.Hour, first, third)
	if err := os.WriteFile(specs.Path("broken"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Remove("running"); err != nil {
		t.Fatal(err)
	}
	require("a spec that cannot be read", time.Hour, first, third)
	if err := specs.Remove("broken"); err != nil {
		t.Fatal(err)
	}
	require("the container is gone", time.Hour, first, third)
	require("first is old", pruneAfter, third)
	require("for good", 24*time.Hour, third)
	if err := current.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// pruningEnforcer counts how often it is asked to prune.
type pruningEnforcer struct {
	fakeEnforcer
	asked int
}

func (e *pruningEnforcer) Prune(func(dir string) bool) error {
	e.asked++
	return nil
}

// TestReconcilePrunes: old versions are looked for at the start and after each
// reconciliation that worked, and not when it is unknown what is in use.
func TestReconcilePrunes(t *testing.T) {
	t.Parallel()
	config := runConfig(t, step{snapshot: snapshotOf("a")})
	enforcer := &pruningEnforcer{}
	config.Claims = &ClaimsConfig{StateDir: t.TempDir(), CDIDir: t.TempDir(), Base: cdi.Simulated{}, Enforcer: enforcer, ReconcilePeriod: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	started, err := startClaims(ctx, &config, newInventory(config.Source, config.Publish), &eventSink{recorder: record.NewFakeRecorder(10), node: &corev1.ObjectReference{Kind: "Node", Name: "node-a"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // The loop does not come in between.
	started.wait()
	if enforcer.asked != 1 {
		t.Errorf("at the start it was asked %d times", enforcer.asked)
	}
	started.reconcile(t.Context())
	if enforcer.asked != 2 {
		t.Errorf("after a reconciliation it was asked %d times", enforcer.asked)
	}
	if err := os.WriteFile(filepath.Join(config.Claims.CDIDir, "k8s.gpu.topodra.dev-claim_x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	started.pruning.prune(t.Context())
	if enforcer.asked != 2 {
		t.Error("it was asked although a spec cannot be read")
	}
}
