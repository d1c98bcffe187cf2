// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/gather"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/nodes"
)

// Gather takes a snapshot. namespace is where dry runs pretend to create objects. The error is about a cluster that does not
// answer at all.
func Gather(ctx context.Context, config *rest.Config, namespace string) (*Snapshot, error) {
	var clock serverClock
	config = rest.CopyConfig(config)
	config.Wrap(clock.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	s := &Snapshot{Unread: map[Resource]string{}}
	version, err := client.Discovery().ServerVersion()
	switch {
	case err == nil:
		s.GitVersion = version.GitVersion
	case apierrors.IsForbidden(err):
		s.unread(Version, "read", err)
	default:
		return nil, fmt.Errorf("asking the API server for its version: %w", err)
	}
	s.Now, s.ServerTime = clock.times()
	if s.ServerTime.IsZero() {
		s.Unread[ServerClock] = "the API server's answers have no Date"
	}
	s.lists(ctx, client)
	s.namespaced(ctx, client)
	s.Probes = probe(ctx, client, namespace)
	return s, nil
}

func (s *Snapshot) unread(r Resource, verb string, err error) {
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		s.Unread[r] = fmt.Sprintf("no right to %s %s", verb, r)
	case apierrors.IsNotFound(err):
		s.Unread[r] = fmt.Sprintf("the API server does not serve %s", r)
	default:
		s.Unread[r] = fmt.Sprintf("reading %s: %v", r, err)
	}
}

// lists reads everything that is not in namespaces of its own.
func (s *Snapshot) lists(ctx context.Context, client kubernetes.Interface) {
	var err error
	all := metav1.ListOptions{}
	s.Slices, err = nodes.ReadSlices(ctx, client)
	s.unread(Slices, "list", err)
	s.Claims, err = nodes.ReadClaims(ctx, client)
	s.unread(Claims, "list", err)
	s.Classes, err = gather.List(ctx, all, client.ResourceV1().DeviceClasses().List, func(l *resourceapi.DeviceClassList) []resourceapi.DeviceClass { return l.Items })
	s.unread(Classes, "list", err)
	s.Nodes, err = gather.List(ctx, all, client.CoreV1().Nodes().List, func(l *corev1.NodeList) []corev1.Node { return l.Items })
	s.unread(Nodes, "list", err)
	s.Pods, err = gather.List(ctx, all, client.CoreV1().Pods(metav1.NamespaceAll).List, func(l *corev1.PodList) []corev1.Pod { return l.Items })
	s.unread(Pods, "list", err)
	s.Leases, err = gather.List(ctx, all, client.CoordinationV1().Leases(metav1.NamespaceAll).List, func(l *coordinationv1.LeaseList) []coordinationv1.Lease { return l.Items })
	s.unread(Leases, "list", err)
	admission := client.AdmissionregistrationV1()
	s.Policies, err = gather.List(ctx, all, admission.ValidatingAdmissionPolicies().List,
		func(l *admissionv1.ValidatingAdmissionPolicyList) []admissionv1.ValidatingAdmissionPolicy {
			return l.Items
		})
	s.unread(Policies, "list", err)
	s.Bindings, err = gather.List(ctx, all, admission.ValidatingAdmissionPolicyBindings().List,
		func(l *admissionv1.ValidatingAdmissionPolicyBindingList) []admissionv1.ValidatingAdmissionPolicyBinding {
			return l.Items
		})
	s.unread(Bindings, "list", err)
	s.Mutating, err = gather.List(ctx, all, admission.MutatingWebhookConfigurations().List,
		func(l *admissionv1.MutatingWebhookConfigurationList) []admissionv1.MutatingWebhookConfiguration {
			return l.Items
		})
	s.unread(Mutating, "list", err)
	s.Validating, err = gather.List(ctx, all, admission.ValidatingWebhookConfigurations().List,
		func(l *admissionv1.ValidatingWebhookConfigurationList) []admissionv1.ValidatingWebhookConfiguration {
			return l.Items
		})
	s.unread(Validating, "list", err)
}

// namespaced reads what belongs to the services of our webhooks.
func (s *Snapshot) namespaced(ctx context.Context, client kubernetes.Interface) {
	read := map[string]bool{}
	for _, h := range s.hooks() {
		if h.client.Service == nil || read[h.client.Service.Namespace] {
			continue
		}
		namespace := h.client.Service.Namespace
		read[namespace] = true
		endpoints, err := gather.List(ctx, metav1.ListOptions{}, client.DiscoveryV1().EndpointSlices(namespace).List,
			func(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice { return l.Items })
		s.unread(Endpoints, "list", err)
		s.Endpoints = append(s.Endpoints, endpoints...)
		secrets, err := gather.List(ctx, metav1.ListOptions{}, client.CoreV1().Secrets(namespace).List, func(l *corev1.SecretList) []corev1.Secret { return l.Items })
		s.unread(Secrets, "list", err)
		s.Secrets = append(s.Secrets, secrets...)
	}
}

// serverClock remembers the Date of the first answer and the local time in the middle of that request.
type serverClock struct {
	mu            sync.Mutex
	local, server time.Time
}

func (c *serverClock) wrap(next http.RoundTripper) http.RoundTripper {
	return &clockReader{next: next, clock: c}
}

func (c *serverClock) times() (local, server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return time.Now(), time.Time{}
	}
	return c.local, c.server
}

type clockReader struct {
	next  http.RoundTripper
	clock *serverClock
}

// RoundTrip implements http.RoundTripper.
func (r *clockReader) RoundTrip(request *http.Request) (*http.Response, error) {
	start := time.Now()
	response, err := r.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if date, parseErr := http.ParseTime(response.Header.Get("Date")); parseErr == nil {
		r.clock.mu.Lock()
		if r.clock.local.IsZero() {
			r.clock.local, r.clock.server = start.Add(time.Since(start)/2), date
		}
		r.clock.mu.Unlock()
	}
	return response, nil
}
