// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// Twelve pods at once fill three machines with pairs; every pair is one of NVLinks, whatever the order.
func TestBurstOfPairs(t *testing.T) {
	const pods = 12
	s := bed.Scene(t)
	nodes := []string{weave, pairs, cube}
	for i := range pods {
		s.CreateClaim(job(fmt.Sprintf("pod-%02d", i), 2, nil))
	}
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		s.CreatePod(testbed.Pod{Name: name, Nodes: nodes, Claims: []string{name}})
	}
	perNode := map[string]int{}
	for i := range pods {
		name := fmt.Sprintf("pod-%02d", i)
		s.WaitBound(name)
		a := s.Allocation(name)
		perNode[a.Node]++
		// On cube, the four pairs with two NVLinks are 0-3, 1-2, 4-7 and 5-6 when all of it is used up by them.
		linked := map[string]map[string]bool{
			weave: weavePairs,
			pairs: {"{0,1}": true, "{2,3}": true, "{4,5}": true, "{6,7}": true},
			cube:  {"{0,3}": true, "{1,2}": true, "{4,7}": true, "{5,6}": true, "{0,4}": true, "{1,5}": true, "{2,3}": true, "{6,7}": true},
		}[a.Node]
		if !linked[a.GPUs.String()] {
			t.Errorf("pod %q got %s, which is no pair of two NVLinks or more", name, a)
		}
	}
	if perNode[weave] != 4 || perNode[pairs] != 4 || perNode[cube] != 4 {
		t.Errorf("pods per node are %v, want four each", perNode)
	}
}

// The links outweigh everything that the default plugins have to say.
func TestLinksOutweighOtherScores(t *testing.T) {
	s := bed.Scene(t)
	cpu := func(amount string) map[corev1.ResourceName]string {
		return map[corev1.ResourceName]string{corev1.ResourceCPU: amount}
	}
	s.CreatePod(testbed.Pod{Name: "filler", Nodes: []string{weave}, Extended: cpu("250")})
	s.WaitBound("filler")
	s.CreateClaim(job("job", 2, testbed.Policy(api.PolicyPreferred)))
	s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{weave, pcie, degraded}, Claims: []string{"job"}, Extended: cpu("4")})
	s.WaitBound("job")
	s.WantGPUs("job", degraded, "4,5") // NVSwitch
	s.CreateClaim(job("next", 2, testbed.Policy(api.PolicyPreferred)))
	s.CreatePod(testbed.Pod{Name: "next", Nodes: []string{weave, pcie}, Claims: []string{"next"}, Extended: cpu("4")})
	s.WaitBound("next")
	s.WantGPUs("next", weave, "0,2") // although nearly all of its CPUs are taken
}
