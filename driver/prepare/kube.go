// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Cluster is what preparing reads from the API server. Answers must be live, not
// from a cache: what is removed on their word cannot be brought back.
type Cluster interface {
	// Claim and Pod return an error that apierrors.IsNotFound knows when the
	// object is not there.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)

	// PodsOfNode lists the pods that are bound to the node.
	PodsOfNode(ctx context.Context, nodeName string) ([]corev1.Pod, error)
}

// NewCluster reads with client.
func NewCluster(client kubernetes.Interface) Cluster { return cluster{client: client} }

type cluster struct{ client kubernetes.Interface }

func (c cluster) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting claim \"%s/%s\": %w", namespace, name, err)
	}
	return claim, nil
}

func (c cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting pod \"%s/%s\": %w", namespace, name, err)
	}
	return pod, nil
}

func (c cluster) PodsOfNode(ctx context.Context, nodeName string) ([]corev1.Pod, error) {
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", nodeName).String()})
	if err != nil {
		return nil, fmt.Errorf("listing pods of node %q: %w", nodeName, err)
	}
	// A server that ignores the selector must not make pods of others ours.
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName != nodeName }), nil
}

// Events tells people what has happened.
type Events interface {
	// Claim writes a warning about a claim.
	Claim(namespace, name string, uid types.UID, reason, message string)

	// Node writes a warning about this node.
	Node(reason, message string)
}

// Reasons of events besides those of refusals.
const (
	// EventCheckpointCorrupt: the driver's memory was unreadable and was rebuilt.
	EventCheckpointCorrupt = "CheckpointCorrupt"

	// EventPrepareFailed: a claim could not be prepared; it is tried again.
	EventPrepareFailed = "PrepareFailed"

	// EventOrphanRemoved: something of a claim that is gone was cleaned up.
	EventOrphanRemoved = "OrphanRemoved"
)

// Recorder writes events; it implements Events and that of package nri.
type Recorder struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
}

// NewRecorder writes events by recorder; node refers to this node.
func NewRecorder(recorder record.EventRecorder, node *corev1.ObjectReference) *Recorder {
	return &Recorder{recorder: recorder, node: node}
}

// Claim implements Events.
func (r *Recorder) Claim(namespace, name string, uid types.UID, reason, message string) {
	r.warn(&corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: namespace, Name: name, UID: uid}, reason, message)
}

// Pod writes a warning about a pod.
func (r *Recorder) Pod(namespace, name string, uid types.UID, reason, message string) {
	r.warn(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid}, reason, message)
}

// Node implements Events.
func (r *Recorder) Node(reason, message string) { r.warn(r.node, reason, message) }

func (r *Recorder) warn(about *corev1.ObjectReference, reason, message string) {
	r.recorder.Event(about, corev1.EventTypeWarning, reason, shorten(message))
}

// shorten cuts a message to the 1024 bytes that an event can hold.
func shorten(message string) string {
	const most, ellipsis = 1024, "…"
	if len(message) <= most {
		return message
	}
	end := most - len(ellipsis)
	for end > 0 && message[end]&0xc0 == 0x80 {
		end-- // Not in the middle of a character.
	}
	return message[:end] + ellipsis
}
