// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// TestCycleEqualsTheReference schedules pods for 1 to 8 GPUs on machines with
// random GPUs taken and compares with an independent exhaustive search.
func TestCycleEqualsTheReference(t *testing.T) {
	t.Parallel()
	for _, machine := range []string{"dgx1v_8xv100", "h100nvl_8x_pairs", "pcie_8x_pix_node_sys", "hgxh100_8x_numa2", "workstation_5x_mixed"} {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			recorded, err := topotest.Load(machine)
			if err != nil {
				t.Fatal(err)
			}
			reference := topotest.NewReference(recorded.Machine)
			n := recorded.Machine.N()
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			for range 6 {
				idle := topology.Mask(rng.Uint64()) & topology.FullMask(n)
				if idle == 0 {
					continue
				}
				count := 1 + rng.IntN(idle.Count())
				compareWithReference(t, machine, reference, n, idle, count)
			}
		})
	}
}

func compareWithReference(t *testing.T, machine string, reference *topotest.Reference, n int, idle topology.Mask, count int) {
	t.Helper()
	var want []string
	for position := range reference.Rank(idle, count, count > 1)[0].GPUs.All() {
		want = append(want, fmt.Sprintf("c/r=gpu-%d", position))
	}
	pod := podOf("pod", "c")
	objects := append(gpuNode(t, "node", machine), gpuClass(""), claimOf("c", gpus("r", int64(count))), pod)
	if taken := (topology.FullMask(n) &^ idle).Positions(); len(taken) > 0 {
		objects = append(objects, runtime.Object(busy("node", taken...)))
	}
	w := newWorld(t, worldConfig{objects: objects})
	if diff := cmp.Diff(want, w.schedule(pod).devices); diff != "" {
		t.Errorf("%d of %s (-want +got):\n%s", count, idle, diff)
	}
	if events := w.mismatches(); len(events) > 0 {
		t.Errorf("events about mismatches: %v", events)
	}
}

// TestCycleParallelNodes filters 64 nodes at once with their GPUs in different
// states; with the race detector it shows that Filter shares nothing by mistake.
func TestCycleParallelNodes(t *testing.T) {
	t.Parallel()
	recorded, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	reference := topotest.NewReference(recorded.Machine)
	objects := []runtime.Object{gpuClass("")}
	want := map[string][]topology.Mask{}
	for i := range 64 {
		name := fmt.Sprintf("node-%02d", i)
		objects = append(objects, gpuNode(t, name, "dgx1v_8xv100")...)
		idle := topology.FullMask(8)
		if i > 0 {
			taken := topology.MaskOf(i%8, (i/8+i)%8)
			idle &^= taken
			objects = append(objects, runtime.Object(busy(name, taken.Positions()...)))
		}
		for _, k := range []int{1, 2, 4} {
			want[name] = append(want[name], reference.Rank(idle, k, k > 1)[0].GPUs)
		}
	}
	var claims []*resourceapi.ResourceClaim
	for _, k := range []int{1, 2, 4} {
		claims = append(claims, claimOf(fmt.Sprintf("c%d", k), gpus("r", int64(k))))
		objects = append(objects, runtime.Object(claims[len(claims)-1]))
	}
	w := newWorld(t, worldConfig{objects: objects})
	for c, claim := range claims {
		state, passed, _ := w.filter(podOf("pod", claim.Name))
		if len(passed) != 64 {
			t.Fatalf("%d nodes passed, want 64", len(passed))
		}
		for name, offer := range offersOf(state, passed) {
			if offer.GPUs != want[name][c] {
				t.Errorf("%s, %s: planned %s, want %s", claim.Name, name, offer.GPUs, want[name][c])
			}
		}
	}
}
