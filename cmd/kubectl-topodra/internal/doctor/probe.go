// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
)

// Names of what dry runs pretend to create. The driver is nobody's, so policies about ours do not apply.
const (
	probeName   = "topodra-doctor-dry-run"
	probeDriver = "doctor.topodra.dev"
)

// dryRun creates nothing.
var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// question is a probe before it is answered: kept reads the answer from what came back.
type question[T any] struct {
	Probe
	kept func(*T) bool
}

// probe asks the API server by dry runs which fields it keeps. A field whose feature is switched off comes back empty.
func probe(ctx context.Context, client kubernetes.Interface, namespace string) []Probe {
	var out []Probe
	out = append(out, ask(ctx, "create resourceclaimtemplates in namespace "+namespace, templateQuestions(), probeTemplate(namespace), client.ResourceV1().ResourceClaimTemplates(namespace).Create)...)
	out = append(out, ask(ctx, "create deviceclasses", classQuestions(), probeClass(), client.ResourceV1().DeviceClasses().Create)...)
	out = append(out, ask(ctx, "create resourceslices", sliceQuestions(), probeSlice(), client.ResourceV1().ResourceSlices().Create)...)
	return append(out, ask(ctx, "create resourceslices", counterQuestions(), probeCounters(), client.ResourceV1().ResourceSlices().Create)...)
}

// ask makes one dry run and answers the questions from it.
func ask[T any](ctx context.Context, right string, questions []question[T], object *T, create func(context.Context, *T, metav1.CreateOptions) (*T, error)) []Probe {
	answer, err := create(ctx, object, dryRun)
	var out []Probe
	for _, q := range questions {
		switch {
		case apierrors.IsForbidden(err):
			q.Unknown = "no right to " + right + " (only a dry run is made), or a policy forbids it: " + err.Error()
		case err != nil:
			q.Unknown = fmt.Sprintf("the dry run failed: %v", err)
		default:
			q.Kept = q.kept(answer)
		}
		out = append(out, q.Probe)
	}
	return out
}

func templateQuestions() []question[resourceapi.ResourceClaimTemplate] {
	exact := func(t *resourceapi.ResourceClaimTemplate) *resourceapi.ExactDeviceRequest {
		if len(t.Spec.Spec.Devices.Requests) == 0 || t.Spec.Spec.Devices.Requests[0].Exactly == nil {
			return &resourceapi.ExactDeviceRequest{}
		}
		return t.Spec.Spec.Devices.Requests[0].Exactly
	}
	return []question[resourceapi.ResourceClaimTemplate]{
		{
			Probe{Gate: "DRAConsumableCapacity", Field: "resourceclaims spec.devices.requests[].exactly.capacity", Need: "claims for a share of a GPU get a whole one"},
			func(t *resourceapi.ResourceClaimTemplate) bool { return exact(t).Capacity != nil },
		},
		{
			Probe{Gate: "DRADeviceTaints", Field: "resourceclaims spec.devices.requests[].exactly.tolerations", Need: "no claim can use a GPU that is tainted, not even to repair it"},
			func(t *resourceapi.ResourceClaimTemplate) bool { return len(exact(t).Tolerations) > 0 },
		},
		{
			Probe{Gate: "DRAPrioritizedList", Field: "resourceclaims spec.devices.requests[].firstAvailable", Need: "claims with alternatives are refused"},
			func(t *resourceapi.ResourceClaimTemplate) bool {
				return len(t.Spec.Spec.Devices.Requests) > 1 && len(t.Spec.Spec.Devices.Requests[1].FirstAvailable) > 0
			},
		},
	}
}

func probeTemplate(namespace string) *resourceapi.ResourceClaimTemplate {
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: probeName, Namespace: namespace}}
	t.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{
		{Name: "exactly", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				api.CapacityMemory: resource.MustParse("1Gi"),
			}},
			Tolerations: []resourceapi.DeviceToleration{{Key: api.DriverName + "/doctor", Operator: resourceapi.DeviceTolerationOpExists}},
		}},
		{Name: "list", FirstAvailable: []resourceapi.DeviceSubRequest{{
			Name: "one", DeviceClassName: api.DeviceClassGPU, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}},
	}
	return t
}

func classQuestions() []question[resourceapi.DeviceClass] {
	return []question[resourceapi.DeviceClass]{{
		Probe{Gate: "DRAExtendedResource", Field: "deviceclasses spec.extendedResourceName", Need: "pods that ask for nvidia.com/gpu in their containers' resources get none of our GPUs"},
		func(c *resourceapi.DeviceClass) bool { return c.Spec.ExtendedResourceName != nil },
	}}
}

func probeClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: probeName},
		Spec:       resourceapi.DeviceClassSpec{ExtendedResourceName: new("doctor.topodra.dev/gpu")},
	}
}

func sliceQuestions() []question[resourceapi.ResourceSlice] {
	first := func(s *resourceapi.ResourceSlice) *resourceapi.Device {
		if len(s.Spec.Devices) == 0 {
			return &resourceapi.Device{}
		}
		return &s.Spec.Devices[0]
	}
	return []question[resourceapi.ResourceSlice]{
		{
			Probe{Gate: "DRAConsumableCapacity", Field: "resourceslices spec.devices[].allowMultipleAllocations", Need: "GPUs cannot be shared: each is for one claim at a time"},
			func(s *resourceapi.ResourceSlice) bool { return first(s).AllowMultipleAllocations != nil },
		},
		{
			Probe{Gate: "DRADeviceTaints", Field: "resourceslices spec.devices[].taints", Need: "GPUs that are broken, or that another agent hands out, too, stay open for new claims"},
			func(s *resourceapi.ResourceSlice) bool { return len(first(s).Taints) > 0 },
		},
	}
}

// probeSlice is a slice that belongs to no real node.
func probeSlice() *resourceapi.ResourceSlice {
	s := emptySlice()
	memory, least := resource.MustParse("1Gi"), resource.MustParse("1Mi")
	s.Spec.Devices = []resourceapi.Device{{
		Name: "gpu", AllowMultipleAllocations: new(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{api.CapacityMemory: {
			Value: memory, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &memory, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &memory, Step: &least}},
		}},
		Taints: []resourceapi.DeviceTaint{{Key: probeDriver + "/doctor", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
	}}
	return s
}

func emptySlice() *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: probeName}}
	s.Spec.Driver = probeDriver
	s.Spec.Pool = resourceapi.ResourcePool{Name: probeName, Generation: 1, ResourceSliceCount: 1}
	s.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
		Key: probeDriver + "/doctor", Operator: corev1.NodeSelectorOpIn, Values: []string{"none"},
	}}}}}
	return s
}

func counterQuestions() []question[resourceapi.ResourceSlice] {
	return []question[resourceapi.ResourceSlice]{{
		Probe{
			Gate: "DRAPartitionableDevices", Field: "resourceslices spec.sharedCounters", Optional: true,
			Need: "MIG devices are published as they are cut, which does not need it; drivers that cut them on demand do",
		},
		func(s *resourceapi.ResourceSlice) bool { return len(s.Spec.SharedCounters) > 0 },
	}}
}

func probeCounters() *resourceapi.ResourceSlice {
	s := emptySlice()
	s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("7")}}}}
	return s
}
