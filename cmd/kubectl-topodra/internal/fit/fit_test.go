// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/ask"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

func TestConsume(t *testing.T) {
	t.Parallel()
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	device := &resourceapi.Device{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		api.CapacityMemory: {Value: *q("16Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: q("16Gi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q("2Gi"), Max: q("12Gi"), Step: q("1Gi")},
		}},
		api.CapacityCores: {Value: *q("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: q("0"), ValidValues: []resource.Quantity{*q("0"), *q("25"), *q("50")}}},
		api.CapacitySlots: {Value: *q("4"), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: q("1"), ValidValues: []resource.Quantity{*q("1")}}},
	}}
	for name, c := range map[string]struct {
		asked map[resourceapi.QualifiedName]string
		want  placement.Capacity
		ok    bool
	}{
		"nothing":          {nil, placement.Capacity{MemoryMiB: 16 << 10, Slots: 1}, true},
		"below the least":  {map[resourceapi.QualifiedName]string{"memory": "1Gi"}, placement.Capacity{MemoryMiB: 2 << 10, Slots: 1}, true},
		"between steps":    {map[resourceapi.QualifiedName]string{"memory": "2049Mi"}, placement.Capacity{MemoryMiB: 3 << 10, Slots: 1}, true},
		"on a step":        {map[resourceapi.QualifiedName]string{"memory": "5Gi"}, placement.Capacity{MemoryMiB: 5 << 10, Slots: 1}, true},
		"above the most":   {map[resourceapi.QualifiedName]string{"memory": "13Gi"}, placement.Capacity{}, false},
		"the default":      {map[resourceapi.QualifiedName]string{"memory": "16Gi"}, placement.Capacity{MemoryMiB: 16 << 10, Slots: 1}, true},
		"more than it has": {map[resourceapi.QualifiedName]string{"memory": "17Gi"}, placement.Capacity{}, false},
		"far too much":     {map[resourceapi.QualifiedName]string{"memory": "1e30"}, placement.Capacity{}, false},
		"listed value":     {map[resourceapi.QualifiedName]string{"cores": "30"}, placement.Capacity{MemoryMiB: 16 << 10, CoresPercent: 50, Slots: 1}, true},
		"beyond the list":  {map[resourceapi.QualifiedName]string{"cores": "60"}, placement.Capacity{}, false},
		"unknown capacity": {map[resourceapi.QualifiedName]string{"gpu.topodra.dev/memory": "1Gi"}, placement.Capacity{}, false},
	} {
		request := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for key, amount := range c.asked {
			request.Requests[key] = resource.MustParse(amount)
		}
		got, ok := consume(request, device)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v (%v), want %+v (%v)", name, got, ok, c.want, c.ok)
		}
	}
}

// TestParts: each MIG device serves one request; devices move between requests where that helps.
func TestParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		items []partItem
		taken string
		short *Shortage
	}{
		"moved":     {[]partItem{{eligible: []string{"m0-0", "m0-1"}, count: 1}, {eligible: []string{"m0-0"}, count: 1}}, "", nil},
		"too few":   {[]partItem{{eligible: []string{"m0-0"}, count: 1}, {eligible: []string{"m0-0"}, count: 1}}, "", &Shortage{Request: "r1", Wanted: 1, MIG: true}},
		"held":      {[]partItem{{eligible: []string{"m0-0", "m0-1"}, count: 2}}, "m0-1", &Shortage{Request: "r0", Wanted: 2, Have: 1, MIG: true}},
		"all three": {[]partItem{{eligible: []string{"m0-0", "m0-1", "m0-2"}, count: 2}, {eligible: []string{"m0-0", "m0-1"}, count: 1}}, "", nil},
	} {
		n := &livestate.Node{GPUs: []livestate.GPU{{Holders: []livestate.Holder{{Device: c.taken}}}}}
		d := &Demand{node: n}
		for i := range c.items {
			c.items[i].Request = &ask.Request{Name: "r" + string(rune('0'+i))}
			d.parts = append(d.parts, c.items[i])
		}
		got := d.shortOfParts(func(livestate.Holder) bool { return true })
		if (got == nil) != (c.short == nil) || got != nil && *got != *c.short {
			t.Errorf("%s: %+v, want %+v", name, got, c.short)
		}
	}
}

