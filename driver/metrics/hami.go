// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/topodra/topodra/api"
)

// HAMi has two sets of names for most of what it tells, and dashboards use both.
// In its scheduler's metrics and in its monitor's, ratios are mostly percentages.

// zone is the constant label of all of HAMi's metrics.
var zone = prometheus.Labels{"zone": "vGPU"}

// alias is a pair of names for the same value, with their labels in one order.
type alias struct{ modern, legacy *Family }

// newAlias returns the pair; a name that is empty does not exist.
func newAlias(help, modern string, modernLabels []string, legacy string, legacyLabels []string) alias {
	var out alias
	if modern != "" {
		out.modern = newFamily(modern, "HAMi's name: "+help, zone, modernLabels...)
	}
	if legacy != "" {
		out.legacy = newFamily(legacy, "HAMi's former name: "+help, zone, legacyLabels...)
	}
	return out
}

// send sends the value under both names.
func (a alias) send(out sink, value float64, labels ...string) {
	for _, family := range []*Family{a.modern, a.legacy} {
		if family != nil {
			out.send(family, value, slices.Clone(labels)...)
		}
	}
}

// Labels of HAMi's, in the order in which values are sent.
var (
	hamiDevice        = []string{"node", "device_index", "device_uuid", "device_type"}
	hamiLegacyDevice  = []string{"nodeid", "deviceidx", "deviceuuid", "devicetype"}
	hamiBooked        = []string{"namespace", "node", "pod", "container_index", "device_uuid"}
	hamiLegacyBooked  = []string{"podnamespace", "nodename", "podname", "containeridx", "deviceuuid"}
	hamiContainer     = []string{"namespace", "pod", "container", "vdevice_index", "device_uuid"}
	hamiLegacyRunning = []string{"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"}
)

// with returns the labels and more.
func with(labels []string, more ...string) []string { return slices.Concat(labels, more) }

// What HAMi's scheduler tells about devices.
var (
	hamiMemoryLimit = newAlias("memory of the device that is offered, in bytes.",
		"hami_gpu_memory_limit_bytes", hamiDevice, "GPUDeviceMemoryLimit", hamiLegacyDevice)
	hamiCoreLimit = newAlias("compute of the device that is offered, in percent.",
		"hami_gpu_core_limit_ratio", hamiDevice, "GPUDeviceCoreLimit", hamiLegacyDevice)
	hamiMemoryAllocated = newAlias("memory of the device that is allocated, in bytes.",
		"hami_gpu_memory_allocated_bytes", with(hamiDevice, "device_cores"), "GPUDeviceMemoryAllocated", with(hamiLegacyDevice, "devicecores"))
	hamiCoreAllocated = newAlias("compute of the device that is allocated, in percent.",
		"hami_gpu_core_allocated_ratio", hamiDevice, "GPUDeviceCoreAllocated", hamiLegacyDevice)
	hamiShared = newAlias("shares of the device that are allocated.",
		"hami_gpu_shared_count", hamiDevice, "GPUDeviceSharedNum", hamiLegacyDevice)
	hamiOverview = newAlias("memory of the device that is allocated, in bytes; what is offered is in the labels, memory in MiB.",
		"hami_node_gpu_overview", with(hamiDevice, "device_cores", "device_memory_limit"), "nodeGPUOverview", with(hamiLegacyDevice, "devicecores", "devicememorylimit"))
	hamiMemoryRatio = newAlias("part of the device's memory that is allocated, 0 to 1.",
		"hami_node_gpu_memory_allocated_ratio", hamiDevice[:3], "nodeGPUMemoryPercentage", hamiLegacyDevice[:3])
	hamiMIGInstance = newAlias("always 1, for each MIG device that is allocated.",
		"hami_node_gpu_mig_instance_info", with(hamiDevice[:3], "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"), "", nil)
	hamiMIGInstanceLegacy = newAlias("always 1, for each MIG device that is allocated.",
		"", nil, "nodeGPUMigInstance", with(hamiLegacyDevice[:3], "migname"))
	hamiBookedMemory = newAlias("memory of the device that the container was allocated, in bytes.",
		"hami_vgpu_memory_allocated_bytes", hamiBooked, "vGPUMemoryAllocated", hamiLegacyBooked)
	hamiBookedCores = newAlias("compute of the device that the container was allocated, in percent.",
		"hami_vgpu_core_allocated_ratio", hamiBooked, "vGPUCoreAllocated", hamiLegacyBooked)
)

