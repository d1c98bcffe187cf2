// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/topodra/topodra/test/cluster"
)

const (
	// Name is that of the release in tests.
	Name = "topodra"
	// Namespace is where it is installed.
	Namespace = cluster.Namespace
	// Chart is the chart's directory, relative to the repository.
	Chart = "manifests/chart"
)

// Helm runs helm in the repository and returns what it printed on standard output. The error has what it said besides.
func Helm(ctx context.Context, home string, args ...string) ([]byte, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	binDir, err := cluster.BinDir()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "tools", "helm"), args...)
	cmd.Dir = root
	cmd.Env = []string{"HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "PATH=" + os.Getenv("PATH")}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running helm %q: %w: %s; `make helm` builds it", args, err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.Bytes(), nil
}

// Render renders the chart with further arguments for `helm template`, such as --set.
func Render(t testing.TB, args ...string) []byte {
	t.Helper()
	out, err := Helm(t.Context(), t.TempDir(), append([]string{"template", Name, Chart, "--namespace", Namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Objects takes a stream of YAML documents apart; if kinds are given, only objects of these kinds are taken.
func Objects(t testing.TB, data []byte, kinds ...string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("decoding rendered YAML: %v", err)
		}
		if len(object.Object) == 0 {
			continue
		}
		wanted := len(kinds) == 0
		for _, kind := range kinds {
			wanted = wanted || kind == object.GetKind()
		}
		if wanted {
			objects = append(objects, object)
		}
	}
}

// Find returns the only object of a kind and a name.
func Find(t testing.TB, data []byte, kind, name string) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	for _, object := range Objects(t, data, kind) {
		if object.GetName() == name {
			if found != nil {
				t.Fatalf("there are two %ss %q", kind, name)
			}
			found = object
		}
	}
	if found == nil {
		t.Fatalf("there is no %s %q", kind, name)
	}
	return found
}