// TestServe asks nodes for demands that shares, taints, constraints and policies decide.
func TestServe(t *testing.T) {
	t.Parallel()
	slice := clitest.Slice(t, "cube", "dgx1v_8xv100")
	clitest.Taint(&slice, 7, "gpu.topodra.dev/lost")
	for i := range slice.Spec.Devices { // the recording does not know the sockets
		slice.Spec.Devices[i].Attributes[api.AttrNUMANode] = resourceapi.DeviceAttribute{IntValue: new(int64(i / 4))}
	}
	held := []resourceapi.ResourceClaim{
		clitest.Claim("whole", 1, clitest.Allocated("cube", "g0", 1)),
		clitest.Claim("share", 1, clitest.Share("10Gi", "60"), clitest.Allocated("cube", "g1", 1)),
	}
	live, err := livestate.Build([]resourceapi.ResourceSlice{slice}, held)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]*resourceapi.DeviceClass{}
	for _, c := range clitest.Classes() {
		classes[c.Name] = &c
	}
	numa := resourceapi.FullyQualifiedName(api.AttrNUMANode)
	for name, c := range map[string]struct {
		claim  resourceapi.ResourceClaim
		served bool
		gpus   topology.Mask // checked when served and not 0
		reason placement.Reason
	}{
		"what is left":         {clitest.Claim("c", 5), true, topology.MaskOf(2, 3, 4, 5, 6), 0},
		"one too many":         {clitest.Claim("c", 6), false, 0, placement.ReasonTooFewFree},
		"more than untainted":  {clitest.Claim("c", 8), false, 0, placement.ReasonTooFewEligible},
		"tolerated":            {clitest.Claim("c", 6, tolerate), true, topology.MaskOf(2, 3, 4, 5, 6, 7), 0},
		"beside a share":       {clitest.Claim("c", 6, clitest.Share("6Gi", "40")), true, topology.MaskOf(1, 2, 3, 4, 5, 6), 0},
		"share without memory": {clitest.Claim("c", 6, clitest.Share("7Gi", "40")), false, 0, placement.ReasonTooFewFree},
		"share without cores":  {clitest.Claim("c", 6, clitest.Share("6Gi", "41")), false, 0, placement.ReasonTooFewFree},
		"all":                  {clitest.Claim("c", 1, everything), false, 0, placement.ReasonTooFewFree},
		"one socket":           {clitest.Claim("c", 3, match(numa)), true, topology.MaskOf(4, 5, 6), 0},
		"never in one socket":  {clitest.Claim("c", 5, match(numa)), false, 0, placement.ReasonConstraint},
		"ring of four":         {clitest.Claim("c", 4, clitest.Required(api.LevelNVLink)), false, 0, placement.ReasonPolicyNow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planner, err := New()
			if err != nil {
				t.Fatal(err)
			}
			claims := []ask.Claim{{Name: "c", Object: &c.claim}}
			choices, problem := ask.Choices(clitest.Pod("p", ""), claims, classes)
			if problem != "" {
				t.Fatal(problem)
			}
			d, err := planner.NewDemand(t.Context(), &live[0], choices[0], claims, 0)
			if err != nil {
				t.Fatal(err)
			}
			a, err := d.Serve(t.Context(), func(livestate.Holder) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			if a.Served != c.served || a.Reason != c.reason || c.gpus != 0 && a.Offer.GPUs != c.gpus {
				t.Errorf("served %v, reason %q, offer %+v; want %v, %q, %s", a.Served, a.Reason, a.Offer, c.served, c.reason, c.gpus)
			}
		})
	}
}

func tolerate(c *resourceapi.ResourceClaim) {
	c.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
}

func everything(c *resourceapi.ResourceClaim) {
	c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
}

func match(name resourceapi.FullyQualifiedName) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
	}
}
