// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/integration/testbed"
)

// Drivers of other people, whose slices the tests write by hand.
const (
	plainDriver   = "plain.example.com"   // PCIe roots and NUMA nodes only
	rowsDriver    = "rows.example.com"    // rows of links like ours, under other names; see configure
	islandsDriver = "islands.example.com" // GPUs of one island have NVLink to each other; see configure
	muteDriver    = "mute.example.com"    // says nothing about topology
)

// plainDevices are four GPUs below two PCIe roots, each on a socket of its own. Neighbours in the list are apart.
func plainDevices() []resourceapi.Device {
	var devices []resourceapi.Device
	for i, name := range []string{"d0", "d1", "d2", "d3"} {
		devices = append(devices, testbed.Device(name, testbed.Attributes{
			api.AttrPCIeRoot: []string{"pci0000:10", "pci0000:80"}[i%2], api.AttrNUMANode: i % 2,
		}))
	}
	return devices
}

// other is a claim for a number of devices of a class.
func other(name, class string, count int64, annotation string) testbed.Claim {
	return testbed.Claim{Name: name, Annotation: annotation, Requests: testbed.Requests(testbed.GPUs("gpus", count, testbed.Class(class)))}
}

// With standard attributes alone, devices below one PCIe root go together.
func TestOtherDriverWithStandardAttributes(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, bare, plainDevices())
	s.Place(other("first", "plain", 2, ""), bare)
	s.WantDevices("first", bare, "d0", "d2")
	s.Place(other("second", "plain", 2, ""), bare)
	s.WantDevices("second", bare, "d1", "d3")
}

// A single device goes where a pair is broken.
func TestOtherDriverSingle(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, bare, plainDevices())
	taken := other("taken", "plain", 1, "")
	testbed.Select(`device.attributes["resource.kubernetes.io"].numaNode == 1`)(taken.Requests[0].Exactly)
	s.Place(taken, bare)
	s.WantDevices("taken", bare, "d1")
	s.Place(other("single", "plain", 1, ""), bare)
	s.WantDevices("single", bare, "d3")
}

// Claims of other drivers carry their policy in an annotation; our own configuration does not concern their devices.
func TestAnnotation(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, bare, plainDevices())
	s.Place(other("none", "plain", 2, "None"), bare)
	s.WantDevices("none", bare, "d0", "d1")
	s.Submit(other("required", "plain", 2, "Required,level=NUMA"), bare)
	s.WaitPending("required", "topology: required are 2 GPUs within one NUMA node; best now: SYS", `on node "bare" (GPUs 2,3)`, `best if GPUs were freed: NUMA`, `(GPUs 0,2)`)
	s.Place(other("preferred", "plain", 2, "Preferred"), bare)
	s.WantDevices("preferred", bare, "d2", "d3")
	s.StillPending("required")
	s.Finish("none", "preferred")
	s.WaitBound("required")
	if got := s.Allocation("required").String(); got != "bare {} d0,d2" && got != "bare {} d1,d3" {
		t.Errorf("guaranteed pair is %q, want d0,d2 or d1,d3", got)
	}
}

// An annotation that makes no sense is told to the owner of the pod, and nothing else suffers.
func TestMalformedAnnotation(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, bare, plainDevices())
	for name, c := range map[string]struct{ value, message string }{
		"word":     {"Sometimes", `"Sometimes"`},
		"level":    {"Required,level=Copper", `"Copper"`},
		"bare":     {"Required", "guarantees nothing"},
		"conflict": {"Preferred,level=NVLink", "only policy Required"},
		"number":   {"Required,minGBps=fast", "minGBps"},
	} {
		s.Submit(other(name, "plain", 2, c.value), bare)
		s.WaitPending(name, `resourceclaim "`+name+`"`, api.AnnotationTopology, c.message)
		s.WaitEvent(name, "FailedScheduling", api.AnnotationTopology, c.message)
	}
	s.Place(other("good", "plain", 2, "Required,level=NUMA"), bare)
	s.WantDevices("good", bare, "d0", "d2")
}

