// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/driver/checkpoint"
)

// TestUsers: who uses a claim is written down when that is known or cheap to find
// out, and never a reason to refuse anything.
func TestUsers(t *testing.T) {
	t.Parallel()
	whole, share := result{request: "w", gpu: 1, memory: 80}, result{request: "s", gpu: 0, memory: 10}
	for name, test := range map[string]struct {
		results []result
		nri     bool
		fails   bool
		want    []checkpoint.User
	}{
		"shares":                         {results: []result{share, whole}, nri: true, want: []checkpoint.User{{Pod: "pod-train", Container: "first", Index: 2, Devices: []int{0}}, {Pod: "pod-train", Container: "main", Index: 1, Devices: []int{0, 1}}}},
		"whole, NRI will tell":           {results: []result{whole}, nri: true},
		"whole, nobody else would":       {results: []result{whole}, want: []checkpoint.User{{Pod: "pod-train", Container: "main", Index: 1, Devices: []int{0}}}},
		"whole, and no server to ask it": {results: []result{whole}, fails: true},
	} {
		f := newFixture(t)
		f.nri = test.nri
		pod := podWith("train", "init:first=c/s", "app:idle=", "app:main=c")
		c := claim("c", []*corev1.Pod{pod}, test.results...)
		f.cluster.add(pod, c)
		if test.fails {
			f.cluster.err = errors.New("away")
		}
		if _, err := f.manager().Prepare(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		document, err := checkpoint.NewStore(f.state, nodeName).Load()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, document.Claims[c.UID].Users); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
