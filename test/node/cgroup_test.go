// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writeFiles writes files below dir.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// prepareCgroup runs the function of that name on a directory that stands for a cgroup.
func prepareCgroup(t *testing.T, dir string) (said string, ok bool) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", cgroupScript+`prepare_cgroup "$1"`, "test", dir).CombinedOutput()
	return string(output), err == nil
}

// TestPrepareCgroup: both versions, of which a machine has only one, on plain files. The kernel would make the files of a new
// cgroup; here they are there before.
func TestPrepareCgroup(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files   map[string]string
		group   string
		want    map[string]string // content afterwards
		refusal string
	}{
		"version 1 without CPUs": {
			files: map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "0", "node/cpuset.cpus": "", "node/cpuset.mems": ""},
			group: "node", want: map[string]string{"node/cpuset.cpus": "0-1", "node/cpuset.mems": "0"},
		},
		"version 1 with CPUs": {
			files: map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "0", "node/cpuset.cpus": "1", "node/cpuset.mems": "0"},
			group: "node", want: map[string]string{"node/cpuset.cpus": "1"},
		},
		"version 1 of another controller": {files: map[string]string{"pids.max": "max"}, group: "node"},
		// The top has no cpuset.cpus in version 2, and an empty one below it means all CPUs.
		"version 2": {
			files: map[string]string{
				"cgroup.controllers": "cpuset cpu memory pids\n", "cgroup.subtree_control": "", "node/cpuset.cpus": "",
				"node/cgroup.controllers": "cpuset cpu memory pids\n", "node/cgroup.subtree_control": "",
			},
			group: "node", want: map[string]string{"node/cpuset.cpus": "", "node/cgroup.subtree_control": "+pids\n"},
		},
		"version 2 for processes": {
			files: map[string]string{
				"node/cgroup.controllers": "cpu memory pids\n", "node/cgroup.subtree_control": "", "node/system/cgroup.controllers": "cpu memory pids\n",
				"node/system/cgroup.subtree_control": "",
			},
			group: "node/system", want: map[string]string{"node/system/cgroup.subtree_control": ""},
		},
		"version 2 that does not hand down": {
			files:   map[string]string{"cgroup.controllers": "cpu memory pids\n", "node/cgroup.controllers": "pids\n", "node/cgroup.subtree_control": ""},
			group:   "node",
			refusal: "does not hand down the controller cpu: processes in it are in the way",
		},
		"version 2 beside version 1": {
			files: map[string]string{"cgroup.controllers": "hugetlb\n", "node/cgroup.controllers": "hugetlb\n", "node/cgroup.subtree_control": ""},
			group: "node", want: map[string]string{"node/cgroup.subtree_control": "+hugetlb\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFiles(t, dir, test.files)
			said, ok := prepareCgroup(t, filepath.Join(dir, test.group))
			if ok != (test.refusal == "") || !strings.Contains(said, test.refusal) {
				t.Errorf("got %t, %q, want %q", ok, said, test.refusal)
			}
			for file, want := range test.want {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
					t.Errorf("file %q: got %q, %v, want %q", file, got, err, want)
				}
			}
			if info, err := os.Stat(filepath.Join(dir, test.group)); err != nil || !info.IsDir() {
				t.Errorf("cgroup: got %v, %v, want a directory", info, err)
			}
		})
	}
}

// TestDelegateToNewCgroup: what is above a new cgroup of version 2 hands its controllers down before.
func TestDelegateToNewCgroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"cgroup.controllers": "hugetlb\n", "cgroup.subtree_control": ""})
	if said, ok := prepareCgroup(t, filepath.Join(dir, "node")); !ok {
		t.Errorf("got %q", said)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); err != nil || string(got) != "+hugetlb\n" {
		t.Errorf("controllers that are handed down: got %q, %v", got, err)
	}
}
