// SPDX-License-Identifier: Apache-2.0

package nvmllimit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
)

// fakeLimiter remembers limits; offset is added to what it gives back.
type fakeLimiter struct {
	limits                      map[string]uint64
	supported, setErr, queryErr error
	offset                      uint64
}

func (f *fakeLimiter) Supported() error { return f.supported }

func (f *fakeLimiter) SetMemoryLimit(uuid, cgroup string, bytes uint64) error {
	if f.setErr == nil {
		f.limits[uuid+" "+filepath.Base(cgroup)] = bytes
	}
	return f.setErr
}

func (f *fakeLimiter) MemoryLimit(uuid, cgroup string) (uint64, error) {
	return f.limits[uuid+" "+filepath.Base(cgroup)] + f.offset, f.queryErr
}

func container(limits ...*checkpoint.Limit) *enforce.Container {
	out := &enforce.Container{}
	for i, limit := range limits {
		out.GPUs = append(out.GPUs, enforce.GPU{UUID: "GPU-" + string(rune('a'+i)), Limit: limit})
	}
	return out
}

func TestStart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "pod"), 0o700); err != nil {
		t.Fatal(err)
	}
	mixed := container(&checkpoint.Limit{MemoryMiB: 10}, nil, &checkpoint.Limit{MemoryMiB: 3, CoresPercent: 100})
	limiter := &fakeLimiter{limits: map[string]uint64{}}
	enforcer := New(limiter, root)
	if err := enforcer.Start(t.Context(), mixed, "/pod"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]uint64{"GPU-a pod": 10 << 20, "GPU-c pod": 3 << 20}, limiter.limits); diff != "" {
		t.Error(diff)
	}
	if err := enforcer.Start(t.Context(), container(nil), ""); err != nil {
		t.Errorf("whole GPUs: %v", err)
	}
	broken := errors.New("driver says no")
	for name, test := range map[string]struct {
		limiter fakeLimiter
		cgroup  string
		want    string
	}{
		"cannot set":     {fakeLimiter{setErr: broken}, "/pod", `limiting memory of GPU "GPU-a"`},
		"cannot read":    {fakeLimiter{queryErr: broken}, "/pod", `reading back the memory limit of GPU "GPU-a"`},
		"other value":    {fakeLimiter{offset: 1}, "/pod", "set 10485760 bytes, the driver says 10485761"},
		"no cgroup":      {fakeLimiter{}, "", "cgroup is unknown"},
		"missing cgroup": {fakeLimiter{}, "/elsewhere", "looking for the container's cgroup"},
	} {
		test.limiter.limits = map[string]uint64{}
		if err := New(&test.limiter, root).Start(t.Context(), mixed, test.cgroup); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want %q", name, err, test.want)
		}
	}
}

func TestEditsRefusesComputeLimits(t *testing.T) {
	t.Parallel()
	enforcer := New(&fakeLimiter{}, "/")
	for cores, fine := range map[int64]bool{0: true, 1: false, 50: false, 99: false, 100: true} {
		got, err := enforcer.Edits(container(&checkpoint.Limit{MemoryMiB: 1, CoresPercent: cores}))
		if (err == nil) != fine || len(got.Env)+len(got.Mounts) > 0 {
			t.Errorf("%d%%: got %+v, %v", cores, got, err)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	limiter := &fakeLimiter{}
	enforcer := New(limiter, root)
	if err := enforcer.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("cgroup v1: got error %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Check(t.Context()); err != nil {
		t.Error(err)
	}
	limiter.supported = errors.New("symbol missing")
	if err := enforcer.Check(t.Context()); !errors.Is(err, limiter.supported) {
		t.Errorf("got error %v", err)
	}
	if enforcer.Name() != Name || !enforcer.NeedsNRI() || enforcer.OwnsEnv("CUDA_DEVICE_ORDER") {
		t.Error("name, NeedsNRI or OwnsEnv is wrong")
	}
	if err := enforcer.Provision(t.Context(), container()); err != nil {
		t.Error(err)
	}
}
