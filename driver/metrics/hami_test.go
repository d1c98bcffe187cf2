// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/internal/owners"
)

// hamiCase is a metric as HAMi has it: its names, its labels and the value, in
// HAMi's unit, that newNode gives it in one series.
type hamiCase struct {
	name, labels, value string
}

// Series of newNode by HAMi's labels.
const (
	onGPU0        = `device_index="0",device_type="NVIDIA-H100",device_uuid="GPU-0",node="node-a",zone="vGPU"`
	onGPU0Legacy  = `deviceidx="0",devicetype="NVIDIA-H100",deviceuuid="GPU-0",nodeid="node-a",zone="vGPU"`
	booked0       = `container_index="0",device_uuid="GPU-0",namespace="default",node="node-a",pod="train",zone="vGPU"`
	booked0Legacy = `containeridx="0",deviceuuid="GPU-0",nodename="node-a",podname="train",podnamespace="default",zone="vGPU"`
	running1      = `container="main",device_uuid="GPU-1",namespace="default",pod="train",vdevice_index="1",zone="vGPU"`
	running0      = `container="main",device_uuid="GPU-0",namespace="default",pod="train",vdevice_index="0",zone="vGPU"`
	legacy0       = `ctrname="main",deviceuuid="GPU-0",podname="train",podnamespace="default",vdeviceid="0",zone="vGPU"`
)

// hamiCases are HAMi 2.10's metrics by its documentation, but for
// hamiLeftOut. Those of its scheduler come first, then its monitor's.
var hamiCases = []hamiCase{
	{"hami_gpu_memory_limit_bytes", onGPU0, "8.589934592e+10"},
	{"hami_gpu_core_limit_ratio", onGPU0, "100"},
	{"hami_gpu_memory_allocated_bytes", `device_cores="100",` + onGPU0, "2.147483648e+10"},
	{"hami_gpu_shared_count", onGPU0, "1"},
	{"hami_gpu_core_allocated_ratio", onGPU0, "25"},
	{"hami_node_gpu_overview", `device_cores="100",device_index="0",device_memory_limit="81920",device_type="NVIDIA-H100",device_uuid="GPU-0",node="node-a",zone="vGPU"`, "2.147483648e+10"},
	{"hami_node_gpu_memory_allocated_ratio", `device_index="0",device_uuid="GPU-0",node="node-a",zone="vGPU"`, "0.25"},
	{"hami_node_gpu_mig_instance_info", `compute_instance_id="0",device_index="2",device_uuid="GPU-2",gpu_instance_id="7",mig_uuid="MIG-a",node="node-a",placement_size="",placement_start="",profile="1g.10gb",zone="vGPU"`, "1"},
	{"hami_vgpu_memory_allocated_bytes", booked0, "2.147483648e+10"},
	{"hami_vgpu_core_allocated_ratio", booked0, "25"},
	{"GPUDeviceMemoryLimit", onGPU0Legacy, "8.589934592e+10"},
	{"GPUDeviceCoreLimit", onGPU0Legacy, "100"},
	{"GPUDeviceMemoryAllocated", `devicecores="100",` + onGPU0Legacy, "2.147483648e+10"},
	{"GPUDeviceSharedNum", onGPU0Legacy, "1"},
	{"GPUDeviceCoreAllocated", onGPU0Legacy, "25"},
	{"nodeGPUOverview", `devicecores="100",deviceidx="0",devicememorylimit="81920",devicetype="NVIDIA-H100",deviceuuid="GPU-0",nodeid="node-a",zone="vGPU"`, "2.147483648e+10"},
	{"nodeGPUMemoryPercentage", `deviceidx="0",deviceuuid="GPU-0",nodeid="node-a",zone="vGPU"`, "0.25"},
	{"nodeGPUMigInstance", `deviceidx="2",deviceuuid="GPU-2",migname="1g.10gb-7",nodeid="node-a",zone="vGPU"`, "1"},
	{"vGPUMemoryAllocated", booked0Legacy, "2.147483648e+10"},
	{"vGPUCoreAllocated", booked0Legacy, "25"},

	{"hami_host_gpu_memory_used_bytes", onGPU0, "3.221225472e+10"},
	{"hami_host_gpu_utilization_ratio", onGPU0, "75"},
	{"hami_host_gpu_memory_controller_utilization_ratio", `device_index="0",device_type="NVIDIA-H100",device_uuid="GPU-0",zone="vGPU"`, "10"},
	{"hami_vgpu_memory_used_bytes", running1, "4.294967296e+09"},
	{"hami_vgpu_memory_limit_bytes", running1, "1.073741824e+10"},
	{"hami_container_device_memory_bytes", running1, "4.294967296e+09"},
	{"hami_container_device_utilization_ratio", running0, "25"},
	{"hami_container_last_kernel_elapsed_seconds", running0, "90"},
	{"hami_mig_device_info", `compute_instance_id="0",container="init",device_uuid="GPU-2",gpu_instance_id="7",mig_uuid="MIG-a",namespace="default",pod="infer",profile="1g.10gb",vdevice_index="0",zone="vGPU"`, "1"},
	{"hami_vgpu_memory_context_bytes", running0, "11"},
	{"hami_vgpu_memory_module_bytes", running0, "22"},
	{"hami_vgpu_memory_buffer_bytes", running0, "33"},
	{"HostGPUMemoryUsage", onGPU0Legacy, "3.221225472e+10"},
	{"HostCoreUtilization", onGPU0Legacy, "75"},
	{"vGPU_device_memory_usage_in_bytes", legacy0, "2.0401094656e+10"},
	{"vGPU_device_memory_limit_in_bytes", legacy0, "2.147483648e+10"},
	{"Device_memory_desc_of_container", `context="",ctrname="main",data="",deviceuuid="GPU-0",module="",offset="",podname="train",podnamespace="default",vdeviceid="0",zone="vGPU"`, "2.0401094656e+10"},
	{"Device_utilization_desc_of_container", legacy0, "25"},
	{"Device_last_kernel_of_container", legacy0, "90"},
	{"MigInfo", `ctrname="init",deviceuuid="GPU-2",instanceid="7",podname="infer",podnamespace="default",vdeviceid="0",zone="vGPU"`, "1"},
}

