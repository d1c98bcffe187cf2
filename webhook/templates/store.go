// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// LabelManagedBy is on templates and on the claims that are made from them, with the value ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "topodra-webhook"
	// AnnotationLastUsed says when a template was last handed out, in the format of RFC 3339, within half a grace period.
	AnnotationLastUsed = "gpu.topodra.dev/last-used"

	namePrefix = "topodra-"
	// hashBytes makes names that differ by content: 80 bits.
	hashBytes = 10
	// maxNames is how many names are tried when others have taken the first ones.
	maxNames = 4
	// maxTries bounds how often a write that lost a race is tried again.
	maxTries = 8
)

// Store hands out templates.
type Store struct {
	Client kubernetes.Interface
	// Grace is the collector's grace period.
	Grace time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Name returns the first name of the template for a spec. It depends on nothing but the spec.
func Name(spec *resourceapi.ResourceClaimSpec) (string, error) {
	encoded, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encoding a claim's spec: %w", err)
	}
	sum := sha256.Sum256(encoded)
	return namePrefix + hex.EncodeToString(sum[:hashBytes]), nil
}

// nameAt returns the name that is tried after n others were taken.
func nameAt(first string, n int) string {
	if n == 0 {
		return first
	}
	return fmt.Sprintf("%s-%d", first, n)
}

// Ensure returns the name of a template for the spec in the namespace, which it makes if there is none.
func (s *Store) Ensure(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) (string, error) {
	first, err := Name(spec)
	if err != nil {
		return "", err
	}
	for n := range maxNames {
		name := nameAt(first, n)
		usable, err := s.ensure(ctx, namespace, name, spec)
		if err != nil {
			return "", fmt.Errorf("making template %q in namespace %q: %w", name, namespace, err)
		}
		if usable {
			return name, nil
		}
	}
	return "", fmt.Errorf("making template %q in namespace %q: this name and the next %d are taken by ResourceClaimTemplates with other content: remove them",
		first, namespace, maxNames-1)
}

// ensure makes or finds the template of this name. It returns false if somebody else has the name.
func (s *Store) ensure(ctx context.Context, namespace, name string, spec *resourceapi.ResourceClaimSpec) (bool, error) {
	client := s.Client.ResourceV1().ResourceClaimTemplates(namespace)
	var last error
	for range maxTries {
		found, err := client.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, last = client.Create(ctx, s.template(namespace, name, spec), metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(last) {
				return last == nil, last
			}
			continue // somebody was faster: see what it is
		case err != nil:
			return false, err
		case !isOurs(found) || !equality.Semantic.DeepEqual(found.Spec.Spec, *spec) || found.DeletionTimestamp != nil:
			return false, nil
		case s.now().Sub(lastUsed(found)) < s.Grace/2:
			return true, nil
		}
		last = s.touch(ctx, found)
		if !apierrors.IsConflict(last) && !apierrors.IsNotFound(last) {
			return last == nil, last
		}
	}
	return false, last
}

// template makes the object.
func (s *Store) template(namespace, name string, spec *resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimTemplate {
	labels := func() map[string]string { return map[string]string{LabelManagedBy: ManagedBy} }
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labels(),
			Annotations: map[string]string{AnnotationLastUsed: s.now().UTC().Format(time.RFC3339Nano)},
		},
		Spec: resourceapi.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels()}, Spec: *spec},
	}
}

// touch says that the template is handed out now. It fails with a conflict if the template has changed.
func (s *Store) touch(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": template.UID, "resourceVersion": template.ResourceVersion,
		"annotations": map[string]string{AnnotationLastUsed: s.now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	_, err = s.Client.ResourceV1().ResourceClaimTemplates(template.Namespace).Patch(ctx, template.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (s *Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// isOurs says whether the webhook made the template: a label alone, which anybody can write, does not.
func isOurs(template *resourceapi.ResourceClaimTemplate) bool {
	first, err := Name(&template.Spec.Spec)
	if err != nil || template.Labels[LabelManagedBy] != ManagedBy {
		return false
	}
	suffix, found := strings.CutPrefix(template.Name, first)
	return found && (suffix == "" || strings.HasPrefix(suffix, "-"))
}

// lastUsed reads the annotation. One that cannot be read counts as never.
func lastUsed(template *resourceapi.ResourceClaimTemplate) time.Time {
	used, err := time.Parse(time.RFC3339Nano, template.Annotations[AnnotationLastUsed])
	if err != nil {
		return time.Time{}
	}
	return used
}
