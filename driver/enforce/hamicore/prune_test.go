// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// versions lists what is below the root.
func versions(t *testing.T, root string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, libDir))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}
	return out
}

// setup installs a version with the text, as a process of its own would.
func setup(t *testing.T, root, text string) *Enforcer {
	t.Helper()
	source := filepath.Join(t.TempDir(), "source.so")
	fakeLibrary(t, source, machines[thisArch], elf.ET_DYN, text)
	enforcer, err := New(Options{Source: source, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := enforcer.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return enforcer
}

// TestPruneLeavesOtherProcesses: during an update the old driver's version stays
// until that driver has ended, and what is being installed is left alone.
func TestPruneLeavesOtherProcesses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	before, after := setup(t, root, "v1"), setup(t, root, "v2")
	none := func(string) bool { return false }
	installing := filepath.Join(root, libDir, installTempPrefix+"123")
	if err := os.Mkdir(installing, 0o700); err != nil {
		t.Fatal(err)
	}
	both := []string{filepath.Base(installing), filepath.Base(before.Dir()), filepath.Base(after.Dir())}
	slices.Sort(both)
	if err := errors.Join(after.Prune(none), before.Prune(none)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(both, versions(t, root)); diff != "" {
		t.Errorf("while both run: %s", diff)
	}
	if err := errors.Join(before.Check(t.Context()), after.Check(t.Context())); err != nil {
		t.Error(err)
	}
	if err := errors.Join(before.Close(), before.Close(), after.Prune(none)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Base(installing), filepath.Base(after.Dir())}, versions(t, root)); diff != "" {
		t.Errorf("after the update: %s", diff)
	}
	if err := after.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if before.Check(t.Context()) == nil {
		t.Error("an enforcer that was closed enforces")
	}
}

// TestPruneAgainstSetup: a version that is set up while others prune is there
// afterwards, whoever was faster.
func TestPruneAgainstSetup(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	pruner := setup(t, root, "v0")
	for range 50 {
		var group sync.WaitGroup
		stop := make(chan struct{})
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := pruner.Prune(func(string) bool { return false }); err != nil {
					t.Error(err)
				}
			}
		})
		enforcer := setup(t, root, "v1")
		close(stop)
		group.Wait()
		if err := enforcer.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := enforcer.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
