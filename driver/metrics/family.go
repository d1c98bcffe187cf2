// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Family is everything that has one name.
type Family struct {
	// Name, Help and Labels as a scrape shows them; Labels in alphabetical order,
	// constant ones included.
	Name, Help string
	Labels     []string

	// Counter says that it only grows; all others are gauges.
	Counter bool

	desc  *prometheus.Desc
	order []string // of label values
}

// newFamily returns a family whose values have the labels in the given order.
func newFamily(name, help string, constant prometheus.Labels, labels ...string) *Family {
	all := slices.Clone(labels)
	for label := range constant {
		all = append(all, label)
	}
	slices.Sort(all)
	return &Family{Name: name, Help: help, Labels: all, order: labels, desc: prometheus.NewDesc(name, help, labels, constant)}
}

// gauge and counter return families of our own.
func gauge(name, help string, labels ...string) *Family { return newFamily(name, help, nil, labels...) }
func counter(name, help string, labels ...string) *Family {
	family := newFamily(name, help, nil, labels...)
	family.Counter = true
	return family
}

// sink takes metrics.
type sink chan<- prometheus.Metric

// send sends one value. Label values come from the API server, the GPU driver and
// this program; what is no text is made one rather than to lose the whole scrape.
func (s sink) send(family *Family, value float64, labels ...string) {
	for i, label := range labels {
		labels[i] = strings.ToValidUTF8(label, "�")
	}
	kind := prometheus.GaugeValue
	if family.Counter {
		kind = prometheus.CounterValue
	}
	metric, err := prometheus.NewConstMetric(family.desc, kind, value, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(family.desc, err)
	}
	s <- metric
}

// Labels that many families share.
const (
	labelDevice    = "device_uuid"
	labelNamespace = "namespace"
	labelPod       = "pod"
	labelContainer = "container"
	labelClaim     = "claim"
)

// ofContainer are the labels of series of containers, in the order of key.labels.
var ofContainer = []string{labelNamespace, labelPod, labelContainer, labelClaim, labelDevice}

// Families of GPUs.
var (
	gpuInfo = gauge("topodra_gpu_info",
		"Always 1. The labels say what the published GPU or MIG device is: its name in ResourceSlices, position by PCI address, and the best kind of link that it has to another GPU of the node.",
		labelDevice, "node", "device", "index", "type", "parent_uuid", "product", "pci_bus_id", "link")
	gpuMemoryTotal = gauge("topodra_gpu_memory_total_bytes",
		"Memory of the device.", labelDevice)
	gpuMemoryReserved = gauge("topodra_gpu_memory_reserved_bytes",
		"Memory of the device that is not offered to claims.", labelDevice)
	gpuMemoryAllocated = gauge("topodra_gpu_memory_allocated_bytes",
		"Memory of the device that prepared claims have, by what they were allocated.", labelDevice)
	gpuComputeAllocated = gauge("topodra_gpu_compute_allocated_ratio",
		"Part of the device's compute that prepared claims have booked. Best-effort shares book none.", labelDevice)
	gpuShares = gauge("topodra_gpu_shares",
		"Allocation results of prepared claims that are on the device, without those for admin access.", labelDevice)
	gpuMemoryUsed = gauge("topodra_gpu_memory_used_bytes",
		"Memory of the device in use by anybody, by NVML.", labelDevice)
	gpuBusy = gauge("topodra_gpu_utilization_ratio",
		"Part of the time in which kernels ran on the device, by NVML.", labelDevice)
	gpuMemoryBusy = gauge("topodra_gpu_memory_controller_utilization_ratio",
		"Part of the time in which the device's memory was read or written, by NVML.", labelDevice)
	gpuHealth = gauge("topodra_gpu_health_state",
		"1 for the state that the published device is in (healthy, unhealthy, unknown), 0 for the others.", labelDevice, "state")
	gpuConditions = gauge("topodra_gpu_conditions",
		"Conditions that hold for the device now, by kind.", labelDevice, "kind")
)

