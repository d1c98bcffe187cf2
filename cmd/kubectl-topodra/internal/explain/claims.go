// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
)

// describe says what a claim asks for and what it got.
func (x *explainer) describe(c *ask.Claim) Claim {
	out := Claim{Source: string(c.Source), Ref: c.Ref, Name: c.Name, Template: c.Template, Problem: c.Problem, Asks: []string{}, Devices: []Device{}}
	if c.Object == nil {
		return out
	}
	out.Asks = x.asks(c)
	if a := c.Object.Status.Allocation; a != nil {
		if a.AllocationTimestamp != nil {
			out.AllocatedAt = a.AllocationTimestamp.UTC().Format(time.RFC3339)
		}
		for i := range a.Devices.Results {
			out.Devices = append(out.Devices, x.device(c.Object, &a.Devices.Results[i]))
		}
	}
	return out
}

// asks describes the requests of a claim, one line each.
func (x *explainer) asks(c *ask.Claim) []string {
	lines := []string{}
	unallocated := *c.Object.DeepCopy()
	unallocated.Status.Allocation = nil
	for i := range c.Object.Spec.Devices.Requests {
		one := unallocated
		one.Spec.Devices.Requests = c.Object.Spec.Devices.Requests[i : i+1]
		choices, problem := ask.Choices(x.Pod, []ask.Claim{{Source: c.Source, Ref: c.Ref, Name: c.Name, Object: &one}}, x.world.Classes)
		if problem != "" {
			lines = append(lines, "request "+c.Object.Spec.Devices.Requests[i].Name)
			continue
		}
		var texts []string
		for _, choice := range choices {
			texts = append(texts, describeRequest(&choice[0]))
		}
		lines = append(lines, "request "+strings.Join(texts, ", or "))
	}
	return lines
}

func describeRequest(r *ask.Request) string {
	count := fmt.Sprintf("%d", r.Count)
	if r.All {
		count = "all"
	}
	parts := []string{fmt.Sprintf("%s: %s of class %s", r.Name, count, r.Class)}
	switch {
	case r.Admin:
		parts = append(parts, "admin access")
	case r.Capacity != nil && len(r.Capacity.Requests) > 0:
		parts = append(parts, "of each "+describeCapacity(r.Capacity.Requests))
	default:
		parts = append(parts, "whole")
	}
	if policy := ask.DescribePolicy(r.Policy); policy != "" {
		parts = append(parts, policy)
	}
	return strings.Join(parts, ", ")
}

func describeCapacity(amounts map[resourceapi.QualifiedName]resource.Quantity) string {
	var names []string
	for name := range amounts {
		names = append(names, string(name))
	}
	slices.Sort(names)
	slices.SortStableFunc(names, func(a, b string) int { // memory first: it is what people think of
		return boolInt(b == string(api.CapacityMemory)) - boolInt(a == string(api.CapacityMemory))
	})
	var texts []string
	for _, name := range names {
		amount := amounts[resourceapi.QualifiedName(name)]
		texts = append(texts, name+" "+amount.String())
	}
	return strings.Join(texts, ", ")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// device describes one result of an allocation.
func (x *explainer) device(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) Device {
	d := Device{Request: r.Request, Driver: r.Driver, Pool: r.Pool, Device: r.Device, GPU: -1}
	if r.Driver != api.DriverName {
		return d
	}
	n := x.nodeOf(r.Pool)
	if n == nil {
		return d
	}
	at, ok := n.Position(r.Device)
	if !ok {
		return d
	}
	d.GPU = at
	for _, p := range n.GPUs[at].Parts {
		if p.Device == r.Device {
			d.Part = p.Profile
		}
	}
	for _, h := range n.GPUs[at].Holders {
		if h.Namespace == claim.Namespace && h.Claim == claim.Name && h.Request == r.Request && (h.Device == "" || h.Device == r.Device) {
			d.Use = nodes.DescribeUse(h)
		}
	}
	return d
}
