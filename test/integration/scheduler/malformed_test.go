// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// A configuration that makes no sense is told to the owner of the pod, the scheduler goes on, and a corrected claim of the
// same name is scheduled without further ado.
func TestMalformedConfig(t *testing.T) {
	const head = `"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig"`
	s := bed.Scene(t)
	for _, c := range []struct{ name, config, message string }{
		{"policy", `{` + head + `,"topology":{"policy":"Sometimes"}}`, `topology.policy`},
		{"level", `{` + head + `,"topology":{"policy":"Required","level":"Copper"}}`, `topology.level`},
		{"nothing", `{` + head + `,"topology":{"policy":"Required"}}`, `topology.level`},
		{"preferred-level", `{` + head + `,"topology":{"level":"NVLink"}}`, `topology.level`},
		{"negative", `{` + head + `,"topology":{"policy":"Required","minGBps":-1}}`, `topology.minGBps`},
		{"huge", `{` + head + `,"topology":{"policy":"Required","minGBps":2147483647}}`, `topology.minGBps`},
		{"unknown-field", `{` + head + `,"topologie":{"policy":"Required"}}`, `topologie`},
		{"wrong-type", `{` + head + `,"topology":{"policy":7}}`, `policy`},
		{"other-kind", `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GpuConfig"}`, `GpuConfig`},
		{"other-version", `{"apiVersion":"gpu.topodra.dev/v9","kind":"GPUClaimConfig"}`, `gpu.topodra.dev/v9`},
		{"no-kind", `{"topology":{"policy":"Preferred"}}`, `kind`},
	} {
		claim := job(c.name, 2, nil)
		claim.Config = c.config
		s.Submit(claim, weave)
		s.WaitPending(c.name, fmt.Sprintf("resourceclaim %q", c.name), c.message)
		s.WaitEvent(c.name, "FailedScheduling", c.message)
	}
	s.Place(job("good", 2, testbed.Required(api.LevelNVLink, 0)), weave)
	s.WantGPUs("good", weave, "0,2")
	if err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Delete(t.Context(), "policy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.CreateClaim(job("policy", 2, testbed.Required(api.LevelNVLink, 0)))
	s.WaitBound("policy")
	s.WantGPUs("policy", weave, "1,3")
}

// A class with a bad configuration is named.
func TestMalformedClassConfig(t *testing.T) {
	s := bed.Scene(t)
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "bad-class"},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.topodra.dev"`}}},
			Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: []byte(`{"kind":"Nonsense"}`)}},
			}}},
		},
	}
	classes := s.Client.ResourceV1().DeviceClasses()
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error { return classes.Delete(ctx, class.Name, metav1.DeleteOptions{}) })
	s.Submit(other("job", "bad-class", 2, ""), weave)
	s.WaitPending("job", `device class "bad-class"`)
	// Once the class is right, the pod goes on by itself.
	class, err := classes.Get(t.Context(), class.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class.Spec.Config[0].Opaque.Parameters.Raw = []byte(`{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig","topology":{"policy":"Required","level":"NVLink"}}`)
	if _, err := classes.Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.WaitBound("job")
	s.WantGPUs("job", weave, "0,2")
}

// Slices that contradict themselves leave their GPUs schedulable, and the scheduler says what is wrong with them.
func TestMalformedSlices(t *testing.T) {
	gpu := func(name string, attributes testbed.Attributes) resourceapi.Device {
		attributes[api.AttrType] = api.DeviceTypeGPU
		return testbed.Device(name, attributes)
	}
	for _, c := range []struct {
		name    string
		devices []resourceapi.Device
	}{
		{"asymmetric", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 0, api.AttrNVLinks: "x4", api.AttrPCIe: "xn"}),
			gpu("b", testbed.Attributes{api.AttrIndex: 1, api.AttrNVLinks: "2x", api.AttrPCIe: "sx"}),
		}},
		{"short-row", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 0, api.AttrNVLinks: "x4"}),
			gpu("b", testbed.Attributes{api.AttrIndex: 1, api.AttrNVLinks: "4x00"}),
		}},
		{"same-index", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 1, api.AttrNVLinks: "4x"}),
			gpu("b", testbed.Attributes{api.AttrIndex: 1, api.AttrNVLinks: "4x"}),
		}},
		{"no-digits", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 0, api.AttrNVLinks: "x?"}),
			gpu("b", testbed.Attributes{api.AttrIndex: 1, api.AttrNVLinks: "!x"}),
		}},
		{"wrong-types", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: "zero", api.AttrNVLinks: 7, api.AttrPCIe: true}),
			gpu("b", testbed.Attributes{api.AttrIndex: "one", api.AttrNVLinkMBps: "fast"}),
		}},
		{"far-index", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 1 << 40}),
			gpu("b", testbed.Attributes{api.AttrIndex: -5}),
		}},
		{"negative-numa", []resourceapi.Device{
			gpu("a", testbed.Attributes{api.AttrIndex: 0, api.AttrNUMANode: -7, api.AttrPCIeGen: 1 << 33}),
			gpu("b", testbed.Attributes{api.AttrIndex: 1, api.AttrNUMANode: 1 << 50, api.AttrNVLinkMBps: -1}),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bed.Scene(t)
			s.AddNode(testbed.Node{Name: "odd-" + c.name})
			s.Publish(api.DriverName, "odd-"+c.name, c.devices)
			s.CreateClaim(job("job", 2, nil))
			s.CreatePod(testbed.Pod{Name: "job", Nodes: []string{"odd-" + c.name}, Claims: []string{"job"}})
			s.WaitBound("job")
			warned := func() bool { return warnings(t, s, "odd-"+c.name) > 0 }
			if !warned() {
				t.Errorf("the scheduler does not warn of the slices of node %q", "odd-"+c.name)
			}
		})
	}
}

