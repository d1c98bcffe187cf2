// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// footprintDirs are where nodes and their tools are known to leave files.
var footprintDirs = []string{"/run", "/run/netns", "/etc", "/etc/cni", "/opt", "/var/lib", "/var/lib/cni", "/var/log"}

// footprintSettings are what kubelets and network plugins set for the whole machine.
var footprintSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
}

// footprintPatience is how long what dies with a node may take: links of dead network namespaces go a moment later than these.
const footprintPatience = 20 * time.Second

// Footprint lists what a node could leave behind on this machine: mounts, cgroups at the top of each hierarchy, network links,
// entries of well-known directories and kernel settings.
func Footprint() (map[string][]string, error) {
	found := map[string][]string{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		found["mounts"] = append(found["mounts"], strings.TrimSpace(line))
	}
	if found["cgroups"], err = topCgroups(mounts); err != nil {
		return nil, fmt.Errorf("listing cgroups: %w", err)
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network links: %w", err)
	}
	for _, link := range links {
		found["links"] = append(found["links"], fmt.Sprintf("%d %s", link.Index, link.Name))
	}
	for _, dir := range footprintDirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listing files: %w", err)
		}
		for _, entry := range entries {
			found[dir] = append(found[dir], entry.Name())
		}
	}
	for _, setting := range footprintSettings {
		value, err := os.ReadFile(filepath.Join("/proc/sys", setting))
		if err != nil {
			return nil, fmt.Errorf("reading kernel settings: %w", err)
		}
		found["settings"] = append(found["settings"], setting+"="+strings.TrimSpace(string(value)))
	}
	return found, nil
}

// topCgroups lists the cgroups at the top of each hierarchy. What is further down comes and goes with other programs; nodes and
// container runtimes begin at the top.
func topCgroups(mountinfo []byte) ([]string, error) {
	hierarchies, err := cgroupMounts(bytes.NewReader(mountinfo))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, hierarchy := range hierarchies {
		entries, err := os.ReadDir(hierarchy)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() {
				found = append(found, filepath.Join(hierarchy, entry.Name()))
			}
		}
	}
	return found, nil
}

// CheckFootprint reports, as an error, how this machine differs from an earlier [Footprint], and what is left of a node's
// directory and of processes that mention it. It waits a while for what is about to go.
func CheckFootprint(before map[string][]string, dir string) error {
	var errs []error
	for deadline := time.Now().Add(footprintPatience); ; time.Sleep(100 * time.Millisecond) {
		now, err := Footprint()
		errs = append(compareFootprints(before, now), err, checkNoTrace(dir))
		if err = errors.Join(errs...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// compareFootprints lists the differences.
func compareFootprints(before, after map[string][]string) []error {
	var errs []error
	keys := map[string]bool{}
	for _, footprint := range []map[string][]string{before, after} {
		for key := range footprint {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		for _, line := range after[key] {
			if !slices.Contains(before[key], line) {
				errs = append(errs, fmt.Errorf("left behind on this machine: %s: %q", key, line))
			}
		}
		for _, line := range before[key] {
			if !slices.Contains(after[key], line) {
				errs = append(errs, fmt.Errorf("taken from this machine: %s: %q", key, line))
			}
		}
	}
	return errs
}

// checkNoTrace reports, as an error, what is left of a node's directory. Whatever the node started has it among its arguments
// or in its environment.
func checkNoTrace(dir string) error {
	var errs []error
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("directory %q of the node: want it gone: %w", dir, cmp.Or(err, fs.ErrExist)))
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	own := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, process := range processes {
		command, cmdErr := os.ReadFile(filepath.Join(process, "cmdline"))
		environment, envErr := os.ReadFile(filepath.Join(process, "environ"))
		if process != own && errors.Join(cmdErr, envErr) == nil && strings.Contains(string(command)+string(environment), dir) {
			errs = append(errs, fmt.Errorf("process %s is still there: %q", process, strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	return errors.Join(errs...)
}
