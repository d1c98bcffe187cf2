// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// matchAttribute keeps a claim on GPUs that agree, and the best of those are taken.
func TestMatchAttribute(t *testing.T) {
	s := bed.Scene(t)
	// Without the constraint, three GPUs would go to the socket that is whole; domains have two GPUs only.
	three := testbed.Claim{Name: "three", Requests: testbed.Requests(testbed.GPUs("gpus", 3)), Constraints: []resourceapi.DeviceConstraint{
		testbed.Match(api.DriverName + "/nvlinkDomain"),
	}}
	s.Submit(three, pairs)
	s.WaitPending("three", "0/")
	s.Finish("three")
	s.Occupy(pairs, 0)
	// Two requests of one GPU each have to agree; the lowest two free GPUs, 1 and 2, do not.
	s.Place(testbed.Claim{Name: "two", Topology: testbed.Policy(api.PolicyNone), Requests: testbed.Requests(
		testbed.GPUs("left", 1), testbed.GPUs("right", 1),
	), Constraints: []resourceapi.DeviceConstraint{testbed.Match(api.DriverName+"/nvlinkDomain", "left", "right")}}, pairs)
	s.WantGPUs("two", pairs, "2,3")
	s.Finish("two")
	// On one socket, 1 and 2 come first, 2 and 3 are linked.
	socket := func(name string, count int64) testbed.Claim {
		return testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpus", count)), Constraints: []resourceapi.DeviceConstraint{
			testbed.Match(resourceapi.FullyQualifiedName(api.AttrNUMANode)),
		}}
	}
	s.Occupy(pairs, 4, 5, 6)
	s.Place(socket("socket", 2), pairs)
	s.WantGPUs("socket", pairs, "2,3")
	// 1 and 7 are left, on different sockets.
	s.Submit(socket("impossible", 2), pairs)
	s.WaitPending("impossible", "0/8 nodes are available")
}

// distinctAttribute beats the links: of two GPUs on different switches, the best are on one socket.
func TestDistinctAttribute(t *testing.T) {
	s := bed.Scene(t)
	distinct := func(name, attribute string, count int64) testbed.Claim {
		return testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpus", count)), Constraints: []resourceapi.DeviceConstraint{
			testbed.Distinct(resourceapi.FullyQualifiedName(attribute)),
		}}
	}
	// The first two on different switches would be 1 and 4; NODE is the best link between switches, and only the second socket
	// has two switches with free GPUs.
	s.Occupy(pcie, 0, 2, 3)
	s.Place(distinct("roots", string(api.AttrPCIeRoot), 2), pcie)
	s.WantGPUs("roots", pcie, "4,6")
	s.Finish("roots")
	s.Vacate(pcie, 3)
	// One GPU of each socket: on the first, 1 and 3 have lost their neighbours; on the second, every pair is whole.
	s.Place(distinct("sockets", string(api.AttrNUMANode), 2), pcie)
	sockets := s.Allocation("sockets").GPUs
	if first, second := (sockets & 0x0f).String(), sockets&0xf0; first != "{1}" && first != "{3}" || second.Count() != 1 {
		t.Errorf("two GPUs of different sockets are %s, want 1 or 3, and one of {4-7}", sockets)
	}
	s.Submit(distinct("impossible", string(api.AttrNUMANode), 3), pcie)
	s.WaitPending("impossible", "0/")
}

// A tainted GPU in the middle of the best quad is avoided, but not by those who tolerate it.
func TestDeviceTaintRule(t *testing.T) {
	s := bed.Scene(t)
	quad := func(name string, options ...testbed.RequestOption) testbed.Claim {
		return testbed.Claim{Name: name, Topology: testbed.Required(api.LevelNVLink, 40), Requests: testbed.Requests(testbed.GPUs("gpus", 4, options...))}
	}
	remove := taint(t, s, cube, 2)
	s.Place(quad("avoids"), cube)
	s.WantGPUs("avoids", cube, "4-7")
	s.Place(quad("tolerates", testbed.Tolerate("repair")), cube)
	s.WantGPUs("tolerates", cube, "0-3")
	s.Finish("tolerates")
	// The other quad is tainted and no other set has two rings: the claim waits, and gets it when the taint goes.
	s.Submit(quad("waits"), cube)
	s.WaitPending("waits", "topology: required are 4 GPUs over NVLink at 40 GB/s; best now: ")
	if err := remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitBound("waits")
	s.WantGPUs("waits", cube, "0-3")
}

// taint puts a NoSchedule taint on a GPU, waits until the scheduler knows it, and returns how to remove it.
func taint(t *testing.T, s *testbed.Scene, node string, position int) func(context.Context) error {
	t.Helper()
	rules := s.Client.ResourceV1().DeviceTaintRules()
	rule := &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "repair-"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{
				Driver: new(api.DriverName), Pool: &node, Device: new(s.DeviceName(node, position)),
			},
			Taint: resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	created, err := rules.Create(t.Context(), rule, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a taint rule: %v", err)
	}
	removed := false
	remove := func(ctx context.Context) error {
		if removed {
			return nil
		}
		removed = true
		return rules.Delete(ctx, created.Name, metav1.DeleteOptions{})
	}
	s.Finally(remove)
	// A pod for this very GPU tells whether the taint has arrived.
	s.Retry(func(name string) bool {
		s.Submit(testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.At(position)))}, node)
		return s.WaitVerdict(name) == ""
	})
	return remove
}
