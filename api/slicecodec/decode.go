// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
)

// ErrNoGPUs says that none of the devices is a GPU.
var ErrNoGPUs = errors.New("no device is a GPU")

// NoPosition is the position of a device that is not a GPU of its own.
const NoPosition = -1

// Device is what the reader needs of a device in a ResourceSlice.
type Device struct {
	Name       string
	Attributes Attributes
}

// Decoded is the machine that a pool's devices describe.
type Decoded struct {
	// Machine has one GPU per position, also for positions without a device.
	Machine *topology.Machine

	// Positions holds for each device, in the order they were given, which GPU
	// of Machine it is; NoPosition for devices of a type other than GPU, such
	// as MIG devices.
	Positions []int

	// Present has the positions that a device takes.
	Present topology.Mask

	// Warnings lists contradictions and how they were resolved, in order of
	// position.
	Warnings []topology.Warning
}

// Decode reads the devices of one pool and driver. name becomes the name of the
// machine. mapping must belong to the driver that published the devices.
func Decode(name string, devices []Device, mapping api.DriverMapping) (*Decoded, error) {
	gpus, err := readGPUs(devices, mapping)
	if err != nil {
		return nil, fmt.Errorf("decoding topology of pool %q: %w", name, err)
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("decoding topology of pool %q: %w", name, ErrNoGPUs)
	}
	n, err := placeGPUs(gpus)
	if err != nil {
		return nil, fmt.Errorf("decoding topology of pool %q: %w", name, err)
	}
	merge := newMerger(name, n, gpus)
	if err := merge.run(); err != nil {
		return nil, fmt.Errorf("decoding topology of pool %q: %w", name, err)
	}
	decoded := &Decoded{Machine: merge.machine, Positions: make([]int, len(devices)), Warnings: merge.warnings}
	for i := range decoded.Positions {
		decoded.Positions[i] = NoPosition
	}
	for _, gpu := range gpus {
		decoded.Positions[gpu.input] = gpu.position
		decoded.Present = decoded.Present.With(gpu.position)
	}
	if err := decoded.Machine.Validate(); err != nil {
		return nil, fmt.Errorf("decoding topology of pool %q: %w", name, err)
	}
	return decoded, nil
}

// gpuDevice is one device after its attributes were read one by one.
type gpuDevice struct {
	input    int // index into the devices given
	name     string
	position int // NoPosition until known

	nvlinks, pcie string // "" when missing
	domain        string
	pcieRoot      string
	pciBusID      string
	switched      *bool
	info          topology.GPUInfo
}

// readGPUs reads the attributes of every device that is a GPU, in order of name.
func readGPUs(devices []Device, mapping api.DriverMapping) ([]*gpuDevice, error) {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(devices[a].Name, devices[b].Name) })
	// Before anything else: two devices of one name have no order.
	for k := 1; k < len(order); k++ {
		if name := devices[order[k]].Name; devices[order[k-1]].Name == name {
			return nil, fmt.Errorf("device %q is there twice", name)
		}
	}
	var gpus []*gpuDevice
	for _, i := range order {
		device := &devices[i]
		gpu, err := readGPU(device, mapping)
		if err != nil {
			return nil, fmt.Errorf("device %q: %w", device.Name, err)
		}
		if gpu != nil {
			gpu.input = i
			gpus = append(gpus, gpu)
		}
	}
	return gpus, nil
}

// readGPU reads one device; nil when it is something else than a GPU.
func readGPU(device *Device, mapping api.DriverMapping) (*gpuDevice, error) {
	r := reader{driver: mapping.Driver, attributes: device.Attributes}
	if mapping.Driver == api.DriverName {
		if kind := r.text(string(api.AttrType)); kind != "" && kind != api.DeviceTypeGPU {
			return nil, r.err
		}
	}
	names := mapping.Attributes
	gpu := &gpuDevice{
		name:     device.Name,
		position: r.number(names.Index, topology.MaxGPUs-1, NoPosition),
		nvlinks:  r.text(names.NVLinks),
		pcie:     r.text(names.PCIe),
		domain:   r.textOrNumber(names.NVLinkDomain),
		pcieRoot: r.text(names.PCIeRoot),
		pciBusID: r.text(names.PCIBusID),
		switched: r.boolean(names.NVLinkSwitched),
		info: topology.GPUInfo{
			NUMA:       r.numaNode(names.NUMANode),
			NVLinkMBps: topology.MBps(r.number(names.NVLinkMBps, int64(topology.MaxWeightMBps), 0)),
			PCIeGen:    r.number(names.PCIeGen, maxPCIeGen, 0),
			NearestNIC: r.text(names.NearestNIC),
		},
	}
	return gpu, r.err
}

