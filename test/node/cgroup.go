// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// systemCgroup holds containerd, its shims, the kubelet and drivers, below the node's cgroup.
	systemCgroup = "system"
	// podCgroup is the kubelet's root, below the node's cgroup.
	podCgroup = "pods"
)

// errNoCgroups is what cgroupMounts returns on a machine without any hierarchy.
var errNoCgroups = errors.New("no cgroup hierarchy is mounted")

// cgroupMounts returns where the cgroup hierarchies are mounted, by path: one on version 2, one per controller on version 1,
// and both kinds on hybrid machines. mountinfo is what /proc/self/mountinfo holds.
func cgroupMounts(mountinfo io.Reader) ([]string, error) {
	var mounts []string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point rw,noatime master:1 - fstype source options: see proc_pid_mountinfo(5)
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(left)
		fsType, _, _ := strings.Cut(right, " ")
		if !ok || len(fields) < 5 {
			return nil, fmt.Errorf("reading the table of mounts: unexpected line %q", lines.Text())
		}
		if fsType == "cgroup" || fsType == "cgroup2" {
			mounts = append(mounts, fields[4])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the table of mounts: %w", err)
	}
	slices.Sort(mounts)
	mounts = slices.Compact(mounts)
	if len(mounts) == 0 {
		return nil, errNoCgroups
	}
	return mounts, nil
}

// cgroupPaths returns the directory of a cgroup in every hierarchy.
func cgroupPaths(mounts []string, elem ...string) []string {
	paths := make([]string, len(mounts))
	for i, mount := range mounts {
		paths[i] = filepath.Join(append([]string{mount}, elem...)...)
	}
	return paths
}
