// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// SimulationSuffix turns the path of a machine's file into that of the file with
// its simulated faults and MIG devices.
const SimulationSuffix = ".simulation.json"

// SimulationVersion is the only version of that file so far.
const SimulationVersion = "simulation.gpu.topodra.dev/v1"

// maxSimulation bounds the size of the file in bytes.
const maxSimulation = 1 << 20

// Simulation is what a recorded machine pretends besides its links.
type Simulation struct {
	APIVersion string `json:"apiVersion"`

	// NVML is "unavailable" when nothing can be asked; "" is as usual.
	NVML string `json:"nvml,omitempty"`

	// GPUs with something special, each at most once.
	GPUs []SimulatedGPU `json:"gpus,omitempty"`

	// Links that are down.
	Links []SimulatedLinks `json:"links,omitempty"`
}

// SimulatedGPU is what is special about a GPU.
type SimulatedGPU struct {
	// Index in the recording.
	Index int `json:"index"`

	// XIDs that the kernel driver reports, again and again.
	XIDs []uint64 `json:"xids,omitempty"`

	// Lost GPUs do not answer; Hangs means that they never do.
	Lost  bool `json:"lost,omitempty"`
	Hangs bool `json:"hangs,omitempty"`

	// UncorrectedErrors so far.
	UncorrectedErrors uint64 `json:"uncorrectedErrors,omitempty"`

	// Remap is "pending", "failed" or "".
	Remap string `json:"remap,omitempty"`

	// Fabric is a health.FabricState, Recovery a health.Recovery.
	Fabric   string `json:"fabric,omitempty"`
	Recovery string `json:"recovery,omitempty"`

	// MIG puts the GPU into MIG mode with these devices; null does not.
	MIG []SimulatedMIG `json:"mig"`
}

// SimulatedMIG is a MIG device.
type SimulatedMIG struct {
	// Profile such as "1g.10gb" or "1c.3g.40gb".
	Profile string `json:"profile"`

	// GPUInstance and ComputeInstance tell MIG devices of a GPU apart.
	GPUInstance     int `json:"gpuInstance"`
	ComputeInstance int `json:"computeInstance,omitempty"`
}

// SimulatedLinks are NVLinks between two GPUs that are down.
type SimulatedLinks struct {
	// GPUs are indices in the recording.
	GPUs [2]int `json:"gpus"`

	// Down is how many links; those that there are at most.
	Down int `json:"down"`
}

// LoadSimulation reads the file beside the machine's. A missing file is an empty
// simulation.
func LoadSimulation(machinePath string) (*Simulation, error) {
	path := machinePath + SimulationSuffix
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Simulation{APIVersion: SimulationVersion}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading simulated faults: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSimulation+1))
	if err != nil {
		return nil, fmt.Errorf("reading simulated faults: %w", err)
	}
	simulation, err := ParseSimulation(data)
	if err != nil {
		return nil, fmt.Errorf("reading simulated faults %q: %w", path, err)
	}
	return simulation, nil
}

// profilePattern is the form of MIG profiles: parts of compute and GPU slices,
// memory, and media extensions.
var profilePattern = regexp.MustCompile(`^(?:([1-7])c\.)?([1-7])g\.([1-9][0-9]{0,2})gb(?:\+[a-z.]{1,8})?$`)

// ParseSimulation reads the file's content. Unknown fields are errors, so that a
// mistyped fault is not taken for none.
func ParseSimulation(data []byte) (*Simulation, error) {
	if len(data) > maxSimulation {
		return nil, fmt.Errorf("it has more than %d bytes", maxSimulation)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	s := &Simulation{}
	if err := decoder.Decode(s); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("something follows the document")
	}
	return s, s.validate()
}

func (s *Simulation) validate() error {
	if s.APIVersion != SimulationVersion {
		return fmt.Errorf("apiVersion is %q, expected %q", s.APIVersion, SimulationVersion)
	}
	if s.NVML != "" && s.NVML != "unavailable" {
		return fmt.Errorf("nvml is %q, expected \"unavailable\" or nothing", s.NVML)
	}
	seen := map[int]bool{}
	for i := range s.GPUs {
		gpu := &s.GPUs[i]
		if seen[gpu.Index] || gpu.Index < 0 || gpu.Index >= topology.MaxGPUs {
			return fmt.Errorf("GPU %d is there twice, or there is no such GPU", gpu.Index)
		}
		seen[gpu.Index] = true
		if err := gpu.validate(); err != nil {
			return fmt.Errorf("GPU %d: %w", gpu.Index, err)
		}
	}
	for i, links := range s.Links {
		a, b := links.GPUs[0], links.GPUs[1]
		if a == b || min(a, b) < 0 || max(a, b) >= topology.MaxGPUs || links.Down < 0 {
			return fmt.Errorf("links %d: %d links between GPUs %d and %d cannot be down", i, links.Down, a, b)
		}
	}
	return nil
}