// What HAMi's monitor tells.
var (
	hamiHostMemory = newAlias("memory of the device in use, in bytes.",
		"hami_host_gpu_memory_used_bytes", hamiDevice, "HostGPUMemoryUsage", hamiLegacyDevice)
	hamiHostBusy = newAlias("part of the time in which kernels ran on the device, in percent.",
		"hami_host_gpu_utilization_ratio", hamiDevice, "HostCoreUtilization", hamiLegacyDevice)
	hamiHostMemoryBusy = newAlias("part of the time in which the device's memory was read or written, in percent.",
		"hami_host_gpu_memory_controller_utilization_ratio", hamiDevice[1:], "", nil)
	hamiUsed = newAlias("memory of the device that the container uses, in bytes.",
		"hami_vgpu_memory_used_bytes", hamiContainer, "vGPU_device_memory_usage_in_bytes", hamiLegacyRunning)
	hamiLimit = newAlias("memory of the device that the container may use, in bytes.",
		"hami_vgpu_memory_limit_bytes", hamiContainer, "vGPU_device_memory_limit_in_bytes", hamiLegacyRunning)
	hamiUsedAgain = newAlias("memory of the device that the container uses, in bytes.",
		"hami_container_device_memory_bytes", hamiContainer, "", nil)
	hamiUsedAgainLegacy = newAlias("memory of the device that the container uses, in bytes. Labels that would hold numbers are empty.",
		"", nil, "Device_memory_desc_of_container", with(hamiLegacyRunning, "context", "module", "data", "offset"))
	hamiBusy = newAlias("part of the device's compute that the container uses, in percent.",
		"hami_container_device_utilization_ratio", hamiContainer, "Device_utilization_desc_of_container", hamiLegacyRunning)
	hamiLastKernel = newAlias("time since the container last started a kernel, in seconds.",
		"hami_container_last_kernel_elapsed_seconds", hamiContainer, "Device_last_kernel_of_container", hamiLegacyRunning)
	hamiContext = newAlias("memory of the device that CUDA itself uses for the container, in bytes, as HAMi-core reports it.",
		"hami_vgpu_memory_context_bytes", hamiContainer, "", nil)
	hamiModule = newAlias("memory of the device that the container's code uses, in bytes, as HAMi-core reports it.",
		"hami_vgpu_memory_module_bytes", hamiContainer, "", nil)
	hamiBuffer = newAlias("memory of the device that the container asked for, in bytes, as HAMi-core reports it.",
		"hami_vgpu_memory_buffer_bytes", hamiContainer, "", nil)
	hamiMIGInfo = newAlias("always 1, for each MIG device of a container.",
		"hami_mig_device_info", with(hamiContainer, "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"), "", nil)
	hamiMIGInfoLegacy = newAlias("always 1, for each MIG device of a container.",
		"", nil, "MigInfo", with(hamiLegacyRunning, "instanceid"))
)

// hamiFamilies lists all aliases.
func hamiFamilies() []*Family {
	var out []*Family
	for _, pair := range []alias{
		hamiMemoryLimit, hamiCoreLimit, hamiMemoryAllocated, hamiCoreAllocated, hamiShared, hamiOverview, hamiMemoryRatio, hamiMIGInstance, hamiMIGInstanceLegacy,
		hamiBookedMemory, hamiBookedCores, hamiHostMemory, hamiHostBusy, hamiHostMemoryBusy, hamiUsed, hamiLimit, hamiUsedAgain, hamiUsedAgainLegacy, hamiBusy, hamiLastKernel,
		hamiContext, hamiModule, hamiBuffer, hamiMIGInfo, hamiMIGInfoLegacy,
	} {
		for _, family := range []*Family{pair.modern, pair.legacy} {
			if family != nil {
				out = append(out, family)
			}
		}
	}
	return out
}

// hamiCores is what HAMi offers of every device.
const hamiCores = "100"

