// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"os"
	"testing"

	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// bed is shared by all tests, which run one after the other.
var bed *testbed.Bed

// Nodes of the bed and their machines.
const (
	cube     = "cube"     // hybrid cube mesh: quads 0-3 and 4-7, NVLink between 0-4, 1-5, 2-6, 3-7
	cube2    = "cube2"    // the same machine
	pairs    = "pairs"    // NVLink pairs 0-1, 2-3, 4-5, 6-7; 0-3 and 4-7 share a socket
	weave    = "weave"    // NVLink pairs 0-2, 1-3, 4-5, 6-7; everything else SYS
	pcie     = "pcie"     // no NVLink: PIX pairs 0-1, 2-3, 4-5, 6-7; 0-3 and 4-7 share a socket
	degraded = "degraded" // NVSwitch, GPU 2 off the fabric
	wide     = "wide"     // NVSwitch with 16 GPUs
	bare     = "bare"     // no GPUs
)

// machines by node.
var machines = map[string]string{
	cube: "dgx1v_8xv100", cube2: "dgx1v_8xv100", pairs: "h100nvl_8x_pairs", weave: "a100_8x_interleaved_pairs",
	pcie: "pcie_8x_pix_node_sys", degraded: "b200_8x_degraded_gpu2", wide: "derived_dgx2_16xv100", bare: "",
}

func TestMain(m *testing.M) {
	options := testbed.Options{Scheduler: configure, Manifests: []string{"manifests/base/deviceclasses-extended-resource.yaml"}}
	for _, node := range []string{cube, cube2, pairs, weave, pcie, degraded, wide, bare} {
		options.Nodes = append(options.Nodes, testbed.Node{Name: node, Machine: machines[node]})
	}
	os.Exit(testbed.Run(m, &bed, options))
}

// configure adds the in-tree profile and mappings for two drivers of other people.
func configure(config *testbed.SchedulerConfig) {
	config.AddProfile(`schedulerName: default-scheduler`)
	config.SetArg("drivers", `
- driver: rows.example.com
  attributes: {index: slot, nvlinks: links, nvlinkMBps: linkSpeed}
- driver: islands.example.com
  attributes: {nvlinkDomain: island}
`)
}

// wantBest checks a literal expectation against brute force: of the GPUs of a node that are not busy, gpus has to be the best
// set of its size. It is called beside expectations that are too long to derive in a comment.
func wantBest(t *testing.T, node, busy, gpus string) {
	t.Helper()
	recorded, err := topotest.Load(machines[node])
	if err != nil {
		t.Fatal(err)
	}
	n := recorded.Machine.N()
	taken, err := topology.ParseMask(busy, n)
	if err != nil {
		t.Fatal(err)
	}
	want, err := topology.ParseMask(gpus, n)
	if err != nil {
		t.Fatal(err)
	}
	ranked := topotest.NewReference(recorded.Machine).Rank(topology.FullMask(n)&^taken, want.Count(), want.Count() > 1)
	if ranked[0].GPUs != want {
		t.Fatalf("the test expects %s on %q with %q busy; brute force says %s", want, node, busy, ranked[0].GPUs)
	}
}
