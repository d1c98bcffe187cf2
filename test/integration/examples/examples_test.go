// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
)

var bed *testbed.Bed

func TestMain(m *testing.M) {
	os.Exit(testbed.Run(m, &bed, testbed.Options{
		Manifests: []string{"manifests/base/deviceclasses-extended-resource.yaml"},
		Nodes: []testbed.Node{
			{Name: "dgx-1", Machine: "dgx1v_8xv100"},
			{Name: "h100-nvl", Machine: "h100nvl_8x_pairs"},
			{Name: "pcie", Machine: "pcie_8x_pix_node_sys", Labels: map[string]string{"pool": "batch"}},
			{Name: "accelerators"},
		},
	}))
}

// prepare holds what an example needs besides its manifests.
var prepare = map[string]func(*testbed.Scene){
	"other-driver": func(s *testbed.Scene) {
		const driver = "accelerator.example.com"
		s.DeviceClass(driver, driver)
		var devices []resourceapi.Device
		for i := range 4 {
			devices = append(devices, testbed.Device(fmt.Sprintf("accel-%d", i), testbed.Attributes{api.AttrNUMANode: i % 2}))
		}
		s.Publish(driver, "accelerators", devices)
	},
}

func TestExamples(t *testing.T) {
	dir := filepath.Join(bed.Root, "manifests/examples")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		tested++
		t.Run(entry.Name(), func(t *testing.T) {
			if !strings.Contains(string(index), "("+entry.Name()+")") {
				t.Errorf("the README of the examples does not mention %q", entry.Name())
			}
			testExample(t, filepath.Join(dir, entry.Name()))
		})
	}
	if tested < 6 {
		t.Errorf("%d examples were tested, there should be 6 or more", tested)
	}
}

// testExample plays one example.
func testExample(t *testing.T, dir string) {
	t.Helper()
	readme := readPlacement(t, filepath.Join(dir, "README.md"))
	s := bed.Scene(t)
	for _, row := range readme.taken {
		mask, err := topology.ParseMask(row[1], topology.MaxGPUs)
		if err != nil {
			t.Fatalf("reading the GPUs of %q: %v", row, err)
		}
		s.Occupy(row[0], mask.Positions()...)
	}
	if f := prepare[filepath.Base(dir)]; f != nil {
		f(s)
	}
	apply(t, s, dir)
	s.Eventually(func(ctx context.Context) string {
		placed, err := placements(ctx, s)
		if err != nil {
			return err.Error()
		}
		if len(placed) < len(readme.placed) {
			return fmt.Sprintf("%d pods are placed, the README says %d: %v", len(placed), len(readme.placed), placed)
		}
		if !slices.EqualFunc(placed, readme.placed, slices.Equal) {
			t.Errorf("pods are placed on %v; the README says %v", placed, readme.placed)
		}
		return ""
	})
}

// apply creates the objects of an example in the namespace of the scene.
func apply(t *testing.T, s *testbed.Scene, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q has no manifests (%v)", dir, err)
	}
	for _, file := range files {
		s.ApplyFile(file)
	}
}

// placement is what the tables below the heading "Placement" say.
type placement struct {
	taken  [][]string // node, GPUs
	placed [][]string // pod, node, GPUs; sorted
}

// readPlacement reads a README.
func readPlacement(t *testing.T, path string) placement {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "\n## Placement\n")
	if !found {
		t.Fatalf("%q has no heading Placement", path)
	}
	var p placement
	for line := range strings.Lines(text) {
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"), strings.HasPrefix(row[0], "---"), row[0] == "pod", row[0] == "taken on":
		case len(row) == 2:
			p.taken = append(p.taken, row)
		case len(row) == 3:
			p.placed = append(p.placed, row)
		default:
			t.Fatalf("%q: a row has %d columns: %q", path, len(row), line)
		}
	}
	if len(p.placed) == 0 {
		t.Fatalf("%q says of no pod where it goes", path)
	}
	slices.SortFunc(p.placed, slices.Compare)
	return p
}

// placements lists the pods of the example that are bound, in the form of the README's table.
func placements(ctx context.Context, s *testbed.Scene) ([][]string, error) {
	pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var placed [][]string
	for i := range pods.Items {
		pod := &pods.Items[i]
		if strings.HasPrefix(pod.Name, "busy-") || pod.Spec.NodeName == "" {
			continue
		}
		name := pod.Name
		if pod.GenerateName != "" {
			name = pod.GenerateName + "*"
		}
		var claim string
		switch {
		case pod.Status.ExtendedResourceClaimStatus != nil:
			claim = pod.Status.ExtendedResourceClaimStatus.ResourceClaimName
		case len(pod.Status.ResourceClaimStatuses) > 0:
			claim = *pod.Status.ResourceClaimStatuses[0].ResourceClaimName
		default:
			claim = *pod.Spec.ResourceClaims[0].ResourceClaimName
		}
		allocation := s.Allocation(claim)
		if allocation.Node != pod.Spec.NodeName {
			return nil, fmt.Errorf("pod %q is on %q, its devices on %q", pod.Name, pod.Spec.NodeName, allocation.Node)
		}
		devices := strings.Trim(allocation.GPUs.String(), "{}")
		if len(allocation.Devices) > 0 {
			devices = strings.Join(allocation.Devices, ",")
		}
		placed = append(placed, []string{name, allocation.Node, devices})
	}
	slices.SortFunc(placed, slices.Compare)
	return placed, nil
}