// sendAliases tells everything by HAMi's names.
func sendAliases(out sink, node string, what *seen, now time.Time) {
	devices := map[string]*Device{}
	named := map[[2]string]bool{}
	for i := range what.devices {
		one := &what.devices[i]
		devices[one.UUID] = one
		of := what.promises.devices[one.UUID]
		if of == nil {
			of = &amounts{}
		}
		if one.Type == api.DeviceTypeMIG {
			sendMIGAliases(out, node, one, of, named)
		} else {
			sendDeviceAliases(out, node, one, of)
		}
	}
	for uuid, gpu := range what.uses.devices {
		one := devices[uuid]
		if one == nil || one.Parent != "" {
			continue
		}
		labels := hamiDeviceLabels(node, one)
		if gpu.MemoryUsedBytes != nil {
			hamiHostMemory.send(out, float64(*gpu.MemoryUsedBytes), labels...)
		}
		if gpu.BusyPercent != nil {
			hamiHostBusy.send(out, float64(*gpu.BusyPercent), labels...)
		}
		if gpu.MemoryBusyPercent != nil {
			hamiHostMemoryBusy.send(out, float64(*gpu.MemoryBusyPercent), labels[1:]...)
		}
	}
	for _, row := range hamiRows(what, devices) {
		row.send(out, node, now)
	}
}

// hamiDeviceLabels are the values of hamiDevice.
func hamiDeviceLabels(node string, one *Device) []string {
	uuid := one.UUID
	if one.Parent != "" {
		uuid = one.Parent
	}
	return []string{node, strconv.Itoa(one.Index), uuid, "NVIDIA-" + one.Product}
}

// sendDeviceAliases tells what of a GPU is allocated.
func sendDeviceAliases(out sink, node string, one *Device, of *amounts) {
	labels := hamiDeviceLabels(node, one)
	hamiMemoryLimit.send(out, float64(one.OfferedBytes), labels...)
	hamiCoreLimit.send(out, 100, labels...)
	hamiMemoryAllocated.send(out, float64(of.memoryBytes), with(labels, hamiCores)...)
	hamiCoreAllocated.send(out, float64(of.computePercent), labels...)
	hamiShared.send(out, float64(of.shares), labels...)
	hamiOverview.send(out, float64(of.memoryBytes), with(labels, hamiCores, strconv.FormatInt(one.OfferedBytes>>20, 10))...)
	if one.OfferedBytes > 0 {
		hamiMemoryRatio.send(out, float64(of.memoryBytes)/float64(one.OfferedBytes), labels[:3]...)
	}
}

// sendMIGAliases tells which MIG devices are allocated. Several parts of one GPU
// instance have the same former name, which named keeps from being told twice.
func sendMIGAliases(out sink, node string, one *Device, of *amounts, named map[[2]string]bool) {
	if of.shares == 0 {
		return
	}
	labels := hamiDeviceLabels(node, one)[:3]
	gpuInstance, computeInstance := strconv.Itoa(one.GPUInstance), strconv.Itoa(one.ComputeInstance)
	hamiMIGInstance.send(out, 1, with(labels, one.UUID, one.Profile, gpuInstance, computeInstance, "", "")...)
	name := one.Profile + "-" + gpuInstance
	if at := [2]string{one.Parent, name}; !named[at] {
		named[at] = true
		hamiMIGInstanceLegacy.send(out, 1, with(labels, name)...)
	}
}

// hamiRow is what HAMi tells about one device of a container, over all its claims.
type hamiRow struct {
	container
	device *Device

	// containerIndex and deviceIndex count containers in the pod, and devices in
	// the container by PCI address.
	containerIndex, deviceIndex int

	promised *amounts
	used     *use    // nil when it is not measured
	reported *report // nil when nothing is reported
}

// hamiRows puts together what is known, in order of container and device. Claims
// for devices that are not published any more are left out. Pure.
func hamiRows(what *seen, devices map[string]*Device) []*hamiRow {
	type at struct {
		container
		device string
	}
	rows := map[at]*hamiRow{}
	row := func(k key) *hamiRow {
		device := devices[k.device]
		if device == nil || k.container == "" {
			return nil
		}
		here := at{container{k.namespace, k.pod, k.container}, k.device}
		if rows[here] == nil {
			rows[here] = &hamiRow{container: here.container, device: device, promised: &amounts{}}
		}
		return rows[here]
	}
	for _, k := range sortedKeys(what.promises.containers) {
		if r := row(k); r != nil {
			r.promised.merge(what.promises.containers[k])
		}
	}
	for _, k := range sortedKeys(what.uses.containers) {
		if r := row(k); r != nil {
			r.used = what.uses.containers[k]
		}
	}
	for _, k := range sortedKeys(what.reports) {
		if r := row(k); r != nil {
			r.reported = what.reports[k]
		}
	}
	out := slices.SortedFunc(maps.Values(rows), func(a, b *hamiRow) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.name, b.name),
			cmp.Compare(a.device.Index, b.device.Index), cmp.Compare(a.device.UUID, b.device.UUID))
	})
	number(out, what.promises.index)
	return out
}

