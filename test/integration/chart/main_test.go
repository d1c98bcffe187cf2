// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/chart/release"
)

// patience bounds every wait for something that has to come.
const patience = 90 * time.Second

// bed is shared by all tests, which run one after the other: there is one release per cluster.
var bed *world

// world is a cluster on which nothing of ours is installed.
type world struct {
	*cluster.Cluster
	root       string
	kubeconfig string // of the administrator
	dynamic    dynamic.Interface
	mapper     meta.ResettableRESTMapper
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := start(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting the test cluster: %v\n", err)
		return 1
	}
	bed = w
	code := m.Run()
	if err := w.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "ending the test cluster: %v\n", err)
		return 1
	}
	return code
}

func start(ctx context.Context) (*world, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, root: root}
	if err := w.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return w, nil
}

// prepare makes the administrator's clients and removes what the test cluster brings along of ours, but for the namespace.
func (w *world) prepare(ctx context.Context) error {
	var err error
	if w.kubeconfig, err = w.Kubeconfig(ctx, cluster.UserAdmin); err != nil {
		return err
	}
	if w.dynamic, err = dynamic.NewForConfig(w.AdminConfig()); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	w.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.Client().Discovery()))
	accounts := w.Client().CoreV1().ServiceAccounts(release.Namespace)
	rbac := w.Client().RbacV1()
	now := metav1.DeleteOptions{}
	return errors.Join(
		accounts.Delete(ctx, "topodra-scheduler", now), accounts.Delete(ctx, "topodra-driver", now),
		rbac.ClusterRoleBindings().Delete(ctx, "topodra:scheduler", now),
		rbac.ClusterRoleBindings().Delete(ctx, "topodra:scheduler-volumes", now),
		rbac.ClusterRoleBindings().Delete(ctx, "topodra:driver", now),
		rbac.ClusterRoles().Delete(ctx, "topodra:driver", now),
		rbac.RoleBindings("kube-system").Delete(ctx, "topodra:scheduler-authentication-reader", now),
	)
}

// helm runs helm against the cluster.
func (w *world) helm(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := w.tryHelm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) tryHelm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	return release.Helm(context.WithoutCancel(t.Context()), t.TempDir(), append(args, "--kubeconfig", w.kubeconfig, "--namespace", release.Namespace)...)
}

// install installs the chart for one test.
func (w *world) install(t *testing.T, args ...string) {
	t.Helper()
	t.Cleanup(func() { w.uninstall(t) })
	w.helm(t, append([]string{"install", release.Name, release.Chart}, args...)...)
}

// uninstall removes the release and waits until what it made is gone.
func (w *world) uninstall(t *testing.T) {
	t.Helper()
	rendered := w.helm(t, "get", "manifest", release.Name)
	w.helm(t, "uninstall", release.Name, "--wait=hookOnly")
	for _, object := range release.Objects(t, rendered) {
		eventually(context.Background(), t, func() string {
			_, err := w.get(object)
			if apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprintf("%s %q is still there: %v", object.GetKind(), object.GetName(), err)
		})
	}
	leases := w.Client().CoordinationV1().Leases(release.Namespace)
	if err := leases.Delete(context.Background(), "topodra-scheduler", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// resource returns the client for an object's kind in its namespace.
func (w *world) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := object.GroupVersionKind()
	mapping, err := w.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return w.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
	}
	return w.dynamic.Resource(mapping.Resource), nil
}

// get reads what is stored under an object's kind and name.
func (w *world) get(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	client, err := w.resource(object)
	if err != nil {
		return nil, err
	}
	return client.Get(context.Background(), object.GetName(), metav1.GetOptions{})
}

// eventually waits until check returns nothing; what it returns says what is still wrong.
func eventually(ctx context.Context, t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		problem := check()
		switch {
		case problem == "":
			return
		case ctx.Err() != nil || time.Now().After(deadline):
			t.Fatalf("after %s: %s", patience, problem)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// machineFile is a recorded machine.
func (w *world) machineFile(name string) string {
	return filepath.Join(w.root, "topology/topotest/machines", name+".json")
}
