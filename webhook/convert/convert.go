// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/classic"
)

// Options are what a conversion depends on besides the demand.
type Options struct {
	// Resources are the names for messages.
	Resources classic.Resources
	// ClassGPU and ClassMIG are the DeviceClasses to ask for.
	ClassGPU, ClassMIG string
	// GPUs are those that are published now; only percentages need them.
	GPUs []GPU
	// MemorySizesMiB are further sizes of GPU memory, of nodes that are still to come; at most MaxSizes.
	MemorySizesMiB []int64
	// ShareInitContainers lets init containers use the shares of containers that start later. It needs a container runtime
	// with NRI on the nodes. Whole GPUs are used by both in any case.
	ShareInitContainers bool
}

// Plan is what becomes of a pod.
type Plan struct {
	// Spec of the pod's claim.
	Spec resourceapi.ResourceClaimSpec
	// Uses says which requests each container uses, in the order of the demand.
	Uses []Use
	// Warnings are for the user.
	Warnings []string
}

// Use is the requests of one container, in the order of the claim.
type Use struct {
	Container string
	Requests  []string
}

// New plans a demand. If there are errors there is no plan.
func New(demand *classic.Demand, o Options) (*Plan, field.ErrorList) {
	joined := groups(units(demand.Needs, o.ShareInitContainers))
	total := 0
	for _, g := range joined {
		total += g.count
	}
	if total > classic.MaxGPUs {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), total,
			fmt.Sprintf("GPUs of all containers together: a claim holds at most %d", classic.MaxGPUs))}
	}
	plan := &Plan{}
	sizes, left := o.sizes(&demand.Placement)
	if errs := checkSizes(demand.Needs, &o.Resources, sizes); len(errs) > 0 {
		return nil, errs
	}
	for i := range joined {
		plan.Spec.Devices.Requests = append(plan.Spec.Devices.Requests, o.request(requestName(i), &joined[i], &demand.Placement, sizes))
	}
	percent := slices.ContainsFunc(joined, func(g group) bool { return g.amount.MemoryPercent > 0 })
	if percent && len(left) > 0 {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("there are more than %d sizes of GPU memory: the pod does not get GPUs with %s; use annotation %s to choose others",
			MaxSizes, sizesText(left), classic.AnnotationUseType))
	}
	for n, need := range demand.Needs {
		use := Use{Container: need.Container}
		for i := range joined {
			if slices.Contains(joined[i].users, n) {
				use.Requests = append(use.Requests, requestName(i))
			}
		}
		plan.Uses = append(plan.Uses, use)
	}
	plan.Spec.Devices.Constraints = constraints(demand, plan.Uses)
	config, err := configuration(demand, joined)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	plan.Spec.Devices.Config = config
	return plan, nil
}

// requestName names requests by position: container names would make equal demands different.
func requestName(i int) string { return fmt.Sprintf("gpu-%d", i) }

// sizesText lists sizes for people.
func sizesText(sizes []int64) string {
	texts := make([]string, len(sizes))
	for i, size := range sizes {
		texts[i] = resource.NewQuantity(size, resource.BinarySI).String()
	}
	return strings.Join(texts, ", ")
}