// warnings counts the lines of the scheduler's log that speak of the topology of a node's pool.
func warnings(t *testing.T, s *testbed.Scene, node string) int {
	t.Helper()
	log, err := os.ReadFile(s.Scheduler(t).LogPath)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(strings.ToLower(line), "topology") && strings.Contains(line, `pool="`+node+`"`) {
			count++
		}
	}
	return count
}

// Claims that ask for the impossible or the odd are refused in words, or served, and nothing falls over.
func TestOddClaims(t *testing.T) {
	s := bed.Scene(t)
	words := map[string]string{
		"no-such-class": "missing", "cel-error": "no such key", // the others just do not fit
	}
	for name, claim := range map[string]testbed.Claim{
		"nine-of-eight":   job("nine-of-eight", 9, nil),
		"twice-eight":     {Requests: testbed.Requests(testbed.GPUs("a", 8), testbed.GPUs("b", 8))},
		"too-much-memory": {Requests: testbed.Requests(testbed.GPUs("gpus", 2, testbed.Share("1Ti", 10)))},
		"too-many-cores":  {Requests: testbed.Requests(testbed.GPUs("gpus", 2, testbed.Share("1Gi", 101)))},
		"unknown-amount":  {Requests: testbed.Requests(testbed.GPUs("gpus", 2, testbed.Capacity(map[resourceapi.QualifiedName]string{"tensors": "1"})))},
		"no-such-index":   {Requests: testbed.Requests(testbed.GPUs("gpus", 1, testbed.At(63)))},
		"no-such-class":   {Requests: testbed.Requests(testbed.GPUs("gpus", 1, testbed.Class("missing")))},
		"cel-error":       {Requests: testbed.Requests(testbed.GPUs("gpus", 2, testbed.Select(`device.attributes["gpu.topodra.dev"].nothing == 1`)))},
		"mig":             {Requests: testbed.Requests(testbed.GPUs("gpus", 1, testbed.Class(api.DeviceClassMIG)))},
		"no-common-value": {Requests: testbed.Requests(testbed.GPUs("gpus", 2)), Constraints: []resourceapi.DeviceConstraint{testbed.Match(api.DriverName + "/nothing")}},
		"absurd":          {Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(testbed.GPUs("a", math.MaxInt64), testbed.GPUs("b", math.MaxInt64))},
		"required-nine":   job("required-nine", 9, testbed.Required(api.LevelNVLink, 0)),
	} {
		claim.Name = name
		s.Submit(claim, weave)
		s.WaitPending(name, cmp.Or(words[name], "0/8 nodes are available"))
	}
	// Sixteen requests for whole GPUs, on the only machine that has so many. On a smaller one, the in-tree allocator would try
	// every order of them before it gives up.
	many := testbed.Claim{Name: "many"}
	for i := range 16 {
		many.Requests = append(many.Requests, testbed.GPUs(fmt.Sprintf("r%d", i), 1))
	}
	s.Place(many, bare, wide)
	s.WantGPUs("many", wide, "0-15")
	// 32 shares in 32 requests are stacked on as few GPUs as possible.
	shares := testbed.Claim{Name: "shares"}
	for i := range 32 {
		shares.Requests = append(shares.Requests, testbed.GPUs(fmt.Sprintf("r%d", i), 1, testbed.Share("1Gi", 3)))
	}
	s.Place(shares, weave)
	if a := s.Allocation("shares"); a.GPUs.Count() != 1 {
		t.Errorf("32 shares of 3 %% got %s, want one GPU", a)
	}
	// A claim without requests needs nothing.
	s.Place(testbed.Claim{Name: "empty"}, weave)
}

// More alternatives than can be planned are left to the allocator for a preference, and refused for a guarantee.
func TestTooManyAlternatives(t *testing.T) {
	s := bed.Scene(t)
	claim := testbed.Claim{Name: "preferred"}
	for _, list := range []string{"a", "b", "c"} {
		var alternatives []resourceapi.DeviceRequest
		for count := range int64(5) {
			alternatives = append(alternatives, testbed.GPUs(fmt.Sprintf("n%d", 5-count), 5-count))
		}
		claim.Requests = append(claim.Requests, testbed.FirstAvailable(list, alternatives...))
	}
	s.Place(claim, weave)
	// Five for the first list and two for the second leave one: that is the first combination that fits.
	s.WantGPUs("preferred", weave, "0-7")
	for request, want := range map[string]int{"a/n5": 5, "b/n2": 2, "c/n1": 1} {
		if got := s.Allocation("preferred").ByRequest[request].Count(); got != want {
			t.Errorf("request %q got %d GPUs, want %d", request, got, want)
		}
	}
	s.Finish("preferred")
	claim.Name, claim.Topology = "required", testbed.Required(api.LevelNUMA, 0)
	s.Submit(claim, weave)
	s.WaitPending("required", "could not be shown to have the required topology")
}

// A pod may have many claims; small ones share a GPU.
func TestManyClaimsInAPod(t *testing.T) {
	s := bed.Scene(t)
	pod := testbed.Pod{Name: "job", Nodes: []string{weave}}
	for i := range 20 {
		name := fmt.Sprintf("claim-%02d", i)
		s.CreateClaim(testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("1Gi", 5)))})
		pod.Claims = append(pod.Claims, name)
	}
	s.Occupy(weave, 6)
	s.CreatePod(pod)
	s.WaitBound("job")
	for _, name := range pod.Claims {
		s.WantGPUs(name, weave, "7") // all of its compute, and the partner of a GPU that is busy
	}
}
