// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/test/cluster"
)

const (
	// grace is between SIGTERM and SIGKILL.
	grace = 10 * time.Second
	// startTimeout is generous: the machine may be compiling something else on few cores.
	startTimeout = 3 * time.Minute
)

// PodTemplate returns the template of the pods of a rendered workload.
func PodTemplate(t testing.TB, workload *unstructured.Unstructured) *corev1.PodTemplateSpec {
	t.Helper()
	fields, found, err := unstructured.NestedMap(workload.Object, "spec", "template")
	if err != nil || !found {
		t.Fatalf("%s %q has no template of pods: %v", workload.GetKind(), workload.GetName(), err)
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, template); err != nil {
		t.Fatalf("reading %s %q: %v", workload.GetKind(), workload.GetName(), err)
	}
	return template
}

// Args returns the arguments of the only container of a workload as its process would get them: with its variables, of which
// those from fields of the pod have to be in fields, and with what it mounts moved: moves has a directory of the container and
// where it is here.
func Args(t testing.TB, workload *unstructured.Unstructured, fields, moves map[string]string) []string {
	t.Helper()
	containers := PodTemplate(t, workload).Spec.Containers
	if len(containers) != 1 {
		t.Fatalf("%s %q has %d containers, want one", workload.GetKind(), workload.GetName(), len(containers))
	}
	var replace []string
	for _, variable := range containers[0].Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
			var known bool
			if value, known = fields[variable.ValueFrom.FieldRef.FieldPath]; !known {
				t.Fatalf("variable %q is field %q of the pod, which the test does not have", variable.Name, variable.ValueFrom.FieldRef.FieldPath)
			}
		}
		replace = append(replace, "$("+variable.Name+")", value)
	}
	for from, to := range moves {
		replace = append(replace, "="+from, "="+to)
	}
	replacer := strings.NewReplacer(replace...)
	var args []string
	for _, arg := range containers[0].Args {
		args = append(args, replacer.Replace(arg))
	}
	return args
}

// ConfigDir writes the content of a rendered ConfigMap into a directory, as a mount of it has it.
func ConfigDir(t testing.TB, configMap *unstructured.Unstructured) string {
	t.Helper()
	data, _, err := unstructured.NestedStringMap(configMap.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// StartScheduler starts the scheduler of a rendered chart with the rendered arguments and configuration, as whoever config is,
// and returns when it is ready. What only a pod has is replaced: who it is, where it listens.
func StartScheduler(t testing.TB, c *cluster.Cluster, rendered []byte, name string, config *rest.Config, further ...string) *cluster.Process {
	t.Helper()
	dir := ConfigDir(t, Find(t, rendered, "ConfigMap", "topodra-scheduler"))
	file := filepath.Join(dir, "scheduler-config.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	object["clientConnection"] = map[string]any{"kubeconfig": Kubeconfig(t, config), "qps": 500, "burst": 1000}
	if data, err = yaml.Marshal(object); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	port := FreePort(t)
	args := Args(t, Find(t, rendered, "Deployment", "topodra-scheduler"), nil, map[string]string{"/etc/topodra": dir})
	args = append(args, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--cert-dir="+t.TempDir())
	return Start(t, c, name, cluster.TopoDRAScheduler, append(args, further...), "https://127.0.0.1:"+strconv.Itoa(port)+"/readyz")
}

// Start starts one of our programs and returns when it answers at a URL.
func Start(t testing.TB, c *cluster.Cluster, name, binary string, args []string, ready string) *cluster.Process {
	t.Helper()
	bin, err := cluster.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	process, err := cluster.StartProcess(cluster.ProcessOptions{
		Name: name, Path: filepath.Join(bin, binary), Args: args, Dir: t.TempDir(), Grace: grace,
		LogPath: filepath.Join(c.LogDir(), fmt.Sprintf("%s-%d.log", name, time.Now().UnixNano())),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Err(); err != nil {
			t.Error(err)
		}
		if err := process.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of %s:\n%s", process.LogPath, process.LogTail())
		}
	})
	if err := process.WaitReady(t.Context(), startTimeout, func(ctx context.Context) error { return Get(ctx, ready) }); err != nil {
		t.Fatal(err)
	}
	return process
}

// Get asks for a URL of loopback, and returns an error unless the answer is 200.
func Get(ctx context.Context, url string) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // a certificate of its own making
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %q: %s", url, response.Status)
	}
	return nil
}

// FreePort returns a port of loopback that nobody listened on a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("the address is a %T", listener.Addr())
	}
	return address.Port
}

// denied is how programs tell that RBAC refused something.
var denied = regexp.MustCompile(`User \\*"[^"]*" cannot [^\n]{0,200}`)

// WantNothingDenied checks that a process was never refused something for lack of a right.
func WantNothingDenied(t testing.TB, process *cluster.Process) {
	t.Helper()
	log, err := os.ReadFile(process.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range denied.FindAllString(string(log), 5) {
		t.Errorf("%q was denied something: %s", process.Name, line)
	}
}
