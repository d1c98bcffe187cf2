// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// testTimeout bounds one test: generous, because the machine may be busy.
const testTimeout = 6 * time.Minute

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// startCluster starts a cluster that is stopped at the end of the test.
func startCluster(t *testing.T, opts Options) *Cluster {
	t.Helper()
	c, err := Start(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// everyProcess returns all processes of a cluster.
func (c *Cluster) everyProcess() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Process
	for _, stage := range c.stages {
		all = append(all, stage...)
	}
	return all
}

// checkGone fails the test if a process of the cluster or its directory is still there.
func checkGone(t *testing.T, c *Cluster) {
	t.Helper()
	for _, p := range c.everyProcess() {
		if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %q (pid %d) is still there: %v", p.Name, p.PID(), err)
		}
	}
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory %q is still there: %v", c.Dir(), err)
	}
}

// suite is the tests that share a cluster, in the order of TestCluster.
type suite struct{ c *Cluster }

// TestCluster checks on one cluster what needs nothing special at its start.
func TestCluster(t *testing.T) {
	s := suite{startCluster(t, Options{Users: map[string][]string{"somebody": {"people"}}})}
	t.Run("ready", s.ready)
	t.Run("rights", s.rights)
	t.Run("kubeconfig", s.kubeconfig)
	t.Run("claim template and stock scheduler", s.stockScheduler)
	t.Run("run pods", s.runPods)
	t.Run("remove node", s.removeNode)
	t.Run("scheduler fails", s.schedulerFails)
	t.Run("driver fails", s.driverFails)
	t.Run("apply", s.apply)
	t.Run("order of the end", s.stop)
}

func (s suite) ready(t *testing.T) {
	c := s.c
	body, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	if err != nil || string(body) != "ok" {
		t.Errorf("/readyz: got %q, %v, want ok", body, err)
	}
	if version, err := c.client.Discovery().ServerVersion(); err != nil || version.GitVersion != "v1.37.2" {
		t.Errorf("server version: got %v, %v, want v1.37.2", version, err)
	}
	var names []string
	for _, p := range c.everyProcess() {
		names = append(names, p.Name)
	}
	if got, want := fmt.Sprint(names), "[kube-controller-manager kube-apiserver etcd]"; got != want {
		t.Errorf("processes in the order of their end: got %s, want %s", got, want)
	}
}

// rights checks that authentication and RBAC are on.
func (s suite) rights(t *testing.T) {
	c := s.c
	listNodes := func(config *rest.Config) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := listNodes(c.AdminConfig()); err != nil {
		t.Errorf("admin: %v", err)
	}
	stranger := c.AdminConfig()
	stranger.BearerToken = "no such token"
	if err := listNodes(stranger); !apierrors.IsUnauthorized(err) {
		t.Errorf("unknown token: got %v, want Unauthorized", err)
	}
	anonymous := c.AdminConfig()
	anonymous.BearerToken = ""
	if err := listNodes(anonymous); !apierrors.IsForbidden(err) {
		t.Errorf("no token: got %v, want Forbidden", err)
	}
	for user, allowed := range map[string]bool{
		"somebody": false, UserStockScheduler: true, UserTopoDRAScheduler: true, UserTopoDRADriver: false,
	} {
		config, err := c.ConfigFor(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		if err := listNodes(config); allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("user %q: got %v, want allowed = %t", user, err, allowed)
		}
	}
	if _, err := c.ConfigFor(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), `no user "nobody"`) {
		t.Errorf("unknown user: got %v", err)
	}
	if _, err := c.ConfigFor(t.Context(), "system:serviceaccount:default"); err == nil {
		t.Error("half a service account name: got no error")
	}
}

func (s suite) kubeconfig(t *testing.T) {
	c := s.c
	path, err := c.Kubeconfig(t.Context(), UserTopoDRAScheduler)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: got %v, %v, want a file that only its owner reads", info, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("listing with the kubeconfig: %v", err)
	}
}

