// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
	"github.com/topodra/topodra/topology"
)

// A scheduler that starts anew knows what is taken, schedules what has come in between, and still keeps who waits waiting.
func TestSchedulerRestart(t *testing.T) {
	s := bed.Scene(t)
	s.Place(job("before", 2, nil), weave)
	s.WantGPUs("before", weave, "0,2")
	s.Place(testbed.Claim{Name: "share", Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.At(4), testbed.Share("30Gi", 60)))}, weave)
	s.Occupy(weave, 1, 6)
	s.Submit(job("waits", 2, testbed.Required(api.LevelNVLink, 0)), weave)
	s.WaitPending("waits", "topology: required are 2 GPUs over NVLink; best now: SYS 12 GB/s")
	if err := s.StopScheduler(t.Context()); err != nil {
		t.Error(err)
	}
	s.Submit(job("between", 2, nil), weave)
	s.Submit(testbed.Claim{Name: "share-2", Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("30Gi", 60)))}, weave)
	if err := s.StartScheduler(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitBound("between")
	s.WaitBound("share-2")
	// Of 3, 5 and 7, and of 4 by half, the pair gets two and the share the third: another 60 % do not fit on 4.
	between, share := s.Allocation("between").GPUs, s.Allocation("share-2").GPUs
	if (between|share).String() != "{3,5,7}" || between.Count() != 2 || share.Count() != 1 {
		t.Errorf("after the restart, the pair got %s and the share %s, want {3,5,7} together", between, share)
	}
	s.WantGPUs("before", weave, "0,2")
	s.StillPending("waits")
	s.Finish("before")
	s.WaitBound("waits")
	s.WantGPUs("waits", weave, "0,2")
}

// A scheduler that is stopped while pods keep coming loses none and books nothing twice.
func TestSchedulerRestartUnderLoad(t *testing.T) {
	const pods = 24
	s := bed.Scene(t)
	for i := range pods {
		s.Submit(testbed.Claim{Name: fmt.Sprintf("pod-%02d", i), Requests: testbed.Requests(testbed.GPUs("gpus", 1))}, cube, cube2, weave)
		if i == pods/2 {
			if err := s.StopScheduler(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.StartScheduler(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken := map[string]topology.Mask{}
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		s.WaitBound(name)
		a := s.Allocation(name)
		if taken[a.Node]&a.GPUs != 0 {
			t.Errorf("pod %q got %s, which another one has", name, a)
		}
		taken[a.Node] |= a.GPUs
	}
	for _, node := range []string{cube, cube2, weave} {
		if taken[node].String() != "{0-7}" {
			t.Errorf("GPUs %s of %q are taken, want all", taken[node], node)
		}
	}
}

// Two profiles in one process, ours and the in-tree one, take from the same GPUs and never book one twice.
func TestTwoProfiles(t *testing.T) {
	const pods = 16
	s := bed.Scene(t)
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		s.CreateClaim(testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1))})
	}
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		profile := []string{api.SchedulerName, "default-scheduler"}[i%2]
		s.CreatePod(testbed.Pod{Name: name, Nodes: []string{cube, cube2}, Claims: []string{name}, Scheduler: profile})
	}
	taken := map[string]topology.Mask{}
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		s.WaitBound(name)
		a := s.Allocation(name)
		if taken[a.Node]&a.GPUs != 0 {
			t.Errorf("pod %q got %s, which another one has", name, a)
		}
		taken[a.Node] |= a.GPUs
	}
	if taken[cube].String() != "{0-7}" || taken[cube2].String() != "{0-7}" {
		t.Errorf("taken are %v, want all GPUs of both nodes", taken)
	}
	// The in-tree profile takes what comes first, ours the best of the rest.
	s.Finish("pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-06", "pod-07",
		"pod-08", "pod-09", "pod-10", "pod-11", "pod-12", "pod-13", "pod-14", "pod-15")
	s.CreateClaim(job("stock", 2, nil))
	s.CreatePod(testbed.Pod{Name: "stock", Nodes: []string{weave}, Claims: []string{"stock"}, Scheduler: "default-scheduler"})
	s.WaitBound("stock")
	s.WantGPUs("stock", weave, "0,1")
	s.Place(job("ours", 2, testbed.Required(api.LevelNVLink, 0)), weave)
	if got := s.Allocation("ours").GPUs.String(); got != "{4,5}" && got != "{6,7}" {
		t.Errorf("our profile got %s beside {0,1}, want an NVLink pair", got)
	}
}
