// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
)

const (
	// claimRequest is the name of the only request in a job's claim.
	claimRequest = "gpus"
	// podClaim is the name by which the pod refers to its claim.
	podClaim = "gpus"
)

// claimFor builds the job's claim. It is the same under every scheduler: the stock scheduler does not read our configuration.
func claimFor(job Job) (*resourceapi.ResourceClaim, error) {
	request := &resourceapi.ExactDeviceRequest{
		DeviceClassName: api.DeviceClassGPU,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           int64(job.GPUs),
	}
	if !job.Whole() {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			api.CapacityMemory: *resource.NewQuantity(job.MemoryMiB<<20, resource.BinarySI),
			api.CapacityCores:  *resource.NewQuantity(job.CoresPercent, resource.DecimalSI),
		}}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: job.Name, Namespace: metav1.NamespaceDefault},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: claimRequest, Exactly: request}},
		}},
	}
	if job.GPUs > 1 {
		config, err := configFor(job)
		if err != nil {
			return nil, err
		}
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: config}}
	}
	return claim, nil
}

// configFor writes the job's wish for links as the driver's opaque configuration.
func configFor(job Job) (resourceapi.DeviceConfiguration, error) {
	topology := &api.TopologyConfig{Policy: api.PolicyPreferred}
	if job.Guaranteed() {
		topology = &api.TopologyConfig{Policy: api.PolicyRequired, Level: job.Level, MinGBps: job.MinGBps}
	}
	raw, err := json.Marshal(&api.GPUClaimConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: api.GroupVersion().String(), Kind: api.KindGPUClaimConfig},
		Topology: topology,
	})
	if err != nil {
		return resourceapi.DeviceConfiguration{}, fmt.Errorf("writing the configuration of %q: %w", job.Name, err)
	}
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: raw},
	}}, nil
}

// podFor builds the job's pod. It asks for no CPU, so that nothing but the GPUs decides where it goes.
func podFor(job Job, schedulerName string) *corev1.Pod {
	claim := job.Name
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: job.Name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			SchedulerName: schedulerName,
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "job", Image: "none.invalid/simulated:1",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: podClaim}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: podClaim, ResourceClaimName: &claim}},
		},
	}
}