// request makes the request of a group.
func (o *Options) request(name string, g *group, p *classic.Placement, sizes []int64) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{
		DeviceClassName: o.ClassGPU,
		Selectors:       selectors(p, api.AttrUUID),
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           int64(g.count),
	}
	if p.MIG {
		exact.DeviceClassName, exact.Selectors = o.ClassMIG, selectors(p, api.AttrParentUUID)
	}
	if g.amount.MemoryPercent > 0 {
		return resourceapi.DeviceRequest{Name: name, FirstAvailable: o.alternatives(g, exact, sizes)}
	}
	if !g.amount.Whole() {
		exact.Capacity = capacity(g.amount.MemoryMiB, g.amount.CoresPercent)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

// capacity returns the requirements for one GPU; 0 means none.
func capacity(memoryMiB, coresPercent int64) *resourceapi.CapacityRequirements {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	if memoryMiB > 0 {
		requests[api.CapacityMemory] = *resource.NewQuantity(memoryMiB*mebi, resource.BinarySI)
	}
	if coresPercent > 0 {
		requests[api.CapacityCores] = *resource.NewQuantity(coresPercent, resource.DecimalSI)
	}
	return &resourceapi.CapacityRequirements{Requests: requests}
}

// constraints keeps the GPUs of each container apart, and together on one NUMA node where the pod wants that.
func constraints(demand *classic.Demand, uses []Use) []resourceapi.DeviceConstraint {
	var list []resourceapi.DeviceConstraint
	add := func(constraint resourceapi.DeviceConstraint) {
		same := func(other resourceapi.DeviceConstraint) bool {
			return slices.Equal(other.Requests, constraint.Requests) && (other.MatchAttribute == nil) == (constraint.MatchAttribute == nil)
		}
		if !slices.ContainsFunc(list, same) {
			list = append(list, constraint)
		}
	}
	for n, need := range demand.Needs {
		requests := uses[n].Requests
		if need.GPUs < 2 {
			continue
		}
		switch {
		case demand.Placement.MIG:
			add(resourceapi.DeviceConstraint{Requests: requests, DistinctAttribute: new(fullName(api.AttrParentUUID))})
		case len(requests) > 1 && !need.PerGPU.Whole(): // whole GPUs cannot overlap, nor can those of one request
			add(resourceapi.DeviceConstraint{Requests: requests, DistinctAttribute: new(fullName(api.AttrUUID))})
		}
		if demand.Placement.OneNUMANode {
			add(resourceapi.DeviceConstraint{Requests: requests, MatchAttribute: new(resourceapi.FullyQualifiedName(api.AttrNUMANode))})
		}
	}
	return list
}

// fullName adds our domain to the name of an attribute.
func fullName(name resourceapi.QualifiedName) resourceapi.FullyQualifiedName {
	return resourceapi.FullyQualifiedName(api.DriverName + "/" + string(name))
}

// configuration returns the opaque configurations: the policy for links, then one per priority.
func configuration(demand *classic.Demand, joined []group) ([]resourceapi.DeviceClaimConfiguration, error) {
	var list []resourceapi.DeviceClaimConfiguration
	topology := demand.Placement.Topology
	if topology == nil && !demand.Placement.MIG && len(joined) > 1 && !slices.ContainsFunc(demand.Needs, func(n classic.Need) bool { return n.GPUs > 1 }) {
		// Several containers with a GPU each are no job over linked GPUs.
		topology = &api.TopologyConfig{Policy: api.PolicyPreferred, Communicates: new(false)}
	}
	if topology != nil {
		config, err := opaque(nil, &api.GPUClaimConfig{Topology: topology})
		if err != nil {
			return nil, err
		}
		list = append(list, config)
	}
	for _, priority := range []api.TaskPriority{api.TaskPriorityHigh, api.TaskPriorityLow} {
		var requests []string
		for i := range joined {
			if joined[i].amount.Priority == priority {
				requests = append(requests, requestName(i))
			}
		}
		if len(requests) == 0 {
			continue
		}
		config, err := opaque(requests, &api.GPUClaimConfig{Sharing: &api.SharingConfig{TaskPriority: priority}})
		if err != nil {
			return nil, err
		}
		list = append(list, config)
	}
	return list, nil
}

// opaque wraps a configuration.
func opaque(requests []string, config *api.GPUClaimConfig) (resourceapi.DeviceClaimConfiguration, error) {
	config.TypeMeta = metav1.TypeMeta{APIVersion: api.GroupVersion().String(), Kind: api.KindGPUClaimConfig}
	raw, err := json.Marshal(config)
	if err != nil {
		return resourceapi.DeviceClaimConfiguration{}, fmt.Errorf("encoding the claim's configuration: %w", err)
	}
	return resourceapi.DeviceClaimConfiguration{
		Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: raw},
		}},
	}, nil
}
