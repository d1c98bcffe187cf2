// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/testbed"
)

// The permissions in manifests/scheduler are enough: with them alone, and with leader election, the scheduler does its work
// and nothing is denied to it.
func TestManifestPermissions(t *testing.T) {
	s := bed.Scene(t)
	manifests := filepath.Join(s.Root, "manifests/scheduler")
	account := serviceAccount(t, manifests)
	if err := s.StopScheduler(t.Context()); err != nil {
		t.Error(err)
	}
	restore := withdraw(t, s)
	kinds := []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
	if err := s.Cluster.Apply(t.Context(), []string{manifests}, kinds...); err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error {
		return errors.Join(s.StopScheduler(ctx), restore(ctx), s.StartScheduler(ctx))
	})
	if err := s.StartSchedulerAs(t.Context(), account, "--leader-elect=true"); err != nil {
		t.Fatal(err)
	}
	s.Place(job("claim", 2, testbed.Required(api.LevelNVLink, 0)), weave)
	s.WantGPUs("claim", weave, "0,2")
	s.CreatePod(testbed.Pod{Name: "extended", Nodes: []string{weave}, Extended: map[corev1.ResourceName]string{nvidiaGPU: "2"}})
	s.WaitBound("extended")
	s.WantGPUs(s.ExtendedClaim("extended"), weave, "1,3")
	s.Submit(job("waits", 8, nil), weave)
	s.WaitPending("waits", "0/")
	s.WaitEvent("waits", "FailedScheduling")
	log, err := os.ReadFile(s.Scheduler(t).LogPath)
	if err != nil {
		t.Fatal(err)
	}
	denied := regexp.MustCompile(`User \\*"[^"]*" cannot [^\n]{0,200}`)
	for _, line := range denied.FindAllString(string(log), 5) {
		t.Errorf("the scheduler was denied something: %s", line)
	}
}

// serviceAccount returns the user name of the only ServiceAccount in a directory of manifests.
func serviceAccount(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var accounts []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(data), "\n---") {
			var object metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("reading %q: %v", file, err)
			}
			if object.Kind == "ServiceAccount" {
				accounts = append(accounts, "system:serviceaccount:"+object.Namespace+":"+object.Name)
			}
		}
	}
	if len(accounts) != 1 {
		t.Fatalf("%q has service accounts %q, want one", dir, accounts)
	}
	return accounts[0]
}

// withdraw takes the test cluster's own permissions from the scheduler's service account and returns how to give them back.
func withdraw(t *testing.T, s *testbed.Scene) func(context.Context) error {
	t.Helper()
	isScheduler := func(subject rbacv1.Subject) bool {
		return "system:serviceaccount:"+subject.Namespace+":"+subject.Name == cluster.UserTopoDRAScheduler
	}
	rbac := s.Client.RbacV1()
	bindings, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roles, err := rbac.RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var restore []func(context.Context) error
	for i := range bindings.Items {
		binding := &bindings.Items[i]
		if len(binding.Subjects) != 1 || !isScheduler(binding.Subjects[0]) {
			continue
		}
		if err := rbac.ClusterRoleBindings().Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		binding.ResourceVersion = ""
		restore = append(restore, func(ctx context.Context) error {
			_ = rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}) // the manifest's, if it has the same name
			_, err := rbac.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
			return err
		})
	}
	for i := range roles.Items {
		binding := &roles.Items[i]
		if len(binding.Subjects) != 1 || !isScheduler(binding.Subjects[0]) {
			continue
		}
		if err := rbac.RoleBindings(binding.Namespace).Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		binding.ResourceVersion = ""
		restore = append(restore, func(ctx context.Context) error {
			_ = rbac.RoleBindings(binding.Namespace).Delete(ctx, binding.Name, metav1.DeleteOptions{})
			_, err := rbac.RoleBindings(binding.Namespace).Create(ctx, binding, metav1.CreateOptions{})
			return err
		})
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, f := range restore {
			errs = append(errs, f(ctx))
		}
		return errors.Join(errs...)
	}
}
