// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/webhook/classic"
)

// MaxSizes is how many sizes of GPU memory one percentage can stand for: the API's limit of alternatives in a request.
const MaxSizes = resourceapi.FirstAvailableDeviceRequestMaxSize

const mebi = 1 << 20

// GPU is a GPU that a driver has published.
type GPU struct {
	UUID, ProductName string
	// MemoryBytes is what claims can take of its memory.
	MemoryBytes int64
}

// fits says whether the selectors for the placement let the GPU through.
func (g *GPU) fits(p *classic.Placement) bool {
	kind := classic.TypePrefix + strings.ToLower(g.ProductName)
	contains := func(part string) bool { return strings.Contains(kind, part) }
	return (len(p.UseUUIDs) == 0 || slices.Contains(p.UseUUIDs, g.UUID)) &&
		!slices.Contains(p.AvoidUUIDs, g.UUID) &&
		(len(p.UseTypes) == 0 || slices.ContainsFunc(p.UseTypes, contains)) &&
		!slices.ContainsFunc(p.AvoidTypes, contains)
}

// sizes returns the sizes of memory, in bytes and ascending, that a percentage stands for: the configured ones and those of
// published GPUs that fit. If there are more than MaxSizes, those with the fewest GPUs are left out, and of these the
// smallest ones first.
func (o *Options) sizes(p *classic.Placement) (chosen, left []int64) {
	count := map[int64]int{}
	for i := range o.GPUs {
		if gpu := &o.GPUs[i]; gpu.MemoryBytes >= mebi && gpu.fits(p) {
			count[gpu.MemoryBytes]++
		}
	}
	const configured = 1 << 30 // more than any number of GPUs
	for _, mib := range o.MemorySizesMiB {
		count[mib*mebi] += configured
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b int64) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(b, a))
	})
	chosen = slices.Clone(all[:min(len(all), MaxSizes)])
	left = slices.Clone(all[len(chosen):])
	slices.Sort(chosen)
	slices.Sort(left)
	return chosen, left
}

// alternatives returns one subrequest per size of memory, the smallest first: there, a percentage takes the least.
func (o *Options) alternatives(g *group, common *resourceapi.ExactDeviceRequest, sizes []int64) []resourceapi.DeviceSubRequest {
	var list []resourceapi.DeviceSubRequest
	for _, size := range sizes {
		quantity := resource.NewQuantity(size, resource.BinarySI)
		list = append(list, resourceapi.DeviceSubRequest{
			Name:            strings.ToLower(quantity.String()),
			DeviceClassName: common.DeviceClassName,
			Selectors:       append([]resourceapi.DeviceSelector{sizeSelector(quantity)}, common.Selectors...),
			AllocationMode:  common.AllocationMode,
			Count:           common.Count,
			Capacity:        capacity(percentMiB(size, g.amount.MemoryPercent), g.amount.CoresPercent),
		})
	}
	return list
}

// percentMiB is percent of size, in MiB and rounded down, so that a hundred percent in parts fit; at least 1.
func percentMiB(size, percent int64) int64 { return max(1, size*percent/100/mebi) }

// checkSizes reports a percentage that stands for nothing.
func checkSizes(needs []classic.Need, resources *classic.Resources, sizes []int64) field.ErrorList {
	var errs field.ErrorList
	for _, need := range needs {
		if need.PerGPU.MemoryPercent == 0 || len(sizes) > 0 {
			continue
		}
		errs = append(errs, field.Invalid(need.Path.Child("resources", "limits").Key(string(resources.MemoryPercent)), need.PerGPU.MemoryPercent,
			fmt.Sprintf("no GPU that the pod could use is published yet, so nobody knows how much memory this is: try again when its node is up, ask for %s instead, or have the administrator set --memory-sizes", resources.Memory)))
	}
	return errs
}
