// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// migrated says what is missing until so many pods are bound by our scheduler, each with a claim that takes what is wanted.
func migrated(ctx context.Context, s *testbed.Scene, pods int, want string) string {
	list, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	done := 0
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.SchedulerName != api.SchedulerName || len(classicLeft(p)) > 0 {
			return fmt.Sprintf("pod %q has scheduler %q and %q", p.Name, p.Spec.SchedulerName, classicLeft(p))
		}
		if p.Spec.NodeName == "" || len(p.Status.ResourceClaimStatuses) != 1 {
			continue
		}
		claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, *p.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if got := taken(ctx, s, claim); got != want {
			return fmt.Sprintf("pod %q takes %q, want %q", p.Name, got, want)
		}
		done++
	}
	if done != pods || len(list.Items) != pods {
		return fmt.Sprintf("%d of %d pods are placed, there should be %d", done, len(list.Items), pods)
	}
	return ""
}

// taken is what a claim takes of each GPU, "memory/cores", or "whole" for all of the memory.
func taken(ctx context.Context, s *testbed.Scene, claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil {
		return "nothing"
	}
	slices, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	parts := strings.Fields(consumed(claim))
	for i, result := range claim.Status.Allocation.Devices.Results {
		for x := range slices.Items {
			for _, device := range slices.Items[x].Spec.Devices {
				memory, used := device.Capacity[api.CapacityMemory].Value, result.ConsumedCapacity[api.CapacityMemory]
				if slices.Items[x].Spec.Pool.Name == result.Pool && device.Name == result.Device && memory.Cmp(used) == 0 {
					parts[i] = "whole"
				}
			}
		}
	}
	return strings.Join(parts, " ")
}
