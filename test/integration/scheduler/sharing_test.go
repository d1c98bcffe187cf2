// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// weavePairs are the NVLink pairs of that machine.
var weavePairs = map[string]bool{"{0,2}": true, "{1,3}": true, "{4,5}": true, "{6,7}": true}

// memory asks for an amount of memory and nothing else.
func memory(amount string) testbed.RequestOption {
	return testbed.Capacity(map[resourceapi.QualifiedName]string{api.CapacityMemory: amount})
}

// Memory alone shares a GPU, compute alone takes all of its memory.
func TestMemoryOnlyAndCoresOnly(t *testing.T) {
	s := bed.Scene(t)
	s.Occupy(weave, 0)
	claim := func(name string, option testbed.RequestOption) testbed.Claim {
		return testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, option))}
	}
	s.Place(claim("memory-1", memory("10Gi")), weave)
	s.WantGPUs("memory-1", weave, "2") // its partner is busy
	s.Place(claim("memory-2", memory("20Gi")), weave)
	s.WantGPUs("memory-2", weave, "2")
	s.Place(claim("cores", testbed.Capacity(map[resourceapi.QualifiedName]string{api.CapacityCores: "10"})), weave)
	if cores := s.Allocation("cores").GPUs; cores.Has(2) {
		t.Errorf("compute alone got %s, want a GPU of its own: it takes all memory", cores)
	}
	// 10 of 40 GiB are left on GPU 2, less what its driver keeps.
	s.Place(claim("memory-3", memory("9Gi")), weave)
	s.WantGPUs("memory-3", weave, "2")
}

// The limit of sharers per GPU is kept and planned with.
func TestMaxSharers(t *testing.T) {
	s := bed.Scene(t)
	s.AddNode(testbed.Node{Name: "two-sharers", Machine: machines[weave], DriverArgs: []string{"--max-sharers=2"}})
	gpus := map[string]int{}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Place(testbed.Claim{Name: name, Requests: testbed.Requests(testbed.GPUs("gpu", 1, testbed.Share("1Gi", 5)))}, "two-sharers")
		gpus[s.Allocation(name).GPUs.String()]++
	}
	if len(gpus) != 2 {
		t.Errorf("four shares are on GPUs %v, want two on each of two", gpus)
	}
	first, second := s.Allocation("a").GPUs, s.Allocation("c").GPUs
	if pair := (first | second).String(); !weavePairs[pair] {
		t.Errorf("the shares are on %s, want one NVLink pair: breaking two costs more", pair)
	}
}

// On a node that wants compute to be reserved, memory alone takes a whole GPU.
func TestRequireCores(t *testing.T) {
	s := bed.Scene(t)
	s.AddNode(testbed.Node{Name: "reserved", Machine: machines[weave], DriverArgs: []string{"--require-cores"}})
	claim := testbed.Claim{Requests: testbed.Requests(testbed.GPUs("gpus", 2, memory("1Gi")))}
	for _, name := range []string{"first", "second"} {
		claim.Name = name
		s.Place(claim, "reserved")
		if got := s.Allocation(name).GPUs.String(); !weavePairs[got] {
			t.Errorf("claim %q got %s, want an NVLink pair of its own", name, got)
		}
	}
	if first, second := s.Allocation("first").GPUs, s.Allocation("second").GPUs; first&second != 0 {
		t.Errorf("claims got %s and %s, want different GPUs", first, second)
	}
}

// MIG devices beside GPUs: each class gets its own, and GPUs keep their positions around the one that is divided.
func TestMIGBesideGPUs(t *testing.T) {
	s := bed.Scene(t)
	gpu := func(i int, links string) resourceapi.Device {
		return testbed.Device([]string{"gpu-a", "gpu-b", "", "gpu-d"}[i], testbed.Attributes{
			api.AttrType: api.DeviceTypeGPU, api.AttrIndex: i, api.AttrNVLinks: links, api.AttrNVLinkMBps: 25000,
		})
	}
	mig := func(name string) resourceapi.Device {
		return testbed.Device(name, testbed.Attributes{api.AttrType: api.DeviceTypeMIG, api.AttrIndex: 2, api.AttrParentUUID: "GPU-c"})
	}
	s.AddNode(testbed.Node{Name: "divided"})
	s.Publish(api.DriverName, "divided", []resourceapi.Device{
		gpu(0, "x000"), gpu(1, "0x04"), mig("mig-1"), mig("mig-2"), gpu(3, "040x"),
	})
	s.Place(job("pair", 2, testbed.Required(api.LevelNVLink, 100)), "divided")
	s.WantGPUs("pair", "divided", "1,3")
	s.Place(other("mig", api.DeviceClassMIG, 2, ""), "divided")
	s.WantDevices("mig", "divided", "mig-1", "mig-2")
	s.Place(job("single", 1, nil), "divided")
	s.WantGPUs("single", "divided", "0")
	s.Submit(job("none", 1, nil), "divided")
	s.WaitPending("none", "0/9 nodes are available")
}

// Devices that every node can use do not disturb the choice of GPUs.
func TestNetworkDevicesBesideGPUs(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("disks", "disk.example.com")
	s.PublishForAll("disk.example.com", "rack", []resourceapi.Device{testbed.Device("disk-0", nil), testbed.Device("disk-1", nil)})
	for _, c := range []struct{ name, gpus string }{{"first", "0,2"}, {"second", "1,3"}} {
		s.CreateClaim(other(c.name+"-disk", "disks", 1, ""))
		s.CreateClaim(job(c.name, 2, testbed.Required(api.LevelNVLink, 0)))
		s.CreatePod(testbed.Pod{Name: c.name, Nodes: []string{weave, pcie}, Claims: []string{c.name + "-disk", c.name}})
		s.WaitBound(c.name)
		s.WantGPUs(c.name, weave, c.gpus)
	}
}
