// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type fakeResolver map[v1.ResourceName]string

func (r fakeResolver) GetDeviceClass(name v1.ResourceName) *resourceapi.DeviceClass {
	class, ok := r[name]
	if !ok {
		return nil
	}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
}

// container asks for GPUs, and for "cpu", which comes before them by name.
func container(gpus int64, always ...bool) v1.Container {
	c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("1")}}}
	if gpus > 0 {
		c.Resources.Requests["example.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	if len(always) > 0 {
		c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	}
	return c
}

func TestExtendedClaim(t *testing.T) {
	t.Parallel()
	resolver := fakeResolver{"example.com/gpu": "gpu", "example.com/nic": "nic"}
	withNIC := container(1)
	withNIC.Resources.Requests["example.com/nic"] = resource.MustParse("2")
	withNIC.Resources.Requests["example.com/unknown"] = resource.MustParse("2")
	for name, tc := range map[string]struct {
		init, main  []v1.Container
		allocatable v1.ResourceList
		want        []string
	}{
		"none":                              {main: []v1.Container{container(0)}},
		"one":                               {main: []v1.Container{container(2)}, want: []string{"container-0-request-1=2 gpu"}},
		"two containers":                    {main: []v1.Container{container(2), container(1)}, want: []string{"container-0-request-1=2 gpu", "container-1-request-1=1 gpu"}},
		"init needs less":                   {init: []v1.Container{container(1)}, main: []v1.Container{container(2)}, want: []string{"container-1-request-1=2 gpu"}},
		"init needs more":                   {init: []v1.Container{container(5)}, main: []v1.Container{container(2)}, want: []string{"container-0-request-1=3 gpu", "container-1-request-1=2 gpu"}},
		"the hungriest of two inits":        {init: []v1.Container{container(3), container(5)}, main: []v1.Container{container(2)}, want: []string{"container-1-request-1=3 gpu", "container-2-request-1=2 gpu"}},
		"a sidecar before does not help":    {init: []v1.Container{container(1, true), container(3)}, main: []v1.Container{container(2)}, want: []string{"container-0-request-1=1 gpu", "container-1-request-1=1 gpu", "container-2-request-1=2 gpu"}},
		"a sidecar after does":              {init: []v1.Container{container(3), container(1, true)}, main: []v1.Container{container(2)}, want: []string{"container-1-request-1=1 gpu", "container-2-request-1=2 gpu"}},
		"two resources and an unknown one":  {main: []v1.Container{withNIC}, want: []string{"container-0-request-1=1 gpu", "container-0-request-2=2 nic"}},
		"a device plugin serves one":        {main: []v1.Container{withNIC}, allocatable: v1.ResourceList{"example.com/gpu": resource.MustParse("8")}, want: []string{"container-0-request-2=2 nic"}},
		"a device plugin has none any more": {main: []v1.Container{container(1)}, allocatable: v1.ResourceList{"example.com/gpu": resource.MustParse("0")}, want: []string{"container-0-request-1=1 gpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: tc.init, Containers: tc.main}}
			node := framework.NewNodeInfo()
			node.SetNode(&v1.Node{Status: v1.NodeStatus{Allocatable: tc.allocatable}})
			var got []string
			if claim := ExtendedClaim(pod, node, resolver); claim != nil {
				for _, r := range claim.Spec.Devices.Requests {
					got = append(got, fmt.Sprintf("%s=%d %s", r.Name, r.Exactly.Count, r.Exactly.DeviceClassName))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}
