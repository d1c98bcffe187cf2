// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/gather"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
)

// Read takes a snapshot for a pod. Without the right to read the pod or the slices there is no answer; what else may not be read
// is noted.
func Read(ctx context.Context, client kubernetes.Interface, namespace, name string) (*Snapshot, error) {
	s := &Snapshot{Now: time.Now()}
	var err error
	if s.Pod, err = client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, explainPod(namespace, name, err)
	}
	if s.Slices, err = nodes.ReadSlices(ctx, client); err != nil {
		return nil, err
	}
	if err := s.readClaims(ctx, client); err != nil {
		return nil, err
	}
	if s.Classes, err = gather.List(ctx, metav1.ListOptions{}, client.ResourceV1().DeviceClasses().List,
		func(l *resourceapi.DeviceClassList) []resourceapi.DeviceClass { return l.Items }); err != nil {
		return nil, fmt.Errorf("listing DeviceClasses: %w", err)
	}
	if s.Pod.Spec.NodeName != "" {
		return s, nil
	}
	s.Nodes, err = gather.List(ctx, metav1.ListOptions{}, client.CoreV1().Nodes().List, func(l *corev1.NodeList) []corev1.Node { return l.Items })
	s.note("nodes are not looked at, only their GPUs", "list nodes", err)
	s.Pods, err = gather.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!="}, client.CoreV1().Pods(metav1.NamespaceAll).List,
		func(l *corev1.PodList) []corev1.Pod { return l.Items })
	s.note("CPU and memory of nodes are not looked at", "list pods in all namespaces", err)
	s.Events, err = gather.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(s.Pod.UID)).String()},
		client.CoreV1().Events(namespace).List, func(l *corev1.EventList) []corev1.Event { return l.Items })
	s.note("events are not read, the pod's conditions are", "list events in its namespace", err)
	s.readTemplates(ctx, client)
	return s, nil
}

// note remembers what could not be read.
func (s *Snapshot) note(missing, right string, err error) {
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		s.Unread = append(s.Unread, missing+": no right to "+right)
	default:
		s.Unread = append(s.Unread, missing+": "+err.Error())
	}
}

func explainPod(namespace, name string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no pod %q in namespace %q: name another namespace with -n", name, namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("reading pod %q in namespace %q: not allowed; a role with the verb \"get\" on pods is needed: %w", name, namespace, err)
	default:
		return fmt.Errorf("reading pod %q in namespace %q: %w", name, namespace, err)
	}
}

// readClaims reads all claims or, without the right to, those that the pod names: then other pods' GPUs look free, which is noted.
func (s *Snapshot) readClaims(ctx context.Context, client kubernetes.Interface) error {
	all, err := nodes.ReadClaims(ctx, client)
	if err == nil {
		s.Claims = all
		return nil
	}
	if !apierrors.IsForbidden(err) {
		return err
	}
	s.Unread = append(s.Unread, "who else holds GPUs is not known, so GPUs that are held look free: no right to list resourceclaims in all namespaces")
	for _, name := range claimNames(s.Pod) {
		claim, err := client.ResourceV1().ResourceClaims(s.Pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("reading ResourceClaim %q: %w", name, err)
		default:
			s.Claims = append(s.Claims, *claim)
		}
	}
	return nil
}

// claimNames are the names of the pod's claims, as far as they are known.
func claimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		names = append(names, s.ResourceClaimName)
	}
	return names
}

// readTemplates reads the templates that the pod names.
func (s *Snapshot) readTemplates(ctx context.Context, client kubernetes.Interface) {
	found := map[string]*resourceapi.ResourceClaimTemplate{}
	for i := range s.Pod.Spec.ResourceClaims {
		name := s.Pod.Spec.ResourceClaims[i].ResourceClaimTemplateName
		if name == nil {
			continue
		}
		template, err := client.ResourceV1().ResourceClaimTemplates(s.Pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			s.note("templates are not read", "get resourceclaimtemplates in its namespace", err)
			return
		default:
			found[*name] = template
		}
	}
	s.Templates = found
}