// Families of containers: what was promised.
var (
	containerMemoryAllocated = gauge("topodra_container_gpu_memory_allocated_bytes",
		"Memory of the device that the claim books for the container; 0 for admin access. The container is empty while it is not known which one uses the claim.", ofContainer...)
	containerMemoryLimit = gauge("topodra_container_gpu_memory_limit_bytes",
		"Memory of the device that the container may use by this claim. Absent without limit.", ofContainer...)
	containerComputeAllocated = gauge("topodra_container_gpu_compute_allocated_ratio",
		"Part of the device's compute that the claim books for the container.", ofContainer...)
	containerComputeLimit = gauge("topodra_container_gpu_compute_limit_ratio",
		"Part of the device's compute that the container may use by this claim. Absent without limit.", ofContainer...)
)

// Families of containers: what the host measures.
var (
	containerMemoryUsed = gauge("topodra_container_gpu_memory_used_bytes",
		"Memory of the device that processes of the container use, by NVML. If it has the device by several claims, they are all in the label, joined by commas.", ofContainer...)
	containerBusy = gauge("topodra_container_gpu_utilization_ratio",
		"Part of the device's compute that processes of the container use, by NVML.", ofContainer...)
)

// Families of containers: what HAMi-core says inside the container, which could
// have been changed there.
var (
	reportedMemoryUsed = gauge("topodra_container_gpu_reported_memory_used_bytes",
		"Memory of the device that the container's processes use, as HAMi-core reports it from inside. The container can change that.", ofContainer...)
	reportedMemoryLimit = gauge("topodra_container_gpu_reported_memory_limit_bytes",
		"Memory limit that HAMi-core goes by inside the container; 0 is none. If it differs from the limit that the container was given, somebody has changed it.", ofContainer...)
	reportedProcesses = gauge("topodra_container_gpu_reported_processes",
		"Processes of the container that use memory of the device, as HAMi-core reports it from inside.", ofContainer...)
	reportedLastKernel = gauge("topodra_container_gpu_reported_last_kernel_timestamp_seconds",
		"When a process of the container last started a kernel on any of its devices, as HAMi-core reports it from inside. Absent when none ever did.", ofContainer...)
)

// Families about the driver's own work.
var (
	preparedClaims = gauge("topodra_driver_prepared_claims",
		"Claims that are prepared on the node, or being prepared.")
	usageAge = gauge("topodra_driver_usage_age_seconds",
		"Age of the last sample of what is used. Absent before the first one, and where there is nothing to ask.")
	usageFailures = counter("topodra_driver_usage_failures_total",
		"Samples of usage that failed, at least in part.")
	regionsRead = counter("topodra_driver_regions_read_total",
		"Times that the region of a container was read.")
	regionsSkipped = counter("topodra_driver_regions_skipped_total",
		"Times that the region of a container was skipped, by reason: kind (no regular file), size, magic, version, counts, values, busy, torn (only a part), read.", "reason")
	scrapeFailures = counter("topodra_driver_scrape_failures_total",
		"Times that something could not be read for a scrape, by what it was: checkpoint or containers.", "source")
)

// own lists the families that every Collector has.
func own() []*Family {
	return []*Family{
		gpuInfo, gpuMemoryTotal, gpuMemoryReserved, gpuMemoryAllocated, gpuComputeAllocated, gpuShares,
		gpuMemoryUsed, gpuBusy, gpuMemoryBusy, gpuHealth, gpuConditions,
		containerMemoryAllocated, containerMemoryLimit, containerComputeAllocated, containerComputeLimit,
		containerMemoryUsed, containerBusy,
		reportedMemoryUsed, reportedMemoryLimit, reportedProcesses, reportedLastKernel,
		preparedClaims, usageAge, usageFailures, regionsRead, regionsSkipped, scrapeFailures,
	}
}

// Families lists everything that a Collector can tell, our own names first; the
// aliases are there only when they are asked for.
func Families(aliases bool) []*Family {
	families := own()
	if aliases {
		families = append(families, hamiFamilies()...)
	}
	return families
}
