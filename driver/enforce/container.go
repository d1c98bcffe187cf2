// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
)

// Container is what one container sees.
type Container struct {
	// GPUs in order of PCI address; the position is the number by which the
	// container's processes know the GPU.
	GPUs []GPU

	// Settings of all limits of the container.
	Settings api.SharingConfig

	// RegionDir is a directory of the host that belongs to this container alone,
	// for what its processes share about their usage. Absolute.
	RegionDir string
}

// GPU is one GPU that a container sees.
type GPU struct {
	UUID       string
	PCIAddress string

	// MIG says that it is a MIG device.
	MIG bool

	// MemoryMiB of the whole device; 0 when unknown.
	MemoryMiB int64

	// Limit is nil when the container may use all of the GPU.
	Limit *checkpoint.Limit
}

// Limited says whether any GPU has a limit.
func (c *Container) Limited() bool {
	return slices.ContainsFunc(c.GPUs, func(g GPU) bool { return g.Limit != nil })
}

// NewContainer merges the devices that a container gets from all its claims.
//
// A GPU of which it has several shares is there once, with the sum of their
// limits; compute is best effort (0) if it is for one of them, and at most 100.
// A GPU that it also has whole, for admin access or without enforcement has no
// limit. The strictest settings win: the lowest priority, the strictest core
// policy; the most talkative log level.
//
// It is an error when limits could not be kept for the mix.
func NewContainer(devices []checkpoint.Device, regionDir string) (*Container, error) {
	merged := map[string]*GPU{}
	var settings []checkpoint.Settings
	for _, device := range devices {
		if device.Limit != nil {
			settings = append(settings, device.Settings)
		}
		gpu := GPU{UUID: device.UUID, PCIAddress: device.PCIAddress, MIG: device.Type == api.DeviceTypeMIG,
			MemoryMiB: device.MemoryMiB, Limit: clone(device.Limit)}
		if have, ok := merged[device.UUID]; ok {
			have.Limit = sum(have.Limit, gpu.Limit)
			continue
		}
		merged[device.UUID] = &gpu
	}
	container := &Container{Settings: mergeSettings(settings), RegionDir: regionDir}
	for _, gpu := range merged {
		container.GPUs = append(container.GPUs, *gpu)
	}
	slices.SortFunc(container.GPUs, func(a, b GPU) int {
		return cmp.Or(ComparePCI(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	return container, container.check()
}

// check refuses mixes in which a limit would miss its GPU.
func (c *Container) check() error {
	if !c.Limited() {
		return nil
	}
	for _, gpu := range c.GPUs {
		if gpu.MIG {
			return fmt.Errorf("the container gets MIG device %q together with a share of a GPU: CUDA then shows it the MIG device alone, "+
				"and the limits would count wrong; give them to different containers", gpu.UUID)
		}
		if gpu.PCIAddress == "" && len(c.GPUs) > 1 {
			return fmt.Errorf("the PCI address of GPU %q is unknown, so its position among the container's GPUs is, too", gpu.UUID)
		}
	}
	return nil
}

// sum adds the limits of two shares of one GPU; nil is no limit.
func sum(a, b *checkpoint.Limit) *checkpoint.Limit {
	if a == nil || b == nil {
		return nil
	}
	out := &checkpoint.Limit{MemoryMiB: a.MemoryMiB + b.MemoryMiB}
	if a.CoresPercent > 0 && b.CoresPercent > 0 {
		out.CoresPercent = min(a.CoresPercent+b.CoresPercent, 100)
	}
	return out
}

// clone copies a limit.
func clone(l *checkpoint.Limit) *checkpoint.Limit {
	if l == nil {
		return nil
	}
	return new(*l)
}

// mergeSettings of the limited devices of one container.
func mergeSettings(all []checkpoint.Settings) api.SharingConfig {
	merged := api.EffectiveSharing(nil, nil)
	if len(all) == 0 {
		return merged
	}
	first := func(order []string, of func(checkpoint.Settings) string) string {
		for _, value := range order {
			if slices.ContainsFunc(all, func(s checkpoint.Settings) bool { return of(s) == value }) {
				return value
			}
		}
		return order[len(order)-1]
	}
	merged.TaskPriority = api.TaskPriority(first([]string{string(api.TaskPriorityLow), string(api.TaskPriorityHigh)},
		func(s checkpoint.Settings) string { return s.TaskPriority }))
	merged.CorePolicy = api.CorePolicy(first([]string{string(api.CorePolicyForce), string(api.CorePolicyDefault), string(api.CorePolicyDisable)},
		func(s checkpoint.Settings) string { return s.CorePolicy }))
	merged.LogLevel = api.LogLevel(first([]string{string(api.LogLevelDebug), string(api.LogLevelInfo), string(api.LogLevelWarning),
		string(api.LogLevelError), string(api.LogLevelOff)}, func(s checkpoint.Settings) string { return s.LogLevel }))
	return merged
}

// ComparePCI orders PCI addresses by number, so that "0000:9:00.0" comes before
// "0000:0a:00.0" and a domain of eight digits equals one of four. Text that is
// no address comes after all addresses, in order of text.
func ComparePCI(a, b string) int {
	first, okA := parsePCI(a)
	second, okB := parsePCI(b)
	switch {
	case okA && okB:
		return slices.Compare(first[:], second[:])
	case okA:
		return -1
	case okB:
		return 1
	default:
		return cmp.Compare(a, b)
	}
}

// parsePCI reads "domain:bus:device.function" in hexadecimal.
func parsePCI(text string) (out [4]uint64, ok bool) {
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != len(out) || strings.Count(text, ":") != 2 || strings.Count(text, ".") != 1 {
		return out, false
	}
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 16, 32)
		if err != nil {
			return out, false
		}
		out[i] = number
	}
	return out, true
}
