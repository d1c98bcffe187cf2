// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// machine is a recorded machine that a test changes while its driver runs.
type machine struct {
	path string
	Name string `json:"name"`
	// Hardware names the model, which decides the speed of a link and the memory.
	Hardware string       `json:"hardware"`
	Kind     string       `json:"kind"`
	GPUs     []machineGPU `json:"gpus"`
	Links    [][]string   `json:"links"`
}

type machineGPU struct {
	Index int `json:"index"`
	NUMA  int `json:"numa"`
}

// newMachine makes a machine of n A100 GPUs on one socket, without NVLinks.
func newMachine(t *testing.T, n int) *machine {
	t.Helper()
	m := &machine{path: filepath.Join(t.TempDir(), "machine.json"), Name: "changing", Hardware: "A100", Kind: "nvidia-smi topo -m"}
	for i := range n {
		m.GPUs = append(m.GPUs, machineGPU{Index: i})
		row := make([]string, n)
		for j := range row {
			row[j] = "SYS"
		}
		row[i] = "X"
		m.Links = append(m.Links, row)
	}
	return m
}

// link sets the link of two GPUs.
func (m *machine) link(i, j int, class string) { m.Links[i][j], m.Links[j][i] = class, class }

// write saves the machine.
func (m *machine) write(t *testing.T) {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path+".new", m.path); err != nil {
		t.Fatal(err)
	}
}

// A link that comes back makes a guarantee possible for a pod that waits.
func TestLinkComesBack(t *testing.T) {
	s := bed.Scene(t)
	m := newMachine(t, 4)
	m.write(t)
	s.AddNode(testbed.Node{Name: "changing", Machine: m.path})
	s.Submit(job("job", 2, testbed.Required(api.LevelNVLink, 100)), "changing")
	s.WaitPending("job", "topology: required are 2 GPUs over NVLink at 100 GB/s; best now: SYS 12 GB/s")
	m.link(1, 3, "NV4") // 4 × 25 GB/s
	m.write(t)
	s.Rescan("changing")
	s.WaitBound("job")
	s.WantGPUs("job", "changing", "1,3")
}

// A link that is lost makes the scheduler choose others from then on.
func TestLinkIsLost(t *testing.T) {
	s := bed.Scene(t)
	m := newMachine(t, 4)
	m.link(0, 1, "NV12")
	m.link(2, 3, "NV4")
	m.write(t)
	s.AddNode(testbed.Node{Name: "changing", Machine: m.path})
	s.Place(job("before", 2, nil), "changing")
	s.WantGPUs("before", "changing", "0,1")
	s.Finish("before")
	m.link(0, 1, "SYS")
	m.write(t)
	s.Rescan("changing")
	s.WaitAttribute("changing", 0, api.AttrNVLinks, "x000")
	// The scheduler has seen the change when a guarantee of more than four links has become impossible.
	s.Retry(func(name string) bool {
		s.Submit(job(name, 2, testbed.Required(api.LevelNVLink, 200)), "changing")
		return s.WaitVerdict(name) == ""
	})
	s.Place(job("after", 2, nil), "changing")
	s.WantGPUs("after", "changing", "2,3")
}

// A GPU that is lost leaves the pod that waits for it waiting, and a GPU that comes back serves it: while the driver
// looks at the health of GPUs, and keeps the lost one with a taint, and while it does not, and takes it away.
func TestGPUGoesAndComes(t *testing.T) {
	for name, tc := range map[string]struct {
		driverArgs []string
		gone       func(s *testbed.Scene)
	}{
		"tainted": {
			driverArgs: []string{"--health-period=1s", "--health-clean-looks=1"},
			gone:       func(s *testbed.Scene) { s.WaitTaint("changing", 3, "gpu.topodra.dev/lost") },
		},
		"taken away": {
			driverArgs: []string{"--health-period=0"},
			gone:       func(s *testbed.Scene) { s.WaitAttribute("changing", 0, api.AttrNVLinks, "x40") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := bed.Scene(t)
			m := newMachine(t, 4)
			m.link(0, 1, "NV4")
			m.link(2, 3, "NV4")
			m.write(t)
			s.AddNode(testbed.Node{Name: "changing", Machine: m.path, DriverArgs: tc.driverArgs})
			s.Occupy("changing", 0, 2)
			s.Submit(job("job", 2, testbed.Required(api.LevelNVLink, 0)), "changing")
			s.WaitPending("job", `best if GPUs were freed: NVLink`)
			small := newMachine(t, 3)
			small.path = m.path
			small.link(0, 1, "NV4")
			small.write(t)
			s.Rescan("changing")
			tc.gone(s)
			s.Vacate("changing", 2) // was half of the pair that is gone
			s.WaitPending("job", `best now: SYS 12 GB/s on node "changing" (GPUs 1,2)`)
			s.StillPending("job")
			m.write(t)
			s.Rescan("changing")
			s.WaitBound("job")
			s.WantGPUs("job", "changing", "2,3")
		})
	}
}

// A node that joins with better links serves a pod that waits.
func TestNodeJoins(t *testing.T) {
	s := bed.Scene(t)
	s.Submit(job("job", 4, testbed.Required(api.LevelNVLink, 0)), pairs, "joining")
	s.WaitPending("job", `topology: required are 4 GPUs over NVLink; best now: NUMA 32 GB/s on node "pairs"`)
	m := newMachine(t, 4)
	for _, hop := range [][2]int{{0, 2}, {2, 1}, {1, 3}, {3, 0}} {
		m.link(hop[0], hop[1], "NV4")
	}
	m.write(t)
	s.AddNode(testbed.Node{Name: "joining", Machine: m.path})
	s.WaitBound("job")
	s.WantGPUs("job", "joining", "0-3")
}
