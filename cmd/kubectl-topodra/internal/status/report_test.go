// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// scene has everything that a node can be: shared, taken, tainted, partitioned, observed.
func scene(t *testing.T) ([]resourceapi.ResourceSlice, []resourceapi.ResourceClaim) {
	t.Helper()
	cube, pairs := clitest.Slice(t, "cube", "dgx1v_8xv100"), clitest.Slice(t, "pairs", "a30_4x_pairs")
	clitest.Taint(&cube, 7, "gpu.topodra.dev/lost")
	clitest.Partition(&pairs, 3, 2, "2g.12gb", "12Gi")
	watcher := clitest.Claim("watcher", 1, clitest.Allocated("pairs", "g1", 0, "dcgm"))
	watcher.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	return []resourceapi.ResourceSlice{pairs, cube}, []resourceapi.ResourceClaim{
		clitest.Claim("train", 2, clitest.Allocated("cube", "g0,g3", 0, "train-0")),
		clitest.Claim("notebook", 1, clitest.Share("2Gi", "30"), clitest.Allocated("pairs", "g0", 0, "nb-b", "nb-a")),
		clitest.Claim("left-over", 2, clitest.Share("4Gi", "0"), clitest.Allocated("pairs", "g0,g1", 0)),
		clitest.Claim("small", 1, clitest.Allocated("pairs", "m3-1", 0, "mig-user")),
		watcher,
	}
}

func report(t *testing.T, published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim, node string) *Report {
	t.Helper()
	planner, err := fit.New()
	if err != nil {
		t.Fatal(err)
	}
	r, err := build(t.Context(), planner, published, claims, node)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGolden(t *testing.T) {
	t.Parallel()
	published, claims := scene(t)
	r := report(t, published, claims, "")
	for name, write := range map[string]func(*strings.Builder) error{
		"status.txt":  func(b *strings.Builder) error { return WriteText(b, r, false) },
		"wide.txt":    func(b *strings.Builder) error { return WriteText(b, r, true) },
		"status.json": func(b *strings.Builder) error { return WriteJSON(b, r, false) },
		"node.txt":    func(b *strings.Builder) error { return WriteText(b, report(t, published, claims, "pairs"), false) },
		"nothing.txt": func(b *strings.Builder) error { return WriteText(b, &Report{}, false) },
	} {
		var out strings.Builder
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		clitest.Golden(t, *update, name, out.String())
	}
	var compact strings.Builder
	if err := WriteJSON(&compact, r, true); err != nil {
		t.Fatal(err)
	}
	if strings.Count(compact.String(), "\n") != 1 || !json.Valid([]byte(compact.String())) {
		t.Errorf("not one line of JSON: %q", compact.String())
	}
	// The order of lists means nothing.
	slices.Reverse(published)
	slices.Reverse(claims)
	if diff := cmp.Diff(r.document(), report(t, published, claims, "").document()); diff != "" {
		t.Errorf("another order of the lists shows something else:\n%s", diff)
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	published, claims := scene(t)
	r := report(t, published, claims, "")
	want := []Counts{
		{GPUs: 8, Idle: 5, Taken: 2, Blocked: 1},
		{GPUs: 3, Idle: 1, Shared: 2, Parts: 2, HeldParts: 1},
	}
	for i, n := range r.Nodes {
		if diff := cmp.Diff(want[i], n.Counts); diff != "" {
			t.Errorf("node %s (-want +got):\n%s", n.Name, diff)
		}
		if c := n.Counts; c.Idle+c.Shared+c.Taken+c.Blocked != c.GPUs {
			t.Errorf("node %s: the parts of %+v do not add up", n.Name, c)
		}
	}
}

// TestOffersAreTheBest compares each offer with all sets of the machine.
func TestOffersAreTheBest(t *testing.T) {
	t.Parallel()
	recorded, err := topotest.Load("dgx1v_8xv100")
	if err != nil {
		t.Fatal(err)
	}
	reference := topotest.NewReference(recorded.Machine)
	for _, held := range []string{"g0", "g0,g3", "g1,g2,g5", "g0,g1,g2,g3,g4", "g0,g1,g2,g3,g4,g5,g6,g7"} {
		count := int64(strings.Count(held, ",") + 1)
		r := report(t, []resourceapi.ResourceSlice{clitest.Slice(t, "cube", "dgx1v_8xv100")},
			[]resourceapi.ResourceClaim{clitest.Claim("c", count, clitest.Allocated("cube", held, 0))}, "")
		idle := r.Nodes[0].Idle()
		for i, size := range Sizes {
			for _, c := range []struct {
				got *fit.Offer
				of  topology.Mask
			}{{r.Nodes[0].Offers[i].Now, idle}, {r.Nodes[0].Offers[i].Empty, topology.FullMask(8)}} {
				best := topology.MBps(0)
				for _, s := range topotest.Subsets(c.of, size) {
					best = max(best, reference.Quality(s).MBps)
				}
				switch {
				case best == 0 && c.got != nil, best > 0 && (c.got == nil || c.got.Quality.MBps != best || !c.got.GPUs.SubsetOf(c.of)):
					t.Errorf("%s held, %d of %s: offered %+v, the best is %d MB/s", held, size, c.of, c.got, best)
				}
			}
		}
	}
}
