// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/internal/owners"
)

// versionedEnforcer mounts a file of a version.
type versionedEnforcer struct {
	*fakeEnforcer
	dir string
}

func (e *versionedEnforcer) Edits(*enforce.Container) (enforce.Edits, error) {
	return enforce.Edits{Mounts: []enforce.Mount{{HostPath: e.dir + "/x.so", ContainerPath: "/x.so", ReadOnly: true}}}, nil
}

// TestOwnerKnowsVersion: it is written down which version a container has, when it
// is made, and again by what it has when the driver is of another version.
func TestOwnerKnowsVersion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	state := t.TempDir()
	first, second := filepath.Join(state, "lib", "v1"), filepath.Join(state, "lib", "v2")
	enforcer := &versionedEnforcer{fakeEnforcer: f.enforcer, dir: first}
	store := owners.NewStore(filepath.Join(state, "containers"))
	plugin := NewPlugin(f.claims, enforcer, f.events, store)
	made := container("id-1", f.claims.add("claim", "r", "GPU-1", "0000:10:00.0", 10))
	require := func(what string) {
		t.Helper()
		known, err := store.List()
		if err != nil || known["id-1"] == nil {
			t.Fatalf("%s: got %v, %v", what, known, err)
		}
		if diff := cmp.Diff([]string{first + "/x.so"}, known["id-1"].Paths); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	if _, _, err := plugin.CreateContainer(t.Context(), pod(), made); err != nil {
		t.Fatal(err)
	}
	require("made")
	if err := store.Remove("id-1"); err != nil {
		t.Fatal(err)
	}
	enforcer.dir = second
	running := container("id-1", made.GetCDIDevices()[0].GetName())
	running.Mounts = append(running.Mounts, &api.Mount{Destination: "/x.so", Source: first + "/x.so"})
	if _, err := plugin.Synchronize(t.Context(), []*api.PodSandbox{pod()}, []*api.Container{running}); err != nil {
		t.Fatal(err)
	}
	require("found running")
}
