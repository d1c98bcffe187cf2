// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// regionSize is what HAMi-core maps, in bytes.
const regionSize = 2008953

// checkReserved checks that the file which a container's processes map has all its blocks: they would die of a full disk.
func (f *fixture) checkReserved(containerID string) {
	f.Helper()
	files, err := filepath.Glob(f.path("regions", "containers", containerID, "*"))
	if err != nil {
		f.Fatal(err)
	}
	found := 0
	for _, file := range files {
		var stat syscall.Stat_t
		if err := syscall.Stat(file, &stat); err != nil {
			f.Fatal(err)
		}
		if stat.Size != regionSize {
			continue
		}
		found++
		if stat.Blocks*512 < regionSize {
			f.Errorf("region %q: %d of %d bytes are on disk", file, stat.Blocks*512, stat.Size)
		}
	}
	if found != 1 {
		f.Errorf("files of %d bytes among %q: got %d, want one", regionSize, files, found)
	}
}

// record is what the driver writes down about a container, for those who look from outside. The names of its fields are those
// of the file, which other programs read, too.
type record struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	PodUID    string      `json:"podUID"`
	Container string      `json:"container"`
	GPUs      []recordGPU `json:"gpus"`
}

type recordGPU struct {
	UUID              string   `json:"uuid"`
	Claims            []string `json:"claims"`
	MemoryLimitMiB    int64    `json:"memoryLimitMiB"`
	CoresLimitPercent int64    `json:"coresLimitPercent"`
}

// record computes from the API what should be written down about a container all of whose GPUs are of one claim.
func (f *fixture) record(pod *corev1.Pod, container, claim string) record {
	f.Helper()
	r := record{Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Container: container}
	for _, s := range f.expected(pod, container) {
		gpu := recordGPU{UUID: s.UUID, Claims: []string{claim}}
		if s.Limited {
			gpu.MemoryLimitMiB = s.MemoryMiB
			if s.Cores < 100 {
				gpu.CoresLimitPercent = s.Cores
			}
		}
		r.GPUs = append(r.GPUs, gpu)
	}
	return r
}

// checkRecords checks what is written down about the containers that run.
func (f *fixture) checkRecords(want ...record) {
	f.Helper()
	containers, err := f.node.Containers(f.ctx, "")
	if err != nil {
		f.Fatal(err)
	}
	var got []record
	for _, c := range containers {
		if !c.Running {
			continue
		}
		data, err := os.ReadFile(f.path("containers", c.ID+".json"))
		if err != nil {
			f.Fatal(err)
		}
		var r record
		if err := json.Unmarshal(data, &r); err != nil {
			f.Fatal(err)
		}
		got = append(got, r)
	}
	byPod := func(a, b record) int { return strings.Compare(a.Pod+"/"+a.Container, b.Pod+"/"+b.Container) }
	slices.SortFunc(got, byPod)
	slices.SortFunc(want, byPod)
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("what is written down about containers (-want +got):\n%s", diff)
	}
}