// hamiLeftOut are metrics of HAMi that a node's driver has nothing to tell about:
// quotas, and the build of a program that it is not.
var hamiLeftOut = []string{"hami_resource_quota_used", "hami_resource_quota_limit", "QuotaUsed", "hami_build_info"}

// aliasNode is newNode with the container that has the MIG device.
func aliasNode() *node {
	n := newNode()
	n.owners["id2"] = &owners.Owner{Namespace: "default", Pod: "infer", PodUID: "p2", Container: "init", GPUs: []owners.GPU{{UUID: "MIG-a", Claims: []string{"whole"}}}}
	n.measure(time.Second)
	return n
}

// TestAliases: every metric of HAMi has its name, labels and unit, there is none
// besides, and all of it is there only when it is asked for.
func TestAliases(t *testing.T) {
	t.Parallel()
	n := aliasNode()
	got, without := scrape(t, n.collector(t, true)), scrape(t, n.collector(t, false))
	var names []string
	for _, test := range hamiCases {
		names = append(names, test.name)
		series := test.name + "{" + sortLabels(test.labels) + "}"
		if found := lines(got, series); len(found) != 1 || found[0] != series+" "+test.value {
			t.Errorf("want %s %s, got %q of\n%s", series, test.value, found, strings.Join(lines(got, test.name+"{"), "\n"))
		}
		if strings.Contains(without, test.name) {
			t.Errorf("%s is there without aliases", test.name)
		}
	}
	var families []string
	for _, family := range hamiFamilies() {
		families = append(families, family.Name)
	}
	slices.Sort(names)
	slices.Sort(families)
	if diff := cmp.Diff(names, families); diff != "" {
		t.Error(diff)
	}
	for _, name := range hamiLeftOut {
		if slices.Contains(families, name) {
			t.Errorf("%s is told, but means something else here", name)
		}
	}
	// Our own are the same with aliases as without.
	if diff := cmp.Diff(lines(without, "topodra_"), lines(got, "topodra_")); diff != "" {
		t.Error(diff)
	}
}

// sortLabels orders the labels as a scrape does.
func sortLabels(labels string) string {
	return strings.Join(slices.Sorted(slices.Values(strings.Split(labels, ","))), ",")
}

