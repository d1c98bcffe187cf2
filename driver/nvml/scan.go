// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// scan is one discovery.
type scan struct {
	*caller
	sysfs    locator
	hanging  *quarantine
	warnings []string
	gpus     []*foundGPU
}

// run reads all GPUs, one by one and then in pairs.
func (s *scan) run(ctx context.Context) (*device.Snapshot, error) {
	snapshot := &device.Snapshot{DriverVersion: s.driverVersion(), CUDADriverVersion: s.cudaVersion()}
	count, err := call(s.caller, "DeviceGetCount", s.library.DeviceGetCount)
	if err != nil {
		return nil, err
	}
	for i := range count {
		s.readGPU(ctx, i)
	}
	slices.SortFunc(s.gpus, func(a, b *foundGPU) int {
		return cmp.Or(cmp.Compare(a.gpu.PCIAddress, b.gpu.PCIAddress), cmp.Compare(a.gpu.UUID, b.gpu.UUID))
	})
	if len(s.gpus) > topology.MaxGPUs {
		s.warn("%d GPUs are more than %d: the last ones by PCI address are left out", len(s.gpus), topology.MaxGPUs)
		s.gpus = s.gpus[:topology.MaxGPUs]
	}
	if len(s.gpus) > 0 {
		snapshot.Machine = s.machine()
	}
	for _, g := range s.gpus {
		snapshot.GPUs = append(snapshot.GPUs, g.gpu)
		s.warnings = append(s.warnings, g.reader.warnings...)
	}
	snapshot.Warnings = s.warnings
	return snapshot, snapshot.Validate()
}

// readGPU reads one GPU by itself, unless it is lost or hangs.
func (s *scan) readGPU(ctx context.Context, index int) {
	g, err := s.hanging.read(ctx, index, func(begin func(string)) (*foundGPU, error) {
		alone := &caller{library: s.library, begin: begin, known: map[string]bool{}}
		g, err := identify(alone, index)
		if err != nil {
			return nil, err
		}
		g.describe()
		g.readLinks()
		return g, g.reader.lost
	})
	if err != nil {
		s.warn("a GPU is left out: %v", err)
		return
	}
	g.locate(s.sysfs)
	s.gpus = append(s.gpus, g)
}

// driverVersion reads the kernel driver's version; nil when it is not known.
func (s *scan) driverVersion() *device.Version {
	text, err := call(s.caller, "SystemGetDriverVersion", s.library.SystemGetDriverVersion)
	if err != nil {
		s.warn("the driver's version is left out: %v", err)
		return nil
	}
	version, err := device.ParseVersion(text)
	if err != nil {
		s.warn("the driver's version is left out: %v", err)
		return nil
	}
	return &version
}

// cudaVersion reads the newest CUDA version the driver supports; nil when it is not
// known. NVML writes 12040 for 12.4.
func (s *scan) cudaVersion() *device.Version {
	number, err := call(s.caller, "SystemGetCudaDriverVersion", s.library.SystemGetCudaDriverVersion)
	if err != nil || number <= 0 {
		if err != nil && !notSupported(err) {
			s.warn("the CUDA version is left out: %v", err)
		}
		return nil
	}
	return &device.Version{Major: number / 1000, Minor: number % 1000 / 10}
}

// warn keeps a warning about the node.
func (s *scan) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// machine joins what is known about pairs.
func (s *scan) machine() *topology.Machine {
	m := topology.New("", len(s.gpus))
	for i, g := range s.gpus {
		m.GPUs[i] = g.info
	}
	byAddress := map[device.PCIAddress]bool{}
	for _, g := range s.gpus {
		byAddress[g.gpu.PCIAddress] = true
	}
	for _, g := range s.gpus {
		g.resolveUnknownEnds(byAddress)
	}
	for i := range s.gpus {
		for j := i + 1; j < len(s.gpus); j++ {
			links, throughSwitch := s.pairLinks(s.gpus[i], s.gpus[j])
			m.NVLinks[i][j], m.NVLinks[j][i] = links, links
			m.Switched = m.Switched || throughSwitch
			class := s.pairClass(s.gpus[i], s.gpus[j])
			m.PCIe[i][j], m.PCIe[j][i] = class, class
		}
	}
	return m
}

