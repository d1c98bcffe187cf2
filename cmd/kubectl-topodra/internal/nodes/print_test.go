// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// sampleView has what a recorded machine on a test cluster does not: taints, holes, MIG parts, admin access, claims without pods.
func sampleView() *View {
	m := topology.New("node-a", 4)
	m.NVLinks[0][1], m.NVLinks[1][0] = 12, 12
	m.PCIe[2][3], m.PCIe[3][2] = topology.PIX, topology.PIX
	for i := range 3 {
		m.GPUs[i].NUMA = i / 2
	}
	total := livestate.Capacity{MemoryMiB: 40<<10 - 512, CoresPercent: 100}
	a := livestate.Node{
		Name: "node-a", Machine: m, Present: topology.MaskOf(0, 1, 2),
		Warnings: []string{`pool "node-a" is incomplete: 1 of 2 slices are there`},
		GPUs: []livestate.GPU{
			{Position: 0, Device: "gpu-0", UUID: "GPU-0", Product: "A100", Taints: []string{"NoSchedule:gpu.topodra.dev/lost"}, Total: total, Free: total},
			{
				Position: 1, Device: "gpu-1", Product: "A100", Total: total, Free: livestate.Capacity{MemoryMiB: 39<<10 - 512, CoresPercent: 100},
				Holders: []livestate.Holder{
					{Namespace: "ml", Claim: "monitor", Pods: []string{"dcgm"}, Whole: true, Admin: true, Uses: total},
					{Namespace: "ml", Claim: "small", Uses: livestate.Capacity{MemoryMiB: 1 << 10}},
				},
			},
			{Position: 2, Device: "gpu-2", Product: "A30", Total: total},
			{Position: 3, Holders: []livestate.Holder{{Namespace: "ml", Claim: "slice", Pods: []string{"p"}, Device: "gpu-3-mig-1g"}}},
		},
	}
	a.GPUs[2].Holders = []livestate.Holder{{Namespace: "ml", Claim: "train", Pods: []string{"a", "b"}, Whole: true, Uses: total}}
	b := livestate.Node{
		Name: "node-b", Machine: topology.New("node-b", 1), Simulated: true,
		GPUs: []livestate.GPU{{Position: 0}}, Warnings: []string{"no GPU is published as a whole, so the links are not known"},
	}
	return &View{
		Nodes:  []livestate.Node{a, b},
		Phases: map[PodKey]corev1.PodPhase{{"ml", "a"}: corev1.PodRunning, {"ml", "p"}: corev1.PodPending, {"other", "b"}: corev1.PodRunning},
	}
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := WriteText(&out, sampleView()); err != nil {
		t.Fatal(err)
	}
	golden(t, "view.txt", out.String())
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := WriteJSON(&out, sampleView()); err != nil {
		t.Fatal(err)
	}
	if !json.Valid([]byte(out.String())) {
		t.Error("this is no JSON")
	}
	golden(t, "view.json", out.String())
	out.Reset()
	if err := WriteJSON(&out, &View{}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"nodes\": []\n}\n"; out.String() != want {
		t.Errorf("nothing is written as %q, want %q", out.String(), want)
	}
}

func TestFormatMiB(t *testing.T) {
	t.Parallel()
	for want, mib := range map[string]int64{"0": 0, "1Mi": 1, "1023Mi": 1023, "1Gi": 1024, "1.5Gi": 1536, "79.6Gi": 81559} {
		if got := FormatMiB(mib); got != want {
			t.Errorf("FormatMiB(%d) = %q, want %q", mib, got, want)
		}
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("reading the golden file (write it with -update): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update accepts it:\n%s", path, diff)
	}
}
