// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/test/cluster"
)

// output is what the program has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// program is a running topodra-cluster.
type program struct {
	stdout, stderr output
	status         chan int
	interrupt      context.CancelFunc // what Ctrl-C does
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	p := &program{status: make(chan int, 1), interrupt: cancel}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.status <- execute(ctx, args, &p.stdout, &p.stderr)
	}()
	t.Cleanup(func() { // the processes must be gone before the test's directories are
		cancel()
		<-ended
	})
	return p
}

// kubeconfig waits until the program has told how to reach the cluster.
func (p *program) kubeconfig(t *testing.T) string {
	t.Helper()
	announcement := regexp.MustCompile(`export KUBECONFIG=(\S+)\n`)
	for {
		if match := announcement.FindStringSubmatch(p.stdout.String()); match != nil {
			return match[1]
		}
		select {
		case status := <-p.status:
			t.Fatalf("the program ended with status %d; its output:\n%s%s", status, &p.stdout, &p.stderr)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// machineFile returns a recorded machine of the repository.
func machineFile(t *testing.T) string {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "topology", "topotest", "machines", "dgx1v_8xv100.json")
}

// TestRun starts everything with one node, uses the cluster as a person would, and interrupts the program.
func TestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	p := start(t, "--nodes", "gpu-node="+machineFile(t))
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	slices, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) == 0 || slices.Items[0].Spec.Driver != driverName {
		t.Errorf("slices: got %v, %v, want those of our driver", slices, err)
	}
	class, err := client.ResourceV1().DeviceClasses().Get(t.Context(), "gpu.topodra.dev", metav1.GetOptions{})
	if err != nil || class.Spec.ExtendedResourceName == nil || *class.Spec.ExtendedResourceName != "nvidia.com/gpu" {
		t.Errorf("device class of the manifests: got %v, %v, want one with an extended resource", class, err)
	}
	for _, want := range []string{
		"node gpu-node is ready: 8 devices of dgx1v_8xv100.json\n", "stock scheduler is ready", "our scheduler is ready",
	} {
		if !strings.Contains(p.stdout.String(), want) {
			t.Errorf("output: got %q, want %q in it", &p.stdout, want)
		}
	}
	p.interrupt()
	if status := <-p.status; status != 0 || p.stderr.String() != "" {
		t.Errorf("end by Ctrl-C: got status %d and %q on standard error, want 0 and nothing", status, &p.stderr)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// TestInterruptAtStart checks that Ctrl-C before anything is ready is no failure either.
func TestInterruptAtStart(t *testing.T) {
	p := start(t, "--topodra-scheduler=false", "--manifests", t.TempDir())
	time.Sleep(300 * time.Millisecond) // some way into the start; the outcome must be the same wherever it is
	p.interrupt()
	if status := <-p.status; status != 0 || p.stderr.String() != "" {
		t.Errorf("got status %d and %q on standard error, want 0 and nothing", status, &p.stderr)
	}
}

// TestFailure checks the statuses and messages of runs that cannot work.
func TestFailure(t *testing.T) {
	machine := machineFile(t)
	for name, test := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"help":            {[]string{"--help"}, 0, "-scheduler-config"},
		"unknown flag":    {[]string{"--no-such-flag"}, 2, "no-such-flag"},
		"argument":        {[]string{"here"}, 2, `unexpected argument "here"`},
		"no pair":         {[]string{"--nodes", "a"}, 2, `"a" is not of the form`},
		"no name":         {[]string{"--nodes", "=" + machine}, 2, "is not of the form"},
		"twice":           {[]string{"--nodes", "a=" + machine + ", a=" + machine}, 2, `node "a" is named twice`},
		"no machine":      {[]string{"--nodes", "a=no/such.json"}, 2, `"no/such.json", is not a file`},
		"no manifests":    {[]string{"--topodra-scheduler=false", "--manifests", "no/such"}, 1, "no/such"},
		"no config":       {[]string{"--stock-scheduler=false", "--manifests", t.TempDir(), "--scheduler-config", "no/such"}, 1, "no/such"},
		"unknown runtime": {[]string{"--runtime-config", "no.such.group/v1=true"}, 1, "no.such.group"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, test.args...)
			if status := <-p.status; status != test.status {
				t.Errorf("status: got %d, want %d", status, test.status)
			}
			if !strings.Contains(p.stderr.String(), test.want) {
				t.Errorf("standard error: got %q, want %q in it", &p.stderr, test.want)
			}
		})
	}
}

// TestMissingBinaries checks that the program says what to do before anything is built.
func TestMissingBinaries(t *testing.T) {
	t.Setenv("TOPODRA_BIN", t.TempDir())
	var stderr bytes.Buffer
	if status := execute(t.Context(), nil, io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), "make binaries") {
		t.Errorf("got status %d and %q, want 1 and a hint at `make binaries`", status, &stderr)
	}
}
