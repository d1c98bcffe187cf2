// SPDX-License-Identifier: Apache-2.0

// Package gather reads lists of objects from the API server and says in words why one could not be read.
//
// Invariants: it only reads; an answer is whole, never the first page of several.
//
// Concurrency: functions without state. Allowed imports: apimachinery, client-go.
package gather

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageSize bounds one answer of the API server.
const pageSize = 500

// List reads all pages of a list.
func List[T any, L metav1.ListInterface](ctx context.Context, opts metav1.ListOptions,
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

// Explain turns the API server's refusal of a list into what the user can do about it.
func Explain(what string, err error) error {
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

// Reason says in a few words why something could not be read.
func Reason(err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsForbidden(err):
		return "no right to"
	default:
		return err.Error()
	}
}
