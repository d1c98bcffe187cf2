// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// runConfig returns a configuration for a node that exists, with directories that
// are short enough for sockets.
func runConfig(t *testing.T, steps ...step) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "drv") //nolint:usetesting // The path of t.TempDir is too long for sockets.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := goodConfig()
	config.Client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "uid"}})
	config.Source = &script{steps: steps}
	config.RegistryDir, config.DataDir = filepath.Join(dir, "r"), filepath.Join(dir, "p", "q")
	if err := os.Mkdir(config.RegistryDir, 0o700); err != nil {
		t.Fatal(err)
	}
	return config
}

// eventually waits for something to become true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: it took more than a minute", what)
		}
	}
}

// get reads a page of the driver.
func get(t *testing.T, address, page string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+page, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// freeAddress returns an address on loopback that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestRun: the driver opens its sockets, publishes, answers probes, and leaves
// nothing behind but its slices.
func TestRun(t *testing.T) {
	config := runConfig(t, step{err: fmt.Errorf("not yet")}, step{snapshot: snapshotOf("a")})
	config.HTTPAddress = freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config) }()

	eventually(t, "readiness", func() bool { code, _ := get(t, config.HTTPAddress, "/readyz"); return code == http.StatusOK })
	if code, body := get(t, config.HTTPAddress, "/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: got %d, %q", code, body)
	}
	if _, body := get(t, config.HTTPAddress, "/metrics"); !strings.Contains(body, `topodra_driver_scans_total{result="failed"} `) || !strings.Contains(body, "topodra_driver_devices 1\n") {
		t.Errorf("/metrics: got %s", body)
	}
	eventually(t, "the slice", func() bool {
		list, err := config.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && len(list.Items[0].Spec.Devices) == 1
	})
	eventually(t, "the event", func() bool {
		list, err := config.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].Reason == ReasonDiscoveryFailed && list.Items[0].Message == "not yet" &&
			list.Items[0].InvolvedObject.Kind == "Node" && list.Items[0].InvolvedObject.UID == "uid"
	})
	for _, socket := range []string{filepath.Join(config.RegistryDir, registrationSocket), filepath.Join(config.DataDir, pluginSocket)} {
		if info, err := os.Stat(socket); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Errorf("socket %q: %v", socket, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got error %v", err)
	}
	if code, _ := get(t, config.HTTPAddress, "/healthz"); code != 0 {
		t.Error("the HTTP server is still there")
	}
	for _, dir := range []string{config.RegistryDir, config.DataDir} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("left in %q: %v, %v", dir, entries, err)
		}
	}
}

// TestRunRejects: what is wrong with the node ends the driver at once with a clear
// error.
func TestRunRejects(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for want, change := range map[string]func(*Config){
		"checking driver configuration":              func(c *Config) { c.Source = nil },
		"looking for the kubelet's plugin registry":  func(c *Config) { c.RegistryDir += "x" },
		`getting its node: nodes "node-b" not found`: func(c *Config) { c.Publish.NodeName = "node-b" },
		"serving probes and metrics: listen":         func(c *Config) { c.HTTPAddress = busy.Addr().String() },
		"making the plugin data directory":           func(c *Config) { c.DataDir = filepath.Join(c.RegistryDir, "file", "x") },
	} {
		config := runConfig(t, step{snapshot: snapshotOf("a")})
		if err := os.WriteFile(filepath.Join(config.RegistryDir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		change(&config)
		if err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
