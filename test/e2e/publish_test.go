// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
)

// TestSlicesDeletedByHand: they come back as they were, and pods that run are not disturbed.
func TestSlicesDeletedByHand(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi"})
	pod := f.run(f.simplePod("pod", "claim"))
	want := f.check(pod, "main")
	slices := f.client.ResourceV1().ResourceSlices()
	if err := slices.DeleteCollection(f.ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + api.DriverName}); err != nil {
		t.Fatal(err)
	}
	after, err := f.published(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.devices, after, cmp.AllowUnexported(published{})); diff != "" {
		t.Errorf("devices (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(want, f.check(pod, "main")); diff != "" {
		t.Errorf("shares of the pod (-before +after):\n%s", diff)
	}
	f.claim("next", request{memory: "4Gi"})
	f.check(f.run(f.simplePod("next", "next")), "main")
}