// placeGPUs gives every GPU its position and returns the number of positions.
func placeGPUs(gpus []*gpuDevice) (int, error) {
	n, widest := 0, (*gpuDevice)(nil)
	for _, gpu := range gpus {
		if err := gpu.placeByRows(); err != nil {
			return 0, fmt.Errorf("device %q: %w", gpu.name, err)
		}
		width := max(len(gpu.nvlinks), len(gpu.pcie))
		switch {
		case width == 0:
		case widest == nil:
			widest = gpu
			n = width
		case width != n:
			return 0, fmt.Errorf("device %q: its rows have %d columns, those of device %q have %d", gpu.name, width, widest.name, n)
		}
	}
	if widest == nil {
		n = len(gpus)
		for _, gpu := range gpus {
			n = max(n, gpu.position+1)
		}
	}
	if n > topology.MaxGPUs {
		return 0, fmt.Errorf("%d GPUs are more than the limit of %d", n, topology.MaxGPUs)
	}
	return n, fillPositions(gpus, n)
}

// placeByRows checks the two rows against each other and against the index, and
// finds the position in them when there is no index.
func (g *gpuDevice) placeByRows() error {
	if g.nvlinks != "" && g.pcie != "" && len(g.nvlinks) != len(g.pcie) {
		return fmt.Errorf("attribute for NVLinks has %d columns, attribute for PCIe has %d", len(g.nvlinks), len(g.pcie))
	}
	for _, row := range []struct{ what, text string }{{"PCIe", g.pcie}, {"NVLinks", g.nvlinks}} {
		if row.text == "" {
			continue
		}
		if g.position == NoPosition {
			position, err := onlyOwnPosition(row.text)
			if err != nil {
				return fmt.Errorf("attribute for %s: %w", row.what, err)
			}
			g.position = position
		}
		if g.position >= len(row.text) {
			return fmt.Errorf("attribute for %s: row %d has only %d columns", row.what, g.position, len(row.text))
		}
		if got := row.text[g.position]; got != ownPosition {
			return fmt.Errorf("attribute for %s: row %d, column %d: %q where its own position needs %q",
				row.what, g.position, g.position, got, ownPosition)
		}
	}
	return nil
}

// onlyOwnPosition finds the one "x" in a row.
func onlyOwnPosition(row string) (int, error) {
	found := NoPosition
	for i := range len(row) {
		if row[i] != ownPosition {
			continue
		}
		if found != NoPosition {
			return 0, fmt.Errorf("without an index, %q in columns %d and %d is ambiguous", ownPosition, found, i)
		}
		found = i
	}
	if found == NoPosition {
		return 0, fmt.Errorf("without an index, one column must be %q", ownPosition)
	}
	return found, nil
}

// fillPositions checks that positions are unique and gives the free ones to the
// GPUs without, in order of PCI address and name.
func fillPositions(gpus []*gpuDevice, n int) error {
	taken := make([]*gpuDevice, n)
	var rest []*gpuDevice
	for _, gpu := range gpus {
		switch {
		case gpu.position == NoPosition:
			rest = append(rest, gpu)
		case gpu.position >= n:
			return fmt.Errorf("device %q: index %d, but rows of other devices have %d columns", gpu.name, gpu.position, n)
		case taken[gpu.position] != nil:
			return fmt.Errorf("device %q: position %d is taken by device %q", gpu.name, gpu.position, taken[gpu.position].name)
		default:
			taken[gpu.position] = gpu
		}
	}
	slices.SortFunc(rest, func(a, b *gpuDevice) int {
		return cmp.Or(cmp.Compare(a.pciBusID, b.pciBusID), cmp.Compare(a.name, b.name))
	})
	next := 0
	for _, gpu := range rest {
		for next < n && taken[next] != nil {
			next++
		}
		if next == n {
			return fmt.Errorf("device %q: no position is left among %d", gpu.name, n)
		}
		gpu.position, taken[next] = next, gpu
	}
	return nil
}
