// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// RunPods plays the part of the kubelets until Stop: a pod that is bound to a node becomes Running and Ready, and one that
// is being deleted is gone at once, so that its claims are released. Nothing is prepared and nothing runs.
func (c *Cluster) RunPods() error {
	factory := informers.NewSharedInformerFactory(c.client, 0)
	informer := factory.Core().V1().Pods()
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](50*time.Millisecond, 5*time.Second))
	enqueue := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			queue.Add(cache.MetaObjectToName(pod))
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	}); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	return c.goWork(func(ctx context.Context) {
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
		stopQueue := context.AfterFunc(ctx, queue.ShutDown)
		defer stopQueue()
		for {
			name, shutdown := queue.Get()
			if shutdown {
				return
			}
			pod, err := informer.Lister().Pods(name.Namespace).Get(name.Name)
			if err == nil {
				err = c.runPod(ctx, pod)
			}
			if err == nil || apierrors.IsNotFound(err) {
				queue.Forget(name)
			} else if !errors.Is(err, context.Canceled) {
				queue.AddRateLimited(name) // a conflict, or an API server that is busy
			}
			queue.Done(name)
		}
	})
}

// runPod does what a kubelet would tell the API server about a bound pod.
func (c *Cluster) runPod(ctx context.Context, pod *corev1.Pod) error {
	pods := c.client.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		now := int64(0)
		options := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}}
		if err := pods.Delete(ctx, pod.Name, options); err != nil {
			return fmt.Errorf("deleting pod %q: %w", pod.Name, err)
		}
		return nil
	}
	if pod.Status.Phase != corev1.PodPending {
		return nil
	}
	if _, err := pods.UpdateStatus(ctx, runningPod(pod), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the status of pod %q: %w", pod.Name, err)
	}
	return nil
}

// runningPod returns a copy of a pod with the status of one whose containers all run.
func runningPod(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.StartTime = &now
	pod.Status.ContainerStatuses = nil
	for _, container := range pod.Spec.Containers {
		started := true
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: &started,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now,
		})
	}
	return pod
}