func (g *SimulatedGPU) validate() error {
	if _, err := g.observation(); err != nil {
		return err
	}
	seen := map[[2]int]bool{}
	for _, mig := range g.MIG {
		at := [2]int{mig.GPUInstance, mig.ComputeInstance}
		switch {
		case !profilePattern.MatchString(mig.Profile):
			return fmt.Errorf("MIG profile %q is not of the form 1g.10gb", mig.Profile)
		case seen[at] || mig.GPUInstance < 0 || mig.ComputeInstance < 0:
			return fmt.Errorf("MIG device of GPU instance %d, compute instance %d is there twice, or there is no such instance", at[0], at[1])
		}
		seen[at] = true
	}
	return nil
}

// gpu returns what is special about a GPU of the recording; nil for nothing.
func (s *Simulation) gpu(index int) *SimulatedGPU {
	for i := range s.GPUs {
		if s.GPUs[i].Index == index {
			return &s.GPUs[i]
		}
	}
	return nil
}

// apply changes the snapshot of a whole machine.
func (s *Simulation) apply(snapshot *device.Snapshot) (*device.Snapshot, error) {
	if s.NVML != "" {
		return nil, errors.New("NVML is simulated to be unavailable")
	}
	out := *snapshot
	out.Warnings = slices.Clone(snapshot.Warnings)
	machine := snapshot.Machine.Clone()
	for _, links := range s.Links {
		a, b := links.GPUs[0], links.GPUs[1]
		if max(a, b) < machine.N() {
			left := machine.NVLinks[a][b] - uint8(min(links.Down, int(machine.NVLinks[a][b])))
			machine.NVLinks[a][b], machine.NVLinks[b][a] = left, left
		}
	}
	var present topology.Mask
	out.GPUs = nil
	for i := range snapshot.GPUs {
		gpu := snapshot.GPUs[i]
		if special := s.gpu(i); special != nil {
			if special.Lost || special.Hangs {
				out.Warnings = append(out.Warnings, fmt.Sprintf("a GPU is left out: GPU %q is simulated to be lost or to hang", gpu.UUID))
				continue
			}
			if special.MIG != nil {
				gpu.MIGEnabled, gpu.MIGDevices = true, special.migDevices(&gpu)
				for k := range machine.NVLinks {
					machine.NVLinks[i][k], machine.NVLinks[k][i] = 0, 0
				}
			}
		}
		present = present.With(i)
		out.GPUs = append(out.GPUs, gpu)
	}
	out.Machine = machine
	if len(out.GPUs) < len(snapshot.GPUs) {
		out.Machine = machine.Sub(present)
	}
	if len(out.GPUs) == 0 {
		out.Machine = nil
	}
	return &out, out.Validate()
}

// migDevices of a GPU, in order of instance.
func (g *SimulatedGPU) migDevices(parent *device.GPU) []device.MIGDevice {
	var out []device.MIGDevice
	for _, mig := range g.MIG {
		match := profilePattern.FindStringSubmatch(mig.Profile)
		number := func(i int) int { n, _ := strconv.Atoi(match[i]); return n } // Digits only; "" is 0.
		parts := number(2)
		compute := parts
		if match[1] != "" {
			compute = min(number(1), parts)
		}
		out = append(out, device.MIGDevice{
			UUID:    device.UUID("MIG-" + device.FormatUUID(hashOf(string(parent.UUID), mig.Profile, strconv.Itoa(mig.GPUInstance), strconv.Itoa(mig.ComputeInstance)))),
			Profile: mig.Profile, Memory: device.Bytes(number(3)) << 30, GPUInstance: mig.GPUInstance, ComputeInstance: mig.ComputeInstance,
			GPUSlices: parts, ComputeSlices: compute,
		})
	}
	sortInstances(out)
	return out
}

// sortInstances puts MIG devices in order of instance.
func sortInstances(devices []device.MIGDevice) {
	slices.SortFunc(devices, func(a, b device.MIGDevice) int {
		if a.GPUInstance != b.GPUInstance {
			return a.GPUInstance - b.GPUInstance
		}
		return a.ComputeInstance - b.ComputeInstance
	})
}
