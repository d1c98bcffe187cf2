// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology/placement"
)

// Source is where a claim comes from.
type Source string

// The sources.
const (
	ByName   Source = "by name"
	Template Source = "from template"
	Extended Source = "for extended resources"
)

// Claim is one claim of a pod.
type Claim struct {
	Source Source
	// Ref is the name in the pod's spec; empty for extended resources.
	Ref string
	// Name is the claim's or, while it does not exist, what is known instead: the template's name or nothing.
	Name string
	// Template is the template's name, if it comes from one.
	Template string
	// Object is the claim; for extended resources of a pending pod, what the scheduler would make. Nil if there is none.
	Object *resourceapi.ResourceClaim
	// Problem says why the pod cannot be scheduled with it; empty if nothing is wrong.
	Problem string
	// Resources are the names of the extended resources.
	Resources []string
}

// Allocated tells that the claim has devices.
func (c *Claim) Allocated() bool { return c.Object != nil && c.Object.Status.Allocation != nil }

// World is what the API server has besides the pod, as far as it could be read.
type World struct {
	// Claims by name, of the pod's namespace.
	Claims map[string]*resourceapi.ResourceClaim
	// Templates by name, of the pod's namespace; nil if they could not be read.
	Templates map[string]*resourceapi.ResourceClaimTemplate
	Classes   map[string]*resourceapi.DeviceClass
}

// Claims returns the pod's claims in the order of its spec, the one for extended resources last.
func Claims(pod *corev1.Pod, world *World) []Claim {
	var claims []Claim
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		switch {
		case ref.ResourceClaimName != nil:
			claims = append(claims, byName(ref.Name, *ref.ResourceClaimName, world))
		case ref.ResourceClaimTemplateName != nil:
			claims = append(claims, byTemplate(pod, ref.Name, *ref.ResourceClaimTemplateName, world))
		default:
			claims = append(claims, Claim{Ref: ref.Name, Problem: fmt.Sprintf("claim %q of the pod names neither a claim nor a template that this program knows", ref.Name)})
		}
	}
	if extended := extendedClaim(pod, world); extended != nil {
		claims = append(claims, *extended)
	}
	return claims
}

func byName(ref, name string, world *World) Claim {
	c := Claim{Source: ByName, Ref: ref, Name: name, Object: world.Claims[name]}
	if c.Object == nil {
		c.Problem = fmt.Sprintf("ResourceClaim %q does not exist: create it", name)
	}
	return c
}

func byTemplate(pod *corev1.Pod, ref, template string, world *World) Claim {
	c := Claim{Source: Template, Ref: ref, Template: template}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name != ref {
			continue
		}
		if s.ResourceClaimName == nil {
			return c // the template says that none is needed
		}
		c.Name = *s.ResourceClaimName
		if c.Object = world.Claims[c.Name]; c.Object == nil {
			c.Problem = fmt.Sprintf("ResourceClaim %q, made of template %q, is gone: delete the pod, so that its owner makes a new one", c.Name, template)
		}
		return c
	}
	switch object := world.Templates[template]; {
	case world.Templates == nil:
		c.Problem = fmt.Sprintf("the claim of template %q is not made yet", template)
	case object == nil:
		c.Problem = fmt.Sprintf("ResourceClaimTemplate %q does not exist: create it", template)
	default:
		c.Problem = fmt.Sprintf("the claim of template %q is not made yet: that is the work of kube-controller-manager", template)
		c.Object = &resourceapi.ResourceClaim{Spec: object.Spec.Spec}
		c.Object.Namespace, c.Object.Annotations = pod.Namespace, object.Spec.Annotations
	}
	return c
}

// Request is one request of a claim, or one alternative of it, with its class resolved.
type Request struct {
	// Claim is the index of the claim.
	Claim int
	// Name has "/" and the alternative's name appended for an alternative.
	Name, Class string
	// Selectors are the CEL expressions of the class, then of the request.
	Selectors   []string
	Tolerations []resourceapi.DeviceToleration
	Capacity    *resourceapi.CapacityRequirements
	// All means every device that matches; Count means nothing then.
	All   bool
	Count int
	// Admin requests take nothing.
	Admin        bool
	Policy       placement.Policy
	Communicates placement.Communication
}

