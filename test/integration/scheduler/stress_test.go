// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// The largest machine that can be described: eight islands of eight GPUs.
func TestSixtyFourGPUs(t *testing.T) {
	s := bed.Scene(t)
	m := newMachine(t, 64)
	for i := range 64 {
		for j := range i {
			if i%8 == j%8 { // islands are spread over the positions
				m.link(i, j, "NV2")
			}
		}
	}
	m.write(t)
	s.AddNode(testbed.Node{Name: "huge", Machine: m.path})
	start := time.Now()
	s.Place(job("island", 8, testbed.Required(api.LevelNVLink, 0)), "huge")
	island := s.Allocation("island").GPUs
	if first := island.Lowest(); island.Count() != 8 || fmt.Sprint(island.Positions()) != fmt.Sprint([]int{first, first + 8, first + 16, first + 24, first + 32, first + 40, first + 48, first + 56}) {
		t.Errorf("eight GPUs are %s, want an island", island)
	}
	s.Submit(job("nine", 9, testbed.Required(api.LevelNVLink, 0)), "huge")
	s.WaitPending("nine", "0/9 nodes are available")
	s.Place(job("pair", 2, nil), "huge")
	if pair := s.Allocation("pair").GPUs.Positions(); (pair[1]-pair[0])%8 != 0 {
		t.Errorf("pair is %v, want two of one island", pair)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("three claims took %s", took)
	}
}

// A demand that needs much search and has no solution is refused in time and does not keep others from being scheduled.
func TestHardDemandIsRefusedInTime(t *testing.T) {
	s := bed.Scene(t)
	hard := testbed.Claim{
		Name: "hard", Topology: testbed.Required(api.LevelNVLink, 0),
		// Three of the four requests must differ in an attribute that has two values.
		Constraints: []resourceapi.DeviceConstraint{testbed.Distinct(resourceapi.FullyQualifiedName(api.AttrNUMANode))},
	}
	for i := range 10 {
		hard.Requests = append(hard.Requests, testbed.GPUs(fmt.Sprintf("r%d", i), 1, testbed.Share(fmt.Sprintf("%dMi", 100+i), int64(1+i))))
	}
	start := time.Now()
	s.Submit(hard, wide, pairs)
	s.WaitPending("hard", "0/8 nodes are available")
	s.Place(job("easy", 2, nil), pairs)
	s.WantGPUs("easy", pairs, "0,1")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("a hard demand took %s", took)
	}
}

// Many different requests, each with a share of its own, spread by a constraint over all GPUs of a large machine.
func TestManyDifferentRequests(t *testing.T) {
	s := bed.Scene(t)
	many := testbed.Claim{Name: "many", Topology: testbed.Required(api.LevelNVLink, 0), Constraints: []resourceapi.DeviceConstraint{
		testbed.Distinct(api.DriverName + "/uuid"),
	}}
	for i := range 16 {
		many.Requests = append(many.Requests, testbed.GPUs(fmt.Sprintf("r%d", i), 1, testbed.Share(fmt.Sprintf("%dMi", 100+i), int64(1+i))))
	}
	start := time.Now()
	s.Place(many, wide)
	s.WantGPUs("many", wide, "0-15")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("sixteen requests took %s", took)
	}
}

// Packing many different shares onto few GPUs is hard: no subset of fewer than twelve can hold these. Whatever the scheduler
// finds, it finds it in time, for a preference and for a guarantee.
func TestHardPacking(t *testing.T) {
	for name, topology := range map[string]*api.TopologyConfig{
		"preferred": testbed.Policy(api.PolicyPreferred), "required": testbed.Required(api.LevelNVLink, 0),
	} {
		t.Run(name, func(t *testing.T) {
			s := bed.Scene(t)
			many := testbed.Claim{Name: "many", Topology: topology}
			for i := range 24 {
				many.Requests = append(many.Requests, testbed.GPUs(fmt.Sprintf("r%d", i), 1, testbed.Share(fmt.Sprintf("%dMi", 100+i), 34)))
			}
			start := time.Now()
			s.Submit(many, wide)
			bound := s.WaitVerdict("many") != ""
			s.Place(job("easy", 2, nil), pairs)
			s.WantGPUs("easy", pairs, "0,1")
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("24 requests took %s", took)
			}
			if bound {
				if got := s.Allocation("many").GPUs.Count(); got < 12 {
					t.Errorf("24 requests of 34 %% got %d GPUs, two fit on each", got)
				}
			}
			t.Logf("bound: %v, after %s", bound, time.Since(start))
		})
	}
}
