// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/test/cluster"
)

// testTimeout bounds one test: generous, because the machine may be busy.
const testTimeout = 8 * time.Minute

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func startCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(testContext(t), cluster.Options{})
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

// footprint returns [Footprint].
func footprint(t *testing.T) map[string][]string {
	t.Helper()
	found, err := Footprint()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// checkFootprint fails the test if this machine is not as it was.
func checkFootprint(t *testing.T, before map[string][]string, dir string) {
	t.Helper()
	if err := CheckFootprint(before, dir); err != nil {
		t.Error(err)
	}
}

// sleeper is a pod of busybox that stays.
func sleeper(name, nodeName string) *corev1.Pod {
	no := false
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeName: nodeName, EnableServiceLinks: &no, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSDefault,
			Containers: []corev1.Container{{
				Name: "main", Image: BusyboxRef, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/bin/sh", "-c", "echo hello from $COLOUR; exec sleep 3600"},
				Env:     []corev1.EnvVar{{Name: "COLOUR", Value: "green"}},
			}},
		},
	}
}

// runPod creates a pod and waits until it runs.
func runPod(t *testing.T, c *cluster.Cluster, n *Node, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	ctx := testContext(t)
	pods := c.Client().CoreV1().Pods(pod.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return waitForPod(t, c, n, pod.Name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
}

// waitForPod waits for a condition and returns the pod that fulfils it.
func waitForPod(t *testing.T, c *cluster.Cluster, n *Node, name string, good func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx := testContext(t)
	for {
		pod, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if good(pod) {
			return pod
		}
		if err := n.Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if ctx.Err() != nil {
			t.Fatalf("waiting for pod %q: %v; its status: %v", name, ctx.Err(), pod.Status)
		}
	}
}

// TestNode runs a node and a pod on it, and checks that all traces of them go.
func TestNode(t *testing.T) {
	before := footprint(t)
	c := startCluster(t)
	n, err := Start(testContext(t), c, Options{Name: "node-a", Labels: map[string]string{"colour": "blue"}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Stop() //nolint:errcheck // checked below, unless the test has failed before
	ctx := testContext(t)
	image, err := BusyboxImage(ctx, BusyboxRef)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.ImportImage(ctx, image); err != nil {
		t.Fatal(err)
	}
	object, err := c.Client().CoreV1().Nodes().Get(ctx, "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := object.Labels["colour"]; got != "blue" {
		t.Errorf("label of the node: got %q, want blue", got)
	}
	if got := object.Status.NodeInfo.KubeletVersion; got != "v1.37.2" {
		t.Errorf("version of the kubelet: got %q, want v1.37.2", got)
	}
	if got := object.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(got, "containerd://2.3.7") {
		t.Errorf("version of the runtime: got %q, want containerd://2.3.7", got)
	}
	pod := runPod(t, c, n, sleeper("pod", "node-a"))

	t.Run("inside", func(t *testing.T) { testInside(t, n, pod) })
	t.Run("restarts", func(t *testing.T) { testRestarts(t, c, n, pod) })
	t.Run("disconnected", func(t *testing.T) { testDisconnected(t, c, n, pod) })

	// The second pod still runs when the node stops.
	late := runPod(t, c, n, sleeper("late", "node-a"))
	t.Run("reboot", func(t *testing.T) { testReboot(t, c, n, late) })
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := c.Client().CoreV1().Nodes().Get(ctx, "node-a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node object after the end: got %v, want NotFound", err)
	}
	checkFootprint(t, before, n.Dir())
}

// testInside looks at a pod from inside and through its log.
func testInside(t *testing.T, n *Node, pod *corev1.Pod) {
	result, err := n.Exec(t.Context(), pod, "main", "env")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(result.Stdout, "\n"), "COLOUR=green") || result.ExitCode != 0 {
		t.Errorf("environment: got %+v, want COLOUR=green in it", result)
	}
	result, err = n.Exec(t.Context(), pod, "main", "sh", "-c", "echo oops >&2; exit 3")
	if want := (ExecResult{Stderr: "oops\n", ExitCode: 3}); err != nil || result != want {
		t.Errorf("failing command: got %+v, %v, want %+v", result, err, want)
	}
	if log, err := n.Logs(pod, "main"); err != nil || log != "hello from green\n" {
		t.Errorf("log: got %q, %v, want the greeting", log, err)
	}
	if _, err := n.Exec(t.Context(), pod, "nobody", "true"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("container that does not exist: got %v, want %v", err, ErrNotRunning)
	}
	if !strings.HasPrefix(pod.Status.PodIP, "198.18.250.") {
		t.Errorf("address of the pod: got %q, want one of the default subnet", pod.Status.PodIP)
	}
}

// containerIDs returns what runs for a pod.
func containerIDs(t *testing.T, n *Node, pod *corev1.Pod) []string {
	t.Helper()
	containers, err := n.Containers(t.Context(), pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range containers {
		if c.Running {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// testRestarts checks that containers survive their masters.
func testRestarts(t *testing.T, c *cluster.Cluster, n *Node, pod *corev1.Pod) {
	before := containerIDs(t, n, pod)
	if len(before) != 1 {
		t.Fatalf("containers of the pod: got %q, want one", before)
	}
	ctx := testContext(t)
	if err := n.RestartKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.StopContainerd(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(ctx, pod, "main", "true"); err == nil {
		t.Error("command without containerd: got no error")
	}
	if err := n.StartContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, containerIDs(t, n, pod)); diff != "" {
		t.Errorf("containers after restarts (-want +got):\n%s", diff)
	}
	if _, err := n.Exec(ctx, pod, "main", "true"); err != nil {
		t.Error(err)
	}
	waitForPod(t, c, n, pod.Name, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && pod.Status.ContainerStatuses[0].RestartCount == 0
	})
}

// testDisconnected deletes a pod while the kubelet does not hear of it.
func testDisconnected(t *testing.T, c *cluster.Cluster, n *Node, pod *corev1.Pod) {
	ctx := testContext(t)
	n.Disconnect()
	defer n.Connect()
	pods := c.Client().CoreV1().Pods(pod.Namespace)
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // longer than it takes with a connection
	if got := containerIDs(t, n, pod); len(got) != 1 {
		t.Errorf("containers of a pod that was deleted out of sight: got %q, want one", got)
	}
	n.Connect()
	for {
		_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if got := containerIDs(t, n, pod); len(got) != 0 {
		t.Errorf("containers of a pod that is gone: got %q, want none", got)
	}
}

// testReboot checks that pods come back after a loss of power, in new containers and with a new boot id.
func testReboot(t *testing.T, c *cluster.Cluster, n *Node, pod *corev1.Pod) {
	ctx := testContext(t)
	before := containerIDs(t, n, pod)
	if err := os.WriteFile(filepath.Join(n.CDIDir(), "leftover.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	bootID := func() string {
		said, err := n.Command(ctx, "cat", "/proc/sys/kernel/random/boot_id")
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	old := bootID()
	for range 2 { // the second time there is a mount to replace
		if err := n.Reboot(ctx); err != nil {
			t.Fatal(err)
		}
		if now := bootID(); now == old || len(now) != len(old) {
			t.Errorf("boot id: got %q, want another one than %q", now, old)
		} else {
			old = now
		}
	}
	if entries, err := os.ReadDir(n.CDIDir()); err != nil || len(entries) != 0 {
		t.Errorf("CDI directory after a reboot: got %v, %v, want it empty", entries, err)
	}
	var after []string
	for len(after) == 0 && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		after = containerIDs(t, n, pod)
	}
	if len(after) != 1 || after[0] == before[0] {
		t.Errorf("containers of the pod: got %q, want one that is not of %q", after, before)
	}
	waitForPod(t, c, n, pod.Name, func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].RestartCount > 0 })
}

// Environment variables that turn a test binary into a launcher that does not end as it should.
const (
	crashEnv    = "TOPODRA_TEST_NODE_CRASH"
	crashDirEnv = "TOPODRA_TEST_NODE_DIR"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(crashEnv); how != "" {
		crash(how, os.Getenv(crashDirEnv))
	}
	os.Exit(m.Run())
}

// crash starts a cluster and a node with a pod, says so, and dies.
func crash(how, dir string) {
	ctx := context.Background()
	c, err := cluster.Start(ctx, cluster.Options{Dir: filepath.Join(dir, "c")})
	if err != nil {
		panic(err)
	}
	n, err := Start(ctx, c, Options{Dir: filepath.Join(dir, "n"), RemoveToo: []string{filepath.Join(dir, "c")}})
	if err != nil {
		panic(err)
	}
	image, err := BusyboxImage(ctx, BusyboxRef)
	if err == nil {
		err = n.ImportImage(ctx, image)
	}
	if err != nil {
		panic(err)
	}
	pods := c.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(ctx, sleeper("pod", n.Name()), metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	for {
		pod, err := pods.Get(ctx, "pod", metav1.GetOptions{})
		if err != nil {
			panic(err)
		}
		if pod.Status.Phase == corev1.PodRunning {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if how == "panic" {
		panic("on purpose")
	}
	_, _ = os.Stdout.WriteString("running\n")
	select {} // until a signal comes
}

// TestCrash has launchers die in several ways while a pod runs, and checks that nothing remains.
func TestCrash(t *testing.T) {
	for how, sig := range map[string]syscall.Signal{"panic": 0, "interrupt": syscall.SIGINT, "kill": syscall.SIGKILL} {
		t.Run(how, func(t *testing.T) {
			before := footprint(t)
			dir, err := os.MkdirTemp("", "tn-") //nolint:usetesting // the path of t.TempDir is too long for sockets
			if err != nil {
				t.Fatal(err)
			}
			launcher := exec.CommandContext(testContext(t), os.Args[0])
			launcher.Env = append(os.Environ(), crashEnv+"="+how, crashDirEnv+"="+dir)
			launcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			output, err := launcher.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			launcher.Stderr = &said
			if err := launcher.Start(); err != nil {
				t.Fatal(err)
			}
			if sig != 0 {
				line, err := bufio.NewReader(output).ReadString('\n')
				if err != nil || line != "running\n" {
					t.Fatalf("launcher: got %q, %v, want it to run a pod; it says:\n%s", line, err, said.String())
				}
				// The whole group, as a terminal does at Ctrl-C.
				if err := syscall.Kill(-launcher.Process.Pid, sig); err != nil {
					t.Fatal(err)
				}
			}
			err = launcher.Wait()
			if err == nil || sig == 0 && !strings.Contains(said.String(), "on purpose") {
				t.Errorf("launcher: got %v, want an end by %q; it says:\n%s", err, how, said.String())
			}
			for _, sub := range []string{"n", "c"} { // the control plane's directory goes, too
				if err := waitGone(filepath.Join(dir, sub)); err != nil {
					t.Error(err)
				}
			}
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
			checkFootprint(t, before, dir)
		})
	}
}

// waitGone waits for the warden's work.
func waitGone(path string) error {
	for range 600 {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%q is still there after a minute", path)
}
