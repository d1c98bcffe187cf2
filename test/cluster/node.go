// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// NodeOptions describes a node that exists only as an object.
type NodeOptions struct {
	// Name is the node's name.
	Name string
	// Labels are added to the host name label.
	Labels map[string]string
	// Capacity is added to, or overrides, the default: 256 CPUs, 2Ti of memory, 500 pods. All of it is allocatable.
	Capacity corev1.ResourceList
	// Taints are set as they are.
	Taints []corev1.Taint
}

// AddNode creates a node that is Ready for ever.
func (c *Cluster) AddNode(ctx context.Context, opts NodeOptions) (*corev1.Node, error) {
	labels := map[string]string{corev1.LabelHostname: opts.Name}
	maps.Copy(labels, opts.Labels)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("256"),
		corev1.ResourceMemory: resource.MustParse("2Ti"),
		corev1.ResourcePods:   resource.MustParse("500"),
	}
	maps.Copy(capacity, opts.Capacity)
	now := metav1.Now()
	node, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: opts.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: opts.Taints},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity.DeepCopy(),
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", Message: "this node has no kubelet",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating node %q: %w", opts.Name, err)
	}
	return node, nil
}

// RemoveNode stops the node's drivers and deletes the node and its ResourceSlices. Pods that are bound to it are left to
// the pod garbage collector. A node that does not exist is no error.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	c.mu.Lock()
	drivers := c.drivers[name]
	delete(c.drivers, name)
	c.mu.Unlock()
	errs := []error{stopAll(drivers)}
	err := c.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, fmt.Errorf("deleting node %q: %w", name, err))
	}
	ofNode := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, name).String(),
	}
	if err := c.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, ofNode); err != nil {
		errs = append(errs, fmt.Errorf("deleting the ResourceSlices of node %q: %w", name, err))
	}
	return errors.Join(errs...)
}
