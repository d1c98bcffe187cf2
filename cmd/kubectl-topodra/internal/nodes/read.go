// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/gather"
	"github.com/topodra/topodra/internal/livestate"
)

// View is what can be shown.
type View struct {
	Nodes []livestate.Node
	// Phases are the phases of pods by namespace and name; missing where they could not be read.
	Phases map[PodKey]corev1.PodPhase
	// Warnings are for people; the nodes' own warnings are not among them.
	Warnings []string
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// ErrNoSlices is wrapped by the error about a cluster in which the driver has published nothing.
var ErrNoSlices = errors.New("no GPUs are published")

// Read reads all nodes, or one if name is not empty.
func Read(ctx context.Context, client kubernetes.Interface, name string) (*View, error) {
	live, err := ReadNodes(ctx, client, name)
	if err != nil {
		return nil, err
	}
	view := &View{Nodes: live}
	return view, view.readPhases(ctx, client, name)
}

// ReadNodes reads what the driver has published and who holds it, of all nodes or of one if name is not empty.
func ReadNodes(ctx context.Context, client kubernetes.Interface, name string) ([]livestate.Node, error) {
	published, err := ReadSlices(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(published) == 0 {
		return nil, fmt.Errorf("%w by driver %q: check that its pods run on the GPU nodes, and look at their logs", ErrNoSlices, api.DriverName)
	}
	claims, err := ReadClaims(ctx, client)
	if err != nil {
		return nil, err
	}
	live, err := livestate.Build(published, claims)
	if err != nil {
		return nil, fmt.Errorf("reading the published GPUs: %w", err)
	}
	if name == "" {
		return live, nil
	}
	return keep(ctx, client, live, name)
}

// ReadSlices reads the slices of our driver.
func ReadSlices(ctx context.Context, client kubernetes.Interface) ([]resourceapi.ResourceSlice, error) {
	ofDriver := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DriverName).String()
	published, err := gather.List(ctx, metav1.ListOptions{FieldSelector: ofDriver}, client.ResourceV1().ResourceSlices().List,
		func(l *resourceapi.ResourceSliceList) []resourceapi.ResourceSlice { return l.Items })
	if err != nil {
		return nil, gather.Explain("ResourceSlices", err)
	}
	return published, nil
}

// ReadClaims reads all claims of the cluster.
func ReadClaims(ctx context.Context, client kubernetes.Interface) ([]resourceapi.ResourceClaim, error) {
	claims, err := gather.List(ctx, metav1.ListOptions{}, client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List,
		func(l *resourceapi.ResourceClaimList) []resourceapi.ResourceClaim { return l.Items })
	if err != nil {
		return nil, gather.Explain("ResourceClaims", err)
	}
	return claims, nil
}

// keep drops all nodes but one.
func keep(ctx context.Context, client kubernetes.Interface, live []livestate.Node, name string) ([]livestate.Node, error) {
	var names []string
	for i := range live {
		if live[i].Name == name {
			return live[i : i+1], nil
		}
		names = append(names, live[i].Name)
	}
	known := "nodes that have some: " + strings.Join(names, ", ")
	if _, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no node %q in this cluster; %s", name, known)
	}
	return nil, fmt.Errorf("node %q has no GPUs published by driver %q; %s", name, api.DriverName, known)
}

// readPhases reads the phases of the pods on the nodes. Not being allowed to is a warning.
func (v *View) readPhases(ctx context.Context, client kubernetes.Interface, node string) error {
	opts := metav1.ListOptions{}
	if node != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	pods, err := gather.List(ctx, opts, client.CoreV1().Pods(metav1.NamespaceAll).List,
		func(l *corev1.PodList) []corev1.Pod { return l.Items })
	if apierrors.IsForbidden(err) {
		v.Warnings = append(v.Warnings, "the phases of pods are not shown: no right to list pods in all namespaces")
		return nil
	}
	if err != nil {
		return gather.Explain("pods", err)
	}
	v.Phases = make(map[PodKey]corev1.PodPhase, len(pods))
	for i := range pods {
		v.Phases[PodKey{Namespace: pods[i].Namespace, Name: pods[i].Name}] = pods[i].Status.Phase
	}
	return nil
}
