// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api"
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

// pageSize bounds one answer of the API server.
const pageSize = 500

// Read reads all nodes, or one if name is not empty.
func Read(ctx context.Context, client kubernetes.Interface, name string) (*View, error) {
	ofDriver := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DriverName).String()
	published, err := list(ctx, metav1.ListOptions{FieldSelector: ofDriver}, client.ResourceV1().ResourceSlices().List,
		func(l *resourceapi.ResourceSliceList) []resourceapi.ResourceSlice { return l.Items })
	if err != nil {
		return nil, explain("ResourceSlices", err)
	}
	if len(published) == 0 {
		return nil, fmt.Errorf("%w by driver %q: check that its pods run on the GPU nodes, and look at their logs", ErrNoSlices, api.DriverName)
	}
	claims, err := list(ctx, metav1.ListOptions{}, client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List,
		func(l *resourceapi.ResourceClaimList) []resourceapi.ResourceClaim { return l.Items })
	if err != nil {
		return nil, explain("ResourceClaims", err)
	}
	view := &View{}
	if view.Nodes, err = livestate.Build(published, claims); err != nil {
		return nil, fmt.Errorf("reading the published GPUs: %w", err)
	}
	if name != "" {
		if err := view.keep(ctx, client, name); err != nil {
			return nil, err
		}
	}
	return view, view.readPhases(ctx, client, name)
}

// keep drops all nodes but one.
func (v *View) keep(ctx context.Context, client kubernetes.Interface, name string) error {
	var names []string
	for _, n := range v.Nodes {
		if n.Name == name {
			v.Nodes = []livestate.Node{n}
			return nil
		}
		names = append(names, n.Name)
	}
	known := "nodes that have some: " + strings.Join(names, ", ")
	if _, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no node %q in this cluster; %s", name, known)
	}
	return fmt.Errorf("node %q has no GPUs published by driver %q; %s", name, api.DriverName, known)
}

// readPhases reads the phases of the pods on the nodes. Not being allowed to is a warning.
func (v *View) readPhases(ctx context.Context, client kubernetes.Interface, node string) error {
	opts := metav1.ListOptions{}
	if node != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	pods, err := list(ctx, opts, client.CoreV1().Pods(metav1.NamespaceAll).List,
		func(l *corev1.PodList) []corev1.Pod { return l.Items })
	if apierrors.IsForbidden(err) {
		v.Warnings = append(v.Warnings, "the phases of pods are not shown: no right to list pods in all namespaces")
		return nil
	}
	if err != nil {
		return explain("pods", err)
	}
	v.Phases = make(map[PodKey]corev1.PodPhase, len(pods))
	for i := range pods {
		v.Phases[PodKey{Namespace: pods[i].Namespace, Name: pods[i].Name}] = pods[i].Status.Phase
	}
	return nil
}

// list reads all pages of a list.
func list[T any, L metav1.ListInterface](ctx context.Context, opts metav1.ListOptions,
	get func(context.Context, metav1.ListOptions) (L, error), items func(L) []T,
) ([]T, error) {
	opts.Limit = pageSize
	var all []T
	for {
		page, err := get(ctx, opts)
		if err != nil {
			return nil, err
		}
		all = append(all, items(page)...)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return slices.Clip(all), nil
		}
	}
}

// explain turns an answer of the API server into what the user can do about it.
func explain(what string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("listing %s in the whole cluster: not allowed; a role with the verb \"list\" on resourceslices and resourceclaims "+
			"(resource.k8s.io) and on pods is needed: %w", what, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("listing %s: the API server does not accept the credentials of this kubeconfig: %w", what, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("listing %s: this API server does not serve resource.k8s.io/v1, Kubernetes 1.34 or newer is needed: %w", what, err)
	default:
		return fmt.Errorf("listing %s: %w", what, err)
	}
}