// resolveUnknownEnds takes links to addresses of no GPU for links into a switch
// when the driver is too old to say so itself. With a driver that does, such a
// link leads to a GPU that is left out.
func (g *foundGPU) resolveUnknownEnds(gpus map[device.PCIAddress]bool) {
	if g.reader.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		return
	}
	for address, links := range g.links.direct {
		if !gpus[address] {
			g.links.switched += links
			delete(g.links.direct, address)
		}
	}
}

// pairLinks returns how many usable links join two GPUs, and whether they go
// through a switch.
func (s *scan) pairLinks(a, b *foundGPU) (links uint8, throughSwitch bool) {
	if a.gpu.MIGEnabled || b.gpu.MIGEnabled {
		return 0, false
	}
	ab, ba := a.links.direct[b.gpu.PCIAddress], b.links.direct[a.gpu.PCIAddress]
	if ab != ba {
		s.warn("%s has %d NVLinks to %s, which has %d back: %d count", a.reader.name, ab, b.reader.name, ba, min(ab, ba))
	}
	count := min(ab, ba)
	if ab == 0 && ba == 0 {
		count = min(a.links.switched, b.links.switched)
		throughSwitch = count > 0
	}
	count = min(count, topology.MaxLinks)
	if count == 0 || !s.peerToPeer(a, b) || !s.peerToPeer(b, a) {
		return 0, false
	}
	return uint8(count), throughSwitch
}

// peerToPeer reports whether a can reach b by NVLink. A driver that does not know
// is believed to.
func (s *scan) peerToPeer(a, b *foundGPU) bool {
	what := fmt.Sprintf("GetP2PStatus of %s to %s", a.reader.name, b.reader.name)
	status, err := call(s.caller, what, func() (nvml.GpuP2PStatus, nvml.Return) {
		return a.handle.GetP2PStatus(b.handle, nvml.P2P_CAPS_INDEX_NVLINK)
	})
	switch {
	case err != nil && notSupported(err):
		return true
	case err != nil:
		s.warn("NVLinks do not count because it is not known whether they can be used: %v", err)
		return false
	case status != nvml.P2P_STATUS_OK:
		s.warn("NVLinks from %s to %s do not count: peer to peer status is %d, not OK; does the fabric manager run?", a.reader.name, b.reader.name, status)
		return false
	default:
		return true
	}
}

// ancestors translates NVML's levels, from close to far.
var ancestors = map[nvml.GpuTopologyLevel]topology.PCIe{
	nvml.TOPOLOGY_INTERNAL:   topology.PIX, // Two GPUs on one board.
	nvml.TOPOLOGY_SINGLE:     topology.PIX,
	nvml.TOPOLOGY_MULTIPLE:   topology.PXB,
	nvml.TOPOLOGY_HOSTBRIDGE: topology.PHB,
	nvml.TOPOLOGY_NODE:       topology.NODE,
	nvml.TOPOLOGY_SYSTEM:     topology.SYS,
}

// pairClass returns how far apart two GPUs are on PCIe: by NVML, else by sysfs, else
// as far as can be.
func (s *scan) pairClass(a, b *foundGPU) topology.PCIe {
	what := fmt.Sprintf("GetTopologyCommonAncestor of %s and %s", a.reader.name, b.reader.name)
	level, err := call(s.caller, what, func() (nvml.GpuTopologyLevel, nvml.Return) { return a.handle.GetTopologyCommonAncestor(b.handle) })
	if class, ok := ancestors[level]; err == nil && ok {
		return class
	}
	class, sysfsErr := s.sysfs.Class(a.gpu.PCIAddress, b.gpu.PCIAddress)
	if sysfsErr == nil && class != topology.PCIeSelf {
		return class
	}
	if err != nil && !notSupported(err) {
		s.warn("%s and %s count as far apart on PCIe: %v", a.reader.name, b.reader.name, err)
	}
	return topology.SYS
}

// isInvalidArgument reports that there is no such link.
func isInvalidArgument(err error) bool { return errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) }
