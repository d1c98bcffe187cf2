// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// pageSize bounds the answers of the API server.
const pageSize = 500

// Collector removes templates that nobody uses.
type Collector struct {
	Client kubernetes.Interface
	// Grace is how long a template stays after it was last handed out.
	Grace time.Duration
	// Period is the time between two passes.
	Period time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Removed is called for each template that was removed; nil is nobody.
	Removed func()
}

// Start collects until ctx ends.
func (c *Collector) Start(ctx context.Context) error {
	ticker := time.NewTicker(c.Period)
	defer ticker.Stop()
	for {
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Collecting templates, will try again", "period", c.Period)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Collect makes one pass. An error in one namespace does not keep it from the others.
func (c *Collector) Collect(ctx context.Context) error {
	old, err := c.candidates(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, namespace := range slices.Sorted(maps.Keys(old)) {
		// The pods are read after the time was: one that was admitted before is in the list, or its template has been touched.
		used, err := c.used(ctx, namespace)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, template := range old[namespace] {
			if !used[template.Name] {
				errs = append(errs, c.remove(ctx, template))
			}
		}
	}
	return errors.Join(errs...)
}

// candidates returns our templates whose grace period is over, by namespace.
func (c *Collector) candidates(ctx context.Context) (map[string][]*resourceapi.ResourceClaimTemplate, error) {
	now := time.Now()
	if c.Now != nil {
		now = c.Now()
	}
	old := map[string][]*resourceapi.ResourceClaimTemplate{}
	selector := labels.SelectorFromSet(labels.Set{LabelManagedBy: ManagedBy}).String()
	for token := ""; ; {
		list, err := c.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: pageSize, Continue: token})
		if err != nil {
			return nil, fmt.Errorf("listing ResourceClaimTemplates: %w", err)
		}
		for i := range list.Items {
			template := &list.Items[i]
			if isOurs(template) && template.DeletionTimestamp == nil && now.Sub(lastUsed(template)) >= c.Grace {
				old[template.Namespace] = append(old[template.Namespace], template)
			}
		}
		if token = list.Continue; token == "" {
			return old, nil
		}
	}
}

// used returns the names of templates that pods of the namespace refer to and may still need.
func (c *Collector) used(ctx context.Context, namespace string) (map[string]bool, error) {
	names := map[string]bool{}
	for token := ""; ; {
		list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: token})
		if err != nil {
			return nil, fmt.Errorf("listing pods in namespace %q: %w", namespace, err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			for _, claim := range pod.Spec.ResourceClaims {
				if claim.ResourceClaimTemplateName != nil {
					names[*claim.ResourceClaimTemplateName] = true
				}
			}
		}
		if token = list.Continue; token == "" {
			return names, nil
		}
	}
}

// remove deletes the template as it was seen, and nothing else.
func (c *Collector) remove(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
	err := c.Client.ResourceV1().ResourceClaimTemplates(template.Namespace).Delete(ctx, template.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &template.UID, ResourceVersion: &template.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // somebody removed it, or handed it out again
		return nil
	case err != nil:
		return fmt.Errorf("removing template %q in namespace %q: %w", template.Name, template.Namespace, err)
	}
	klog.FromContext(ctx).V(2).Info("Removed template without users", "template", klog.KObj(template))
	if c.Removed != nil {
		c.Removed()
	}
	return nil
}
