// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
)

// deliver decides how the record's limits reach containers and refuses what
// cannot be done.
func (m *Manager) deliver(ctx context.Context, record *checkpoint.Claim) error {
	record.Delivery = checkpoint.DeliveryNone
	if !record.Limited() {
		if !m.options.NRIOffered() {
			m.noteUsers(ctx, record) // Nobody else will tell who they are.
		}
		return nil
	}
	enforcer := m.options.Enforcer
	if enforcer == nil {
		return refuse(ReasonCannotEnforce, "the claim has shares of GPUs, but this driver was started without anything to limit them with")
	}
	if err := enforcer.Check(ctx); err != nil {
		return refuse(ReasonCannotEnforce, "the claim has shares of GPUs: %v", err)
	}
	record.Enforcer = enforcer.Name()
	containers, err := m.containers(ctx, record)
	if err != nil {
		return err
	}
	if refusal := checkSharing(record, containers); refusal != nil {
		return refusal
	}
	record.Users = users(containers)
	if m.options.NRIOffered() {
		record.Delivery = checkpoint.DeliveryNRI
		return nil
	}
	if enforcer.NeedsNRI() {
		return refuse(ReasonNeedsNRI, "%s acts when a container starts, for which it needs NRI, and the container runtime does not offer it", enforcer.Name())
	}
	record.Delivery = checkpoint.DeliveryCDI
	others, err := m.otherClaims(ctx, record, containers)
	if err != nil {
		return err
	}
	groups, refusal := groupsForCDI(record, containers, func(c *container) []string { return others[c.String()] })
	if refusal != nil {
		return refusal
	}
	record.Groups = groups
	return nil
}

// noteUsersTime bounds what is done only to tell people more.
const noteUsersTime = 2 * time.Second

// noteUsers writes down which containers use the record, if that can be found out.
func (m *Manager) noteUsers(ctx context.Context, record *checkpoint.Claim) {
	ctx, cancel := context.WithTimeout(ctx, noteUsersTime)
	defer cancel()
	containers, err := m.containers(ctx, record)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Not knowing which containers use a claim, so metrics do not name them", "claim", klog.KRef(record.Namespace, record.Name), "err", err)
		return
	}
	record.Users = users(containers)
}

// users writes down containers.
func users(containers []container) []checkpoint.User {
	var out []checkpoint.User
	for i := range containers {
		c := &containers[i]
		out = append(out, checkpoint.User{Pod: c.pod, Container: c.name, Index: c.index, Devices: c.positions})
	}
	return out
}

// containers asks which containers of the claim's pods use it. A pod that is
// gone, or that another of its name has replaced, uses nothing.
func (m *Manager) containers(ctx context.Context, record *checkpoint.Claim) ([]container, error) {
	var out []container
	for _, consumer := range record.Consumers {
		pod, err := m.options.Cluster.Pod(ctx, record.Namespace, consumer.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("finding out which containers use the claim: %w", err)
		}
		if pod.UID != consumer.UID || finished(pod) {
			continue
		}
		out = append(out, containersOf(pod, record.Name, record)...)
	}
	return out, nil
}

// finished says whether none of the pod's containers will run again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// otherClaims lists, for each container by its text, the other claims that give
// it devices of this driver.
func (m *Manager) otherClaims(ctx context.Context, record *checkpoint.Claim, containers []container) (map[string][]string, error) {
	ours := map[string]bool{record.Name: false}
	out := map[string][]string{}
	for i := range containers {
		c := &containers[i]
		for _, name := range c.claims {
			if _, asked := ours[name]; !asked {
				isOurs, err := m.hasOurDevices(ctx, record.Namespace, name)
				if err != nil {
					return nil, fmt.Errorf("finding out about other claims of %s: %w", c, err)
				}
				ours[name] = isOurs
			}
			if ours[name] {
				out[c.String()] = append(out[c.String()], name)
			}
		}
	}
	return out, nil
}

// hasOurDevices says whether devices of this driver are allocated to a claim. One
// that does not exist has none.
func (m *Manager) hasOurDevices(ctx context.Context, namespace, name string) (bool, error) {
	claim, err := m.options.Cluster.Claim(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil || claim.Status.Allocation == nil {
		return false, err
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == api.DriverName
	}), nil
}
