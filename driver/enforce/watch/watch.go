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
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/driver/internal/owners"
)

// Sample is what the GPU driver says at one moment.
type Sample struct {
	// GPUs and MIG devices that could be asked, in a stable order.
	GPUs []GPU

	// Processes on them, in a stable order.
	Processes []Process
}

// GPU is one GPU or MIG device as a whole. What it does not tell is nil.
type GPU struct {
	UUID string

	// MemoryUsedBytes by all processes and the GPU driver itself.
	MemoryUsedBytes *uint64

	// BusyPercent says how much of the time kernels ran, and MemoryBusyPercent
	// how much of it memory was read or written; 0 to 100.
	BusyPercent, MemoryBusyPercent *uint32

	// TellsProcesses says that all its processes are in the sample, and TellsBusy
	// that their BusyPercent is known.
	TellsProcesses, TellsBusy bool
}

// Process uses a GPU.
type Process struct {
	// PID in the namespace of the host.
	PID int

	// UUID of the GPU or MIG device.
	UUID string

	// MemoryBytes that the process uses there.
	MemoryBytes uint64

	// BusyPercent is how much of the GPU's compute it used since the sample
	// before, 0 to 100; 0 too when that is not known.
	BusyPercent uint32
}

// Source asks the GPU driver. What could not be asked is in the error, the rest
// in the result, which is nil when nothing could.
type Source interface {
	Sample(ctx context.Context) (*Sample, error)
}

// Use is what a container uses of one of its GPUs.
type Use struct {
	ContainerID string
	Owner       *owners.Owner

	// GPU is the one of the owner's.
	GPU *owners.GPU

	// MemoryBytes of all its processes.
	MemoryBytes uint64

	// BusyPercent of all its processes, 0 to 100; nil when not known.
	BusyPercent *uint32
}

// Sum sums up the sample by container and GPU, in order of container ID and UUID.
// Every known container has an entry for each of its GPUs whose processes are in
// the sample.
// containerOf returns "" for processes of no container.
func Sum(sample *Sample, containerOf func(pid int) string, known map[string]*owners.Owner) []Use {
	type key struct{ container, uuid string }
	memory, busy := map[key]uint64{}, map[key]uint64{}
	for _, process := range sample.Processes {
		if id := containerOf(process.PID); id != "" {
			memory[key{id, process.UUID}] += process.MemoryBytes
			busy[key{id, process.UUID}] += uint64(process.BusyPercent)
		}
	}
	gpus := make(map[string]*GPU, len(sample.GPUs))
	for i := range sample.GPUs {
		gpus[sample.GPUs[i].UUID] = &sample.GPUs[i]
	}
	var out []Use
	for id, owner := range known {
		for i := range owner.GPUs {
			gpu := gpus[owner.GPUs[i].UUID]
			if gpu == nil || !gpu.TellsProcesses {
				continue
			}
			at := key{id, gpu.UUID}
			use := Use{ContainerID: id, Owner: owner, GPU: &owner.GPUs[i], MemoryBytes: memory[at]}
			if gpu.TellsBusy {
				use.BusyPercent = new(uint32(min(busy[at], 100)))
			}
			out = append(out, use)
		}
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.GPU.UUID, b.GPU.UUID))
	})
	return out
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

// Compare returns what is above its limit, in the order of the uses.
func Compare(uses []Use) []Violation {
	var out []Violation
	for i := range uses {
		use := &uses[i]
		if limit := use.GPU.MemoryLimitMiB; limit > 0 && use.MemoryBytes > uint64(limit)<<20 {
			out = append(out, Violation{
				ContainerID: use.ContainerID, Owner: use.Owner, UUID: use.GPU.UUID,
				UsedMiB: int64((use.MemoryBytes + 1<<20 - 1) >> 20), LimitMiB: limit,
			})
		}
	}
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

// Observer is what Actions may be besides.
type Observer interface {
	// Looked is called after every look with all that is violated then, and with an
	// error when not everything could be seen. seen are UUIDs of the GPUs and MIG
	// devices of which everything was.
	Looked(ctx context.Context, seen []string, violations []Violation, err error)
}

// Options of a Watcher.
type Options struct {
	Source Source

	// Owners of containers.
	Owners *owners.Store

	// Proc is /proc of the host's PID namespace.
	Proc fs.FS

	Actions Actions

	// Period between two looks, and how long the source may take; 0 is
	// DefaultPeriod. Again is the least time
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

// Observation is what a look has seen.
type Observation struct {
	// At is when the source had answered.
	At time.Time

	// GPUs as in the sample, and Uses as of Sum.
	GPUs []GPU
	Uses []Use
}

// Watcher looks again and again.
type Watcher struct {
	options Options

	last   atomic.Pointer[Observation]
	failed atomic.Uint64

	// told is when Actions were last called, by container ID and UUID.
	told map[[2]string]time.Time
}

// New returns a Watcher.
func New(options Options) (*Watcher, error) {
	if options.Source == nil || options.Owners == nil || options.Proc == nil || options.Actions == nil {
		return nil, errors.New("configuring the watch on GPU memory: source, owners, proc or actions are missing")
	}
	options.Period, options.Again = cmp.Or(options.Period, DefaultPeriod), cmp.Or(options.Again, DefaultAgain)
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Watcher{options: options, told: map[[2]string]time.Time{}}, nil
}

// Run looks at once and then periodically until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	ticker := time.NewTicker(w.options.Period)
	defer ticker.Stop()
	for {
		if _, err := w.Look(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking at what containers use of GPUs failed, at least in part")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Last returns the last observation, nil before the first. It may be old: a source
// that hangs observes nothing. Safe for concurrent use.
func (w *Watcher) Last() *Observation { return w.last.Load() }

// Failed counts looks at which something could not be asked or read. Safe for
// concurrent use.
func (w *Watcher) Failed() uint64 { return w.failed.Load() }

// Look looks once, calls Actions and, if they are one, the Observer, and returns what is violated now.
func (w *Watcher) Look(ctx context.Context) ([]Violation, error) {
	asked, cancel := context.WithTimeout(ctx, w.options.Period)
	defer cancel()
	sample, errSource := w.options.Source.Sample(asked)
	known, errOwners := w.options.Owners.List()
	err := errors.Join(errSource, errOwners)
	if err != nil {
		w.failed.Add(1)
	}
	if sample == nil {
		w.looked(ctx, nil, nil, err)
		return nil, err // What was told before may still hold.
	}
	now := w.options.Now()
	observation := &Observation{At: now, GPUs: sample.GPUs, Uses: Sum(sample, w.containerOf, known)}
	w.last.Store(observation)
	violations := Compare(observation.Uses)
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
	var seen []string
	for i := range sample.GPUs {
		// A container that is not known may be on any GPU.
		if sample.GPUs[i].TellsProcesses && errOwners == nil {
			seen = append(seen, sample.GPUs[i].UUID)
		}
	}
	w.looked(ctx, seen, violations, err)
	return violations, err
}

// looked tells whoever wants to hear of every look.
func (w *Watcher) looked(ctx context.Context, seen []string, violations []Violation, err error) {
	if observer, ok := w.options.Actions.(Observer); ok {
		observer.Looked(ctx, seen, violations, err)
	}
}

// containerOf reads the cgroup of a process; one that has ended has none.
func (w *Watcher) containerOf(pid int) string {
	content, err := fs.ReadFile(w.options.Proc, strconv.Itoa(pid)+"/cgroup")
	if err != nil {
		return ""
	}
	return ContainerID(string(content))
}