// claimTemplate, podOfTemplate and slice make a pod that needs the controller manager (claim from a template) and a scheduler.
const claimObjects = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: test.example}
spec: {selectors: [{cel: {expression: 'device.driver == "test.example"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: default}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: test.example}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-test}
spec:
  driver: test.example
  nodeName: node-a
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  devices: [{name: device-0}]
---
apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: default}
spec:
  resourceClaims: [{name: one, resourceClaimTemplateName: one}]
  containers: [{name: c, image: none, resources: {claims: [{name: one}]}}]
`

func (s suite) stockScheduler(t *testing.T) {
	c := s.c
	ctx := testContext(t)
	if _, err := c.AddNode(ctx, NodeOptions{Name: "node-a", Labels: map[string]string{"kind": "test"}}); err != nil {
		t.Fatal(err)
	}
	p, err := c.StartScheduler(ctx, SchedulerOptions{Name: "stock", Binary: StockScheduler, ExtraArgs: []string{"-v=3"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ApplyYAML(ctx, []byte(claimObjects)); err != nil {
		t.Fatal(err)
	}
	pod := waitForPod(t, c, "pod", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	if pod.Spec.NodeName != "node-a" {
		t.Errorf("node of the pod: got %q, want node-a", pod.Spec.NodeName)
	}
	claims, err := c.client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil {
		t.Fatalf("claims: got %v, %v, want one that is allocated", claims, err)
	}
	if got := claims.Items[0].Status.Allocation.Devices.Results[0].Device; got != "device-0" {
		t.Errorf("device: got %q, want device-0", got)
	}
	metrics, err := p.Metrics(ctx)
	if err != nil || !strings.Contains(string(metrics), "scheduler_schedule_attempts_total") {
		t.Errorf("metrics: got %d bytes, %v, want the scheduler's counters", len(metrics), err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.Err(); err != nil {
		t.Errorf("error of a process that was stopped: %v", err)
	}
}

// waitForPod polls until a pod in namespace default meets the condition.
func waitForPod(t *testing.T, c *Cluster, name string, condition func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx := testContext(t)
	for {
		pod, err := c.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if condition(pod) {
			return pod
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// runPods has the pod of the test before declared Running, and gone with its claim as soon as it is deleted.
func (s suite) runPods(t *testing.T) {
	c := s.c
	if err := c.RunPods(); err != nil {
		t.Fatal(err)
	}
	pod := waitForPod(t, c, "pod", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	if status := pod.Status.ContainerStatuses; len(status) != 1 || status[0].Name != "c" || !status[0].Ready {
		t.Errorf("container status: got %v, want that of c, ready", status)
	}
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	for {
		claims, err := c.client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(claims.Items) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, err := c.client.CoreV1().Pods("default").Get(ctx, "pod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod: got %v, want NotFound", err)
	}
}

func (s suite) removeNode(t *testing.T) {
	c := s.c
	for range 2 { // the second time nothing is left to remove
		if err := c.RemoveNode(t.Context(), "node-a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node: got %v, want NotFound", err)
	}
	slices, err := c.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 0 {
		t.Errorf("slices: got %v, %v, want none", slices, err)
	}
}

func (s suite) schedulerFails(t *testing.T) {
	c := s.c
	config := "profiles: [{plugins: {filter: {enabled: [{name: NoSuchPlugin}]}}}]"
	_, err := c.StartScheduler(t.Context(), SchedulerOptions{Name: "broken", Binary: StockScheduler, ConfigYAML: config})
	if err == nil || !strings.Contains(err.Error(), "NoSuchPlugin") || !strings.Contains(err.Error(), "ended by itself (exit status 1)") {
		t.Errorf("scheduler with an unknown plugin: got %v, want its end and the line of its log that names the plugin", err)
	}
	for name, opts := range map[string]SchedulerOptions{
		"bad name":         {Name: "../x"},
		"no YAML":          {ConfigYAML: "a: b: c"},
		"section no map":   {ConfigYAML: "leaderElection: 3"},
		"no such binary":   {Binary: "no-such-scheduler"},
		"unknown identity": {User: "nobody"},
	} {
		if _, err := c.StartScheduler(t.Context(), opts); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// driverFails checks the path of a driver with a program that is none.
func (s suite) driverFails(t *testing.T) {
	c := s.c
	if _, err := c.StartDriver(t.Context(), DriverOptions{Node: "no-such-node"}); !apierrors.IsNotFound(err) {
		t.Errorf("driver of a node that does not exist: got %v, want NotFound", err)
	}
	if _, err := c.AddNode(t.Context(), NodeOptions{Name: "node-b"}); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho reading: $3\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := c.StartDriver(t.Context(), DriverOptions{Node: "node-b", MachineFile: "m.json", Binary: script})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "reading: --machine=/") {
		t.Errorf("driver that ends: got %v, want its status and its log", err)
	}
}

func (s suite) apply(t *testing.T) {
	c := s.c
	dir := t.TempDir()
	manifests := map[string]string{
		"a.yaml":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: z}\n---\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
		"sub/b.yml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: kube-system}\n",
		"ignored.md": "no manifest",
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range manifests {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // applying twice changes nothing
		if err := c.Apply(t.Context(), []string{dir}, "ConfigMap"); err != nil {
			t.Fatal(err)
		}
	}
	maps := c.client.CoreV1().ConfigMaps("")
	list, err := maps.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Namespace != "default" || list.Items[0].Data["x"] != "z" {
		t.Errorf("config map a: got %v, %v", list, err)
	}
	if _, err := c.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "b", metav1.GetOptions{}); err != nil {
		t.Errorf("config map b: %v", err)
	}
	if _, err := c.client.CoreV1().Secrets("default").Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("secret of a kind that was not asked for: got %v, want NotFound", err)
	}
	for name, text := range map[string]string{
		"no kind":      "metadata: {name: a}",
		"unknown kind": "apiVersion: v1\nkind: Nonsense\nmetadata: {name: a}",
		"no YAML":      "a: b: c",
	} {
		if err := c.ApplyYAML(t.Context(), []byte(text)); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// stop stops the cluster from several goroutines and checks that nothing is left and nothing can start any more.
func (s suite) stop(t *testing.T) {
	c := s.c
	errs := make(chan error)
	for range 3 {
		go func() { errs <- c.Stop() }()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	checkGone(t, c)
	select {
	case err := <-c.Failed():
		t.Errorf("failure reported although every process was stopped: %v", err)
	default:
	}
	if _, err := c.start(stageClients, "late", Etcd, nil, time.Second); !errors.Is(err, errStopping) {
		t.Errorf("start after the end: got %v, want %v", err, errStopping)
	}
}

// TestContextEnds checks that the end of the context stops everything, that a named data directory and its logs are kept,
// and that feature gates reach the processes.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	dir := filepath.Join(t.TempDir(), "data")
	c, err := Start(ctx, Options{Dir: dir, FeatureGates: "DRADeviceTaintRules=true", RuntimeConfig: "resource.k8s.io/v1beta2=true"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.ResourceV1beta2().DeviceTaintRules().List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("listing device taint rules: %v", err)
	}
	cancel()
	<-c.Done()
	for _, p := range c.everyProcess() {
		if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %q (pid %d) is still there: %v", p.Name, p.PID(), err)
		}
		if _, err := os.Stat(p.LogPath); err != nil {
			t.Errorf("log of %q: %v", p.Name, err)
		}
	}
	if _, err := Start(testContext(t), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("used data directory: got %v, want a refusal", err)
	}
}

// TestFailedProcess checks that the loss of a process is reported with its name.
func TestFailedProcess(t *testing.T) {
	c := startCluster(t, Options{})
	manager := c.everyProcess()[0]
	if err := manager.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-c.Failed(); err == nil || !strings.Contains(err.Error(), `process "kube-controller-manager" ended by itself (signal: killed)`) {
		t.Errorf("failure: got %v, want the controller manager's end", err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	checkGone(t, c)
}

// TestPortTaken has the first port of each server taken by somebody else, who even answers.
func TestPortTaken(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	squatter := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	go squatter.Serve(l) //nolint:errcheck // ends with ErrServerClosed
	defer squatter.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %v", l.Addr())
	}
	calls := 0
	c := startCluster(t, Options{pickPort: func() (int, error) {
		if calls++; calls%2 == 1 {
			return addr.Port, nil
		}
		return freePort()
	}})
	if calls != 4 {
		t.Errorf("ports picked: got %d, want 4: two for the API server and two for the controller manager", calls)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	checkGone(t, c)
}

// TestStartFails checks that a start that fails says why and leaves nothing behind.
func TestStartFails(t *testing.T) {
	real, err := BinDir()
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	for _, name := range []string{Etcd, KubeControllerManager} {
		if err := os.Symlink(filepath.Join(real, name), filepath.Join(broken, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := "#!/bin/sh\nfor i in $(seq 30); do echo line $i; done\nexit 7\n"
	if err := os.WriteFile(filepath.Join(broken, KubeAPIServer), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	busy := func() (int, error) { return 0, errors.New("no port at all") }
	for name, test := range map[string]struct {
		opts Options
		want []string
	}{
		"dies":          {Options{BinDir: broken}, []string{"exit status 7", "line 16\n", "line 30"}},
		"missing":       {Options{BinDir: t.TempDir()}, []string{"make binaries", "TOPODRA_BIN", Etcd}},
		"bad flag":      {Options{APIServerArgs: []string{"--no-such-flag"}}, []string{"no-such-flag", KubeAPIServer}},
		"no port":       {Options{pickPort: busy}, []string{"no port at all"}},
		"user taken":    {Options{Users: map[string][]string{UserAdmin: nil}}, []string{UserAdmin}},
		"path too long": {Options{Dir: filepath.Join(t.TempDir(), strings.Repeat("x", 100))}, []string{"shorter data directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			_, err := Start(testContext(t), test.opts)
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error: got %q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "line 15\n") {
				t.Errorf("error: got %q, want only the last lines of the log", err)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
				t.Errorf("left in the temporary directory: %v, %v", left, err)
			}
		})
	}
}

// TestStartCancelled checks that a start stops early when its context ends, and cleans up.
func TestStartCancelled(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(testContext(t))
	picked := func() (int, error) { // etcd is up, the API server is about to start
		cancel()
		return freePort()
	}
	if _, err := Start(ctx, Options{pickPort: picked}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// TestCompletePool checks when a pool counts as complete.
func TestCompletePool(t *testing.T) {
	slice := func(name string, generation, count int64) resourceapi.ResourceSlice {
		s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec.Pool = resourceapi.ResourcePool{Generation: generation, ResourceSliceCount: count}
		return s
	}
	for name, test := range map[string]struct {
		items []resourceapi.ResourceSlice
		want  string
	}{
		"nothing":         {nil, "[] false"},
		"complete":        {[]resourceapi.ResourceSlice{slice("b", 2, 2), slice("a", 2, 2)}, "[a b] true"},
		"one missing":     {[]resourceapi.ResourceSlice{slice("a", 2, 2)}, "[a] false"},
		"old ones remain": {[]resourceapi.ResourceSlice{slice("a", 1, 1), slice("b", 2, 1)}, "[b] true"},
		"new incomplete":  {[]resourceapi.ResourceSlice{slice("a", 1, 1), slice("b", 2, 2)}, "[b] false"},
	} {
		pool, ok := completePool(test.items)
		names := []string{}
		for _, s := range pool {
			names = append(names, s.Name)
		}
		if got := fmt.Sprint(names, ok); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}