// maxChoices bounds the combinations of alternatives that are looked at; the scheduler plans as many.
const maxChoices = 64

// Choices returns the combinations of alternatives of the claims that have no devices yet, in the order in which the scheduler
// tries them, or in words what is wrong with a claim.
func Choices(pod *corev1.Pod, claims []Claim, classes map[string]*resourceapi.DeviceClass) (choices [][]Request, problem string) {
	choices = [][]Request{nil}
	for i := range claims {
		if claims[i].Object == nil || claims[i].Allocated() {
			continue
		}
		r := resolver{index: i, claim: claims[i].Object, pod: pod, extended: claims[i].Source == Extended, classes: classes}
		for k := range claims[i].Object.Spec.Devices.Requests {
			alternatives, err := r.alternatives(&claims[i].Object.Spec.Devices.Requests[k])
			if err != nil {
				return nil, fmt.Sprintf("claim %q: %v", claims[i].label(), err)
			}
			var longer [][]Request
			for _, prefix := range choices {
				for _, alternative := range alternatives {
					longer = append(longer, append(slices.Clip(prefix), alternative))
				}
			}
			choices = longer[:min(len(longer), maxChoices)]
		}
	}
	return choices, ""
}

// label names a claim for people, whether it exists or not.
func (c *Claim) label() string {
	switch {
	case c.Name != "":
		return c.Name
	case c.Ref != "":
		return c.Ref
	default:
		return string(c.Source)
	}
}

// resolver resolves the requests of one claim.
type resolver struct {
	index    int
	claim    *resourceapi.ResourceClaim
	pod      *corev1.Pod
	extended bool
	classes  map[string]*resourceapi.DeviceClass
}

func (r *resolver) alternatives(request *resourceapi.DeviceRequest) ([]Request, error) {
	if e := request.Exactly; e != nil {
		one, err := r.resolve(Request{
			Name: request.Name, Class: e.DeviceClassName, Tolerations: e.Tolerations, Capacity: e.Capacity,
			All: e.AllocationMode == resourceapi.DeviceAllocationModeAll, Count: int(max(e.Count, 1)), Admin: e.AdminAccess != nil && *e.AdminAccess,
		}, e.Selectors)
		return []Request{one}, err
	}
	alternatives := make([]Request, 0, len(request.FirstAvailable))
	for i := range request.FirstAvailable {
		s := &request.FirstAvailable[i]
		one, err := r.resolve(Request{
			Name: request.Name + "/" + s.Name, Class: s.DeviceClassName, Tolerations: s.Tolerations, Capacity: s.Capacity,
			All: s.AllocationMode == resourceapi.DeviceAllocationModeAll, Count: int(max(s.Count, 1)),
		}, s.Selectors)
		if err != nil {
			return nil, err
		}
		alternatives = append(alternatives, one)
	}
	if len(alternatives) == 0 {
		return nil, fmt.Errorf("request %q is of a kind that this program does not know", request.Name)
	}
	return alternatives, nil
}

func (r *resolver) resolve(q Request, own []resourceapi.DeviceSelector) (Request, error) {
	q.Claim = r.index
	class := r.classes[q.Class]
	if class == nil {
		return q, fmt.Errorf("request %q names device class %q, which does not exist: create it, or name %q", q.Name, q.Class, api.DeviceClassGPU)
	}
	for _, selectors := range [][]resourceapi.DeviceSelector{class.Spec.Selectors, own} {
		for i := range selectors {
			if selectors[i].CEL == nil {
				return q, fmt.Errorf("request %q has a selector of a kind that this program does not know", q.Name)
			}
			q.Selectors = append(q.Selectors, selectors[i].CEL.Expression)
		}
	}
	return q, r.policy(&q, class)
}
