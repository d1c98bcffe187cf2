// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
	"github.com/topodra/topodra/driver/enforce/hamicore"
	"github.com/topodra/topodra/driver/enforce/hamicore/region"
	"github.com/topodra/topodra/driver/internal/owners"
)

// regionAge is how long what was read of a region is told again. It keeps many
// scrapes from costing more than a few.
const regionAge = 5 * time.Second

// place is a container with a region.
type place struct {
	path string

	// gpus are what its series are about, as the container counts its GPUs.
	gpus []key
}

// places lists the containers that have a region, each path once. Pure.
func places(document *checkpoint.Document, known map[string]*owners.Owner, where Regions) []place {
	var out []place
	for id, owner := range known {
		if !slices.ContainsFunc(owner.GPUs, func(g owners.GPU) bool { return g.MemoryLimitMiB > 0 }) {
			continue
		}
		here := place{path: filepath.Join(where.OfContainer(id), hamicore.RegionFile)}
		for i := range owner.GPUs {
			here.gpus = append(here.gpus, keyOf(owner, &owner.GPUs[i]))
		}
		out = append(out, here)
	}
	if document == nil {
		return out
	}
	for uid, claim := range document.Claims {
		for _, group := range claim.Groups {
			if here, ok := placeOfGroup(uid, claim, &group, where); ok {
				out = append(out, here)
			}
		}
	}
	return out
}

// placeOfGroup is the place of a container whose limits are in the CDI spec.
func placeOfGroup(uid types.UID, claim *checkpoint.Claim, group *checkpoint.Group, where Regions) (place, bool) {
	pod, name, _ := strings.Cut(group.Container, "/")
	at := slices.IndexFunc(claim.Consumers, func(c checkpoint.Consumer) bool { return string(c.UID) == pod })
	if at < 0 {
		return place{}, false
	}
	var devices []checkpoint.Device
	for _, position := range group.Devices {
		devices = append(devices, claim.Devices[position])
	}
	view, err := enforce.NewContainer(devices, "")
	if err != nil {
		return place{}, false // It was refused, so it has none.
	}
	here := place{path: filepath.Join(where.OfClaim(uid, group.Container), hamicore.RegionFile)}
	for i := range view.GPUs {
		here.gpus = append(here.gpus, key{claim.Namespace, claim.Consumers[at].Name, name, claim.Name, view.GPUs[i].UUID})
	}
	return here, true
}

// keyOf returns what a series of the container's GPU is about.
func keyOf(owner *owners.Owner, gpu *owners.GPU) key {
	return key{owner.Namespace, owner.Pod, owner.Container, strings.Join(gpu.Claims, ","), gpu.UUID}
}

// Regions says where containers have their regions, as directories of this
// process's own file system.
type Regions struct {
	// OfContainer is for containers that got their limits over NRI, OfClaim for
	// those, "pod UID/name", that got them by a claim's CDI spec.
	OfContainer func(id string) string
	OfClaim     func(claim types.UID, container string) string
}

// report is what a container says about one of its devices.
type report struct {
	memory     region.Memory
	limitBytes uint64
	processes  int
	lastKernel time.Time
}

// reading is what is remembered of a region.
type reading struct {
	at      time.Time
	content *region.Region // nil if there was nothing to read
}

// regionReader reads regions and counts. It is safe for concurrent use.
type regionReader struct {
	read func(path string) (*region.Region, error)

	mu       sync.Mutex
	readings map[string]reading
	done     uint64
	skipped  map[region.Reason]uint64
}

// newRegionReader returns a reader that has read nothing yet.
func newRegionReader() *regionReader {
	return &regionReader{read: region.Read, readings: map[string]reading{}, skipped: map[region.Reason]uint64{}}
}

// reports reads the regions and sums up by device. Places that are not asked for
// are forgotten.
func (r *regionReader) reports(places []place, now time.Time) map[key]*report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[key]*report{}
	readings := make(map[string]reading, len(places))
	for _, here := range places {
		last, ok := r.readings[here.path]
		if !ok || now.Sub(last.at) >= regionAge || now.Before(last.at) {
			last = reading{at: now, content: r.readOne(here)}
		}
		readings[here.path] = last
		if last.content != nil {
			addReports(out, here.gpus, last.content)
		}
	}
	r.readings = readings
	return out
}

// readOne reads a region and counts; nil is one that is not there, is not filled
// in, or was skipped.
func (r *regionReader) readOne(here place) *region.Region {
	content, err := r.read(here.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The container has removed it, or has not begun yet.
	}
	if err == nil && content.GPUs > len(here.gpus) {
		err = &region.Error{Reason: region.ReasonCounts, Err: fmt.Errorf("it counts %d GPUs, the container has %d", content.GPUs, len(here.gpus))}
	}
	if err != nil {
		r.skipped[region.ReasonOf(err)]++
		return nil
	}
	r.done++
	r.skipped[region.ReasonTorn] += uint64(content.Torn)
	if content.GPUs == 0 {
		return nil
	}
	return content
}

// addReports adds what a region says.
func addReports(out map[key]*report, gpus []key, content *region.Region) {
	for i, sum := range content.Memory() {
		of := get(out, gpus[i])
		of.memory.Context += sum.Context
		of.memory.Module += sum.Module
		of.memory.Buffer += sum.Buffer
		of.memory.Total += sum.Total
		of.limitBytes += content.MemoryLimitBytes[i]
		for _, process := range content.Processes {
			if process.Memory[i].Total > 0 {
				of.processes++
			}
		}
		if content.LastKernel.After(of.lastKernel) {
			of.lastKernel = content.LastKernel
		}
	}
}

// sendCounts tells how much was read and skipped, all reasons from the start.
func (r *regionReader) sendCounts(out sink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out.send(regionsRead, float64(r.done))
	for _, reason := range region.Reasons() {
		out.send(regionsSkipped, float64(r.skipped[reason]), string(reason))
	}
}

// sendReports tells what containers say about themselves.
func sendReports(out sink, reports map[key]*report) {
	for at, of := range reports {
		out.send(reportedMemoryUsed, float64(of.memory.Total), at.labels()...)
		out.send(reportedMemoryLimit, float64(of.limitBytes), at.labels()...)
		out.send(reportedProcesses, float64(of.processes), at.labels()...)
		if !of.lastKernel.IsZero() {
			out.send(reportedLastKernel, float64(of.lastKernel.Unix()), at.labels()...)
		}
	}
}
