// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestDriverRights: drivers on a cluster of tests may do what the shipped manifest allows, apart from evicting pods, which
// no test of theirs does.
func TestDriverRights(t *testing.T) {
	t.Parallel()
	root, err := RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	rules := func(path string) []rbacv1.PolicyRule {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal(doc, &role); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if role.Kind == "ClusterRole" && role.Name == "topodra:driver" {
				return role.Rules
			}
		}
		t.Fatalf("%s: no ClusterRole topodra:driver", path)
		return nil
	}
	shipped := rules(filepath.Join(root, "manifests", "driver", "rbac.yaml"))
	want := append(rules(filepath.Join(root, "test", "cluster", "rbac.yaml")),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}})
	if diff := cmp.Diff(want, shipped); diff != "" {
		t.Errorf("manifests/driver/rbac.yaml (-tests +shipped):\n%s", diff)
	}
}