// merge adds what another claim promises of the same device.
func (a *amounts) merge(b *amounts) {
	first := a.shares == 0 && a.memoryBytes == 0
	a.memoryBytes += b.memoryBytes
	a.computePercent += b.computePercent
	a.shares += b.shares
	switch {
	case first:
		a.memoryLimitBytes = b.memoryLimitBytes
	case a.memoryLimitBytes == 0 || b.memoryLimitBytes == 0:
		a.memoryLimitBytes = 0
	default:
		a.memoryLimitBytes += b.memoryLimitBytes
	}
}

// number counts devices in their containers, and containers in their pods: as
// index says if it knows all of a pod, else in order of name. Rows are in order.
func number(rows []*hamiRow, index map[container]int) {
	samePod := func(a, b *hamiRow) bool { return a.namespace == b.namespace && a.pod == b.pod }
	for start := 0; start < len(rows); {
		end, known := start, true
		for ; end < len(rows) && samePod(rows[start], rows[end]); end++ {
			_, ok := index[rows[end].container]
			known = known && ok
		}
		for i := start; i < end; i++ {
			row := rows[i]
			switch {
			case i > start && rows[i-1].container == row.container:
				row.containerIndex, row.deviceIndex = rows[i-1].containerIndex, rows[i-1].deviceIndex+1
			case known:
				row.containerIndex = index[row.container]
			case i > start:
				row.containerIndex = rows[i-1].containerIndex + 1
			}
		}
		start = end
	}
}

// send tells about the row.
func (r *hamiRow) send(out sink, node string, now time.Time) {
	uuid, deviceIndex := r.device.UUID, strconv.Itoa(r.deviceIndex)
	if r.device.Parent != "" {
		uuid = r.device.Parent
	}
	booked := []string{r.namespace, node, r.pod, strconv.Itoa(r.containerIndex), uuid}
	labels := []string{r.namespace, r.pod, r.name, deviceIndex, uuid}
	if r.device.Parent != "" {
		gpuInstance := strconv.Itoa(r.device.GPUInstance)
		hamiMIGInfo.send(out, 1, with(labels, r.device.UUID, r.device.Profile, gpuInstance, strconv.Itoa(r.device.ComputeInstance))...)
		hamiMIGInfoLegacy.send(out, 1, with(labels, gpuInstance)...)
		return // HAMi tells nothing else of them, and several would have equal labels.
	}
	hamiBookedMemory.send(out, float64(r.promised.memoryBytes), booked...)
	hamiBookedCores.send(out, float64(r.promised.computePercent), booked...)
	limit := r.promised.memoryLimitBytes
	if limit == 0 {
		limit = r.promised.memoryBytes
	}
	hamiLimit.send(out, float64(limit), labels...)
	if used, ok := r.usedBytes(); ok {
		hamiUsed.send(out, float64(used), labels...)
		hamiUsedAgain.send(out, float64(used), labels...)
		hamiUsedAgainLegacy.send(out, float64(used), with(labels, "", "", "", "")...)
	}
	if r.used != nil && r.used.tellsBusy {
		hamiBusy.send(out, float64(r.used.busyPercent), labels...)
	}
	if r.reported == nil {
		return
	}
	hamiContext.send(out, float64(r.reported.memory.Context), labels...)
	hamiModule.send(out, float64(r.reported.memory.Module), labels...)
	hamiBuffer.send(out, float64(r.reported.memory.Buffer), labels...)
	if !r.reported.lastKernel.IsZero() {
		hamiLastKernel.send(out, max(0, now.Sub(r.reported.lastKernel).Seconds()), labels...)
	}
}

// usedBytes prefers what was measured to what is reported.
func (r *hamiRow) usedBytes() (uint64, bool) {
	switch {
	case r.used != nil:
		return r.used.memoryBytes, true
	case r.reported != nil:
		return r.reported.memory.Total, true
	default:
		return 0, false
	}
}
