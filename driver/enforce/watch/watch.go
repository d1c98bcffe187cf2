// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/internal/owners"
)

// Process uses memory of a GPU.
type Process struct {
	// PID in the namespace of the host.
	PID int

	// UUID of the GPU or MIG device.
	UUID string

	// MemoryBytes that the process uses there.
	MemoryBytes uint64
}

// Processes asks the GPU driver. What could not be asked is in the error, the
// rest in the result.
type Processes interface {
	Processes(ctx context.Context) ([]Process, error)
}

// Violation is a container that uses more memory of a GPU than it has.
type Violation struct {
	ContainerID string
	Owner       *owners.Owner
	UUID        string

	// UsedMiB, rounded up, and LimitMiB in units of 1,048,576 bytes.
	UsedMiB, LimitMiB int64
}

// String names the violation for messages.
func (v *Violation) String() string {
	return fmt.Sprintf("container %q of pod \"%s/%s\" uses %d MiB of GPU %q, its limit is %d MiB",
		v.Owner.Container, v.Owner.Namespace, v.Owner.Pod, v.UsedMiB, v.UUID, v.LimitMiB)
}

// Compare sums up the processes by container and GPU, and returns what is above
// its limit, in order of container ID and UUID. containerOf returns "" for
// processes of no container.
func Compare(processes []Process, containerOf func(pid int) string, known map[string]*owners.Owner) []Violation {
	type key struct{ container, uuid string }
	used := map[key]uint64{}
	for _, process := range processes {
		if id := containerOf(process.PID); id != "" {
			used[key{id, process.UUID}] += process.MemoryBytes
		}
	}
	var out []Violation
	for at, bytes := range used {
		owner := known[at.container]
		if owner == nil {
			continue
		}
		for _, gpu := range owner.GPUs {
			limit := gpu.MemoryLimitMiB
			if gpu.UUID == at.uuid && limit > 0 && bytes > uint64(limit)<<20 {
				out = append(out, Violation{ContainerID: at.container, Owner: owner, UUID: at.uuid, UsedMiB: int64((bytes + 1<<20 - 1) >> 20), LimitMiB: limit})
			}
		}
	}
	slices.SortFunc(out, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}

// ContainerID finds the runtime's ID of a container in the content of
// /proc/<pid>/cgroup; "" for processes of the host. With several hierarchies the
// first that names a container counts.
func ContainerID(cgroups string) string {
	for line := range strings.Lines(cgroups) {
		_, path, found := strings.Cut(strings.TrimSpace(line), ":")
		if found {
			_, path, found = strings.Cut(path, ":")
		}
		if !found || !strings.Contains(path, "kubepods") {
			continue
		}
		// The last part with an ID: a container may make cgroups of its own below.
		for part := range strings.SplitSeq(path, "/") {
			part = strings.TrimSuffix(part, ".scope")
			if i := strings.LastIndexByte(part, '-'); i >= 0 {
				part = part[i+1:]
			}
			if isContainerID(part) {
				return part
			}
		}
	}
	return ""
}

// isContainerID says whether the text is 64 hexadecimal digits, as IDs of
// containerd and CRI-O are.
func isContainerID(text string) bool {
	return len(text) == 64 && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'f')
	})
}

// Actions is what is done about violations.
type Actions interface {
	// Violated is called for a violation when it begins, and again while it
	// lasts, but not more often than every Options.Again.
	Violated(ctx context.Context, violation *Violation)
}

// Options of a Watcher.
type Options struct {
	Processes Processes

	// Owners of containers.
	Owners *owners.Store

	// Proc is /proc of the host's PID namespace.
	Proc fs.FS

	Actions Actions

	// Period between two looks; 0 is DefaultPeriod. Again is the least time
	// between two calls of Actions for the same violation; 0 is DefaultAgain.
	Period, Again time.Duration

	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Defaults of Options.
const (
	DefaultPeriod = 10 * time.Second
	DefaultAgain  = 5 * time.Minute
)

// Watcher looks again and again.
type Watcher struct {
	options Options

	// told is when Actions were last called, by container ID and UUID.
	told map[[2]string]time.Time
}

// New returns a Watcher.
func New(options Options) (*Watcher, error) {
	if options.Processes == nil || options.Owners == nil || options.Proc == nil || options.Actions == nil {
		return nil, errors.New("configuring the watch on GPU memory: processes, owners, proc or actions are missing")
	}
	options.Period, options.Again = cmp.Or(options.Period, DefaultPeriod), cmp.Or(options.Again, DefaultAgain)
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Watcher{options: options, told: map[[2]string]time.Time{}}, nil
}

// Run looks until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	ticker := time.NewTicker(w.options.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := w.Look(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking at what containers use of GPUs failed in part")
		}
	}
}

// Look looks once, calls Actions, and returns what is violated now.
func (w *Watcher) Look(ctx context.Context) ([]Violation, error) {
	processes, errProcesses := w.options.Processes.Processes(ctx)
	known, errOwners := w.options.Owners.List()
	violations := Compare(processes, w.containerOf, known)
	now := w.options.Now()
	present := map[[2]string]bool{}
	for i := range violations {
		at := [2]string{violations[i].ContainerID, violations[i].UUID}
		present[at] = true
		if last, told := w.told[at]; told && now.Sub(last) < w.options.Again {
			continue
		}
		w.told[at] = now
		w.options.Actions.Violated(ctx, &violations[i])
	}
	maps.DeleteFunc(w.told, func(at [2]string, _ time.Time) bool { return !present[at] })
	return violations, errors.Join(errProcesses, errOwners)
}

// containerOf reads the cgroup of a process; one that has ended has none.
func (w *Watcher) containerOf(pid int) string {
	content, err := fs.ReadFile(w.options.Proc, strconv.Itoa(pid)+"/cgroup")
	if err != nil {
		return ""
	}
	return ContainerID(string(content))
}