// TestAliasesWithoutMeasurement: where the GPU driver tells nothing, as on a
// simulated machine, what is reported takes its place.
func TestAliasesWithoutMeasurement(t *testing.T) {
	t.Parallel()
	n := newNode()
	got := scrape(t, n.collector(t, true))
	for _, want := range []string{
		"hami_vgpu_memory_used_bytes{" + running0 + "} 110", "hami_vgpu_memory_used_bytes{" + running1 + "} 5",
		`hami_vgpu_memory_used_bytes{container="work",device_uuid="GPU-1",namespace="team",pod="batch",vdevice_index="0",zone="vGPU"} 0`,
	} {
		if !slices.Contains(lines(got, "hami_vgpu_memory_used_bytes{"), want) {
			t.Errorf("%s is missing in %q", want, lines(got, "hami_vgpu_memory_used_bytes{"))
		}
	}
	if found := lines(got, "hami_host_gpu"); found != nil {
		t.Errorf("got %q", found)
	}
}

// TestAliasesDoNotCollide: HAMi has fewer labels than there can be things, and
// two series with equal labels would lose the whole scrape.
func TestAliasesDoNotCollide(t *testing.T) {
	t.Parallel()
	n := newNode()
	for i, uuid := range []string{"MIG-b", "MIG-c"} {
		n.devices = append(n.devices, Device{UUID: uuid, Parent: "GPU-2", Name: uuid, Index: 2, Type: "mig", Profile: "1g.10gb", GPUInstance: 7, ComputeInstance: i + 1})
	}
	parts := &checkpoint.Claim{Namespace: "d", Name: "parts", Consumers: []checkpoint.Consumer{{Name: "p", UID: "p"}}}
	owner := &owners.Owner{Namespace: "d", Pod: "p", Container: "c"}
	for i, uuid := range []string{"MIG-b", "MIG-c"} {
		parts.Devices = append(parts.Devices, checkpoint.Device{Request: fmt.Sprint(i), UUID: uuid, ParentUUID: "GPU-2", Type: "mig"})
		owner.GPUs = append(owner.GPUs, owners.GPU{UUID: uuid, Claims: []string{"parts"}})
	}
	// One GPU by two claims, and a claim of the same name elsewhere.
	for _, name := range []string{"one", "two"} {
		claim := &checkpoint.Claim{Namespace: "d", Name: name, Consumers: parts.Consumers, Devices: []checkpoint.Device{share("a", "GPU-0", 1<<10, 5)}}
		n.document.Claims[types.UID(name)] = claim
		n.document.Claims[types.UID(name+"2")] = claim
	}
	n.document.Claims["parts"] = parts
	owner.GPUs = append(owner.GPUs, owners.GPU{UUID: "GPU-0", Claims: []string{"one", "two"}, MemoryLimitMiB: 2 << 10})
	other := *owner
	other.Container = "b"
	n.owners["x"], n.owners["y"], n.owners["z"] = owner, owner, &other
	got := scrape(t, n.collector(t, true))
	const limit = `hami_vgpu_memory_limit_bytes{container="c",device_uuid="GPU-0",namespace="d",pod="p",vdevice_index="0",zone="vGPU"} 4.294967296e+09`
	if !slices.Contains(lines(got, "hami_vgpu_memory_limit_bytes{"), limit) {
		t.Errorf("want %s, got %q", limit, lines(got, "hami_vgpu_memory_limit_bytes{"))
	}
}

// TestNumber: containers are numbered as their pod says, if that is known of all.
func TestNumber(t *testing.T) {
	t.Parallel()
	var rows []*hamiRow
	for _, c := range []container{{"d", "p", "a"}, {"d", "p", "a"}, {"d", "p", "b"}, {"d", "q", "a"}, {"d", "q", "b"}, {"e", "q", "x"}} {
		rows = append(rows, &hamiRow{container: c})
	}
	number(rows, map[container]int{{"d", "p", "a"}: 1, {"d", "p", "b"}: 0, {"d", "q", "b"}: 5, {"e", "q", "x"}: 3})
	var got [][2]int
	for _, row := range rows {
		got = append(got, [2]int{row.containerIndex, row.deviceIndex})
	}
	if diff := cmp.Diff([][2]int{{1, 0}, {1, 1}, {0, 0}, {0, 0}, {1, 0}, {3, 0}}, got); diff != "" {
		t.Error(diff)
	}
}

// TestAliasLabels: labels are those of HAMi by name, whatever their values are.
func TestAliasLabels(t *testing.T) {
	t.Parallel()
	byName := map[string]*Family{}
	for _, family := range hamiFamilies() {
		byName[family.Name] = family
	}
	for _, test := range hamiCases {
		labels := map[string]bool{}
		for pair := range strings.SplitSeq(test.labels, ",") {
			name, _, _ := strings.Cut(pair, "=")
			labels[name] = true
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(labels)), byName[test.name].Labels); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}