// Attributes under other names are read by the mapping in the plugin's arguments.
func TestMappedRows(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("rows", rowsDriver)
	var devices []resourceapi.Device
	// g0 is linked with g3, g1 with g2, by four links of 25 GB/s each.
	for i, links := range []string{"x004", "0x40", "04x0", "400x"} {
		devices = append(devices, testbed.Device([]string{"g0", "g1", "g2", "g3"}[i], testbed.Attributes{
			"slot": i, "links": links, "linkSpeed": 25000,
		}))
	}
	s.Publish(rowsDriver, bare, devices)
	s.Place(other("first", "rows", 2, "Required,level=NVLink,minGBps=100"), bare)
	first := s.Allocation("first")
	if got := first.String(); got != "bare {} g0,g3" && got != "bare {} g1,g2" {
		t.Errorf("first pair is %q, want g0,g3 or g1,g2", got)
	}
	s.Submit(other("fast", "rows", 2, "Required,minGBps=101"), bare)
	s.WaitPending("fast", "topology: required are 2 GPUs at 101 GB/s; best now: NVLink 100 GB/s")
	s.Place(other("second", "rows", 2, ""), bare)
	if second := s.Allocation("second"); second.String() == first.String() || second.Devices[0] == "g0" && second.Devices[1] != "g3" || second.Devices[0] == "g1" && second.Devices[1] != "g2" {
		t.Errorf("second pair is %s beside %s", second, first)
	}
}

// Islands are GPUs with NVLink to each other.
func TestMappedIslands(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("islands", islandsDriver)
	var devices []resourceapi.Device
	for i, island := range []string{"a", "b", "b", "a", "b"} {
		devices = append(devices, testbed.Device([]string{"g0", "g1", "g2", "g3", "g4"}[i], testbed.Attributes{"island": island}))
	}
	s.Publish(islandsDriver, bare, devices)
	s.Place(other("three", "islands", 3, "Required,level=NVLink"), bare)
	s.WantDevices("three", bare, "g1", "g2", "g4")
	s.Place(other("two", "islands", 2, "Required,level=NVLink"), bare)
	s.WantDevices("two", bare, "g0", "g3")
}

// Where nothing is known, the allocator chooses alone, a preference changes nothing, and a guarantee is refused.
func TestOtherDriverWithoutTopology(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("mute", muteDriver)
	s.Publish(muteDriver, bare, []resourceapi.Device{
		testbed.Device("m0", nil), testbed.Device("m1", nil), testbed.Device("m2", nil),
	})
	s.Place(other("preferred", "mute", 2, "Preferred"), bare)
	s.WantDevices("preferred", bare, "m0", "m1")
	s.Finish("preferred")
	s.Submit(other("required", "mute", 2, "Required,level=NUMA"), bare)
	s.WaitPending("required", "could not be shown to have the required topology")
	s.Place(other("single", "mute", 1, "Required,level=NVLink"), bare)
	s.WantDevices("single", bare, "m0")
	s.StillPending("required")
}

// A pool may have several slices; the best pair may lie across them.
func TestPoolWithSeveralSlices(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("rows", rowsDriver)
	device := func(i int, links string) resourceapi.Device {
		return testbed.Device([]string{"g0", "g1", "g2", "g3"}[i], testbed.Attributes{"slot": i, "links": links, "linkSpeed": 25000})
	}
	s.Publish(rowsDriver, bare,
		[]resourceapi.Device{device(0, "x010"), device(1, "0x04")},
		[]resourceapi.Device{device(2, "10x0"), device(3, "040x")},
	)
	s.Place(other("best", "rows", 2, ""), bare)
	s.WantDevices("best", bare, "g1", "g3")
	s.Place(other("rest", "rows", 2, "Required,level=NVLink"), bare)
	s.WantDevices("rest", bare, "g0", "g2")
}

// One claim for devices of two drivers: each driver's devices are chosen among themselves.
func TestTwoTopologiesInAClaim(t *testing.T) {
	s := bed.Scene(t)
	s.DeviceClass("plain", plainDriver)
	s.Publish(plainDriver, weave, plainDevices())
	s.Place(testbed.Claim{Name: "job", Annotation: "Required,level=NUMA", Topology: testbed.Required(api.LevelNVLink, 0), Requests: testbed.Requests(
		testbed.GPUs("theirs", 2, testbed.Class("plain")),
		testbed.GPUs("ours", 2),
	)}, weave)
	s.WantRequest("job", "ours", "0,2")
	if got := s.Allocation("job").Devices; len(got) != 2 || got[0] != "d0" || got[1] != "d2" {
		t.Errorf("request to the other driver got %q, want d0 and d2", got)
	}
}
