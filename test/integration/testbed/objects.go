// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
)

// Claim says what a ResourceClaim asks for.
type Claim struct {
	Name        string
	Requests    []resourceapi.DeviceRequest
	Constraints []resourceapi.DeviceConstraint
	// Topology is the configuration for our driver; nil for none.
	Topology *api.TopologyConfig
	// Config is the same as text, for what the type cannot say. It wins over Topology.
	Config string
	// ConfigRequests are the requests that the configuration is for; all if empty.
	ConfigRequests []string
	// Annotation is the topology annotation; empty for none.
	Annotation string
}

// RequestOption changes a request.
type RequestOption func(*resourceapi.ExactDeviceRequest)

// Requests makes a list.
func Requests(requests ...resourceapi.DeviceRequest) []resourceapi.DeviceRequest { return requests }

// GPUs asks for a number of our GPUs, whole ones unless options say otherwise.
func GPUs(name string, count int64, options ...RequestOption) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}
	for _, option := range options {
		option(exact)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

// FirstAvailable asks for the first of several alternatives that can be served; they are made with [GPUs].
func FirstAvailable(name string, alternatives ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name}
	for _, a := range alternatives {
		request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: a.Name, DeviceClassName: a.Exactly.DeviceClassName, Selectors: a.Exactly.Selectors,
			AllocationMode: a.Exactly.AllocationMode, Count: a.Exactly.Count,
			Tolerations: a.Exactly.Tolerations, Capacity: a.Exactly.Capacity,
		})
	}
	return request
}

// Share takes memory, such as "8Gi", and compute in percent of each GPU.
func Share(memory string, cores int64) RequestOption {
	return Capacity(map[resourceapi.QualifiedName]string{api.CapacityMemory: memory, api.CapacityCores: strconv.FormatInt(cores, 10)})
}

// Capacity takes amounts by name.
func Capacity(amounts map[resourceapi.QualifiedName]string) RequestOption {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for name, amount := range amounts {
			r.Capacity.Requests[name] = resource.MustParse(amount)
		}
	}
}

// Select adds a CEL expression.
func Select(expression string) RequestOption {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
}

// At accepts only our GPUs at some positions.
func At(positions ...int) RequestOption {
	numbers := make([]string, len(positions))
	for i, position := range positions {
		numbers[i] = strconv.Itoa(position)
	}
	return Select(fmt.Sprintf("device.attributes[%q].index in [%s]", api.DriverName, strings.Join(numbers, ", ")))
}

// Class asks for devices of another class.
func Class(name string) RequestOption {
	return func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = name }
}

// All asks for every device that matches.
func All(r *resourceapi.ExactDeviceRequest) {
	r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
}

// Admin looks on without consuming anything. The scene's namespace has to allow it.
func Admin(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = new(true) }

// Tolerate tolerates device taints of a key.
func Tolerate(key string) RequestOption {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Tolerations = append(r.Tolerations, resourceapi.DeviceToleration{Key: key, Operator: resourceapi.DeviceTolerationOpExists})
	}
}

// Match demands that the devices of the requests, of all if none are named, agree in an attribute.
func Match(attribute resourceapi.FullyQualifiedName, requests ...string) resourceapi.DeviceConstraint {
	return resourceapi.DeviceConstraint{MatchAttribute: &attribute, Requests: requests}
}

// Distinct demands that the devices of the requests, of all if none are named, all differ in an attribute.
func Distinct(attribute resourceapi.FullyQualifiedName, requests ...string) resourceapi.DeviceConstraint {
	return resourceapi.DeviceConstraint{DistinctAttribute: &attribute, Requests: requests}
}

// Required guarantees a level, a bandwidth, or both.
func Required(level api.Level, minGBps int32) *api.TopologyConfig {
	return &api.TopologyConfig{Policy: api.PolicyRequired, Level: level, MinGBps: minGBps}
}

// Policy is a policy without details.
func Policy(policy api.Policy) *api.TopologyConfig { return &api.TopologyConfig{Policy: policy} }

// object builds the claim.
func (c *Claim) object() (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: c.Requests, Constraints: c.Constraints}},
	}
	if c.Annotation != "" {
		claim.Annotations = map[string]string{api.AnnotationTopology: c.Annotation}
	}
	raw := []byte(c.Config)
	if c.Config == "" && c.Topology != nil {
		var err error
		raw, err = json.Marshal(&api.GPUClaimConfig{
			TypeMeta: metav1.TypeMeta{APIVersion: api.GroupVersion().String(), Kind: api.KindGPUClaimConfig},
			Topology: c.Topology,
		})
		if err != nil {
			return nil, fmt.Errorf("writing the configuration of claim %q: %w", c.Name, err)
		}
	}
	if len(raw) > 0 {
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{Requests: c.ConfigRequests, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: raw}},
		}}}
	}
	return claim, nil
}

// Pod says what a pod looks like.
type Pod struct {
	Name string
	// Nodes that it may run on, at least one.
	Nodes []string
	// Claims are names of claims.
	Claims []string
	// Templates are names of ResourceClaimTemplates.
	Templates []string
	// Extended are its container's limits.
	Extended map[corev1.ResourceName]string
	// Scheduler defaults to ours.
	Scheduler string
	// Annotation is the topology annotation; empty for none.
	Annotation string
}

// object builds the pod. It asks for no CPU, so that nothing but its devices decides where it goes.
func (p *Pod) object() *corev1.Pod {
	container := corev1.Container{Name: "job", Image: "none.invalid/simulated:1"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec: corev1.PodSpec{
			SchedulerName: api.SchedulerName, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(0)),
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: p.Nodes,
				}}}},
			}}},
		},
	}
	if p.Scheduler != "" {
		pod.Spec.SchedulerName = p.Scheduler
	}
	if p.Annotation != "" {
		pod.Annotations = map[string]string{api.AnnotationTopology: p.Annotation}
	}
	for _, claim := range p.Claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	for _, template := range p.Templates {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: template, ResourceClaimTemplateName: &template})
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: template})
	}
	if len(p.Extended) > 0 {
		container.Resources.Limits = corev1.ResourceList{}
		for name, amount := range p.Extended {
			container.Resources.Limits[name] = resource.MustParse(amount)
		}
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}
