// SPDX-License-Identifier: Apache-2.0

package api

import resourceapi "k8s.io/api/resource/v1"

// Names that users write in manifests.
const (
	// DriverName is the name of the DRA driver. It is short because the
	// kubelet derives socket paths from it, which end at 108 bytes.
	DriverName = "gpu.topodra.dev"

	// DeviceClassGPU selects whole or shared GPUs.
	DeviceClassGPU = "gpu.topodra.dev"

	// DeviceClassMIG selects MIG devices.
	DeviceClassMIG = "mig.topodra.dev"

	// SchedulerName is the schedulerName of pods that our scheduler places.
	SchedulerName = "topodra-scheduler"

	// PluginTopologyDynamicResources is the scheduler plugin that takes the
	// place of the in-tree DynamicResources plugin.
	PluginTopologyDynamicResources = "TopologyDynamicResources"

	// PluginTopologyScore is the scheduler plugin that ranks nodes.
	PluginTopologyScore = "TopologyScore"

	// AnnotationTopology carries the topology policy of a claim whose driver
	// does not know GPUClaimConfig. See ParseTopologyAnnotation.
	AnnotationTopology = "gpu.topodra.dev/topology"
)

// Standard device attributes, shared with other drivers. The values are those
// of k8s.io/dynamic-resource-allocation/deviceattribute.
const (
	// AttrPCIBusID is the PCI address, such as "0000:07:00.0" (string).
	AttrPCIBusID resourceapi.QualifiedName = "resource.kubernetes.io/pciBusID"

	// AttrPCIeRoot is the PCIe root complex, such as "pci0000:00" (string).
	AttrPCIeRoot resourceapi.QualifiedName = "resource.kubernetes.io/pcieRoot"

	// AttrNUMANode is the NUMA node of the PCIe slot (int).
	AttrNUMANode resourceapi.QualifiedName = "resource.kubernetes.io/numaNode"
)

// Attributes of our own devices. A name without a domain belongs to the domain
// of the driver that publishes it.
const (
	// AttrType is DeviceTypeGPU or DeviceTypeMIG (string).
	AttrType resourceapi.QualifiedName = "type"

	// AttrUUID is the UUID that the vendor's tools print (string).
	AttrUUID resourceapi.QualifiedName = "uuid"

	// AttrIndex is the position among the GPUs of the node in order of PCI
	// address, from 0 (int). For a MIG device it is its parent's.
	AttrIndex resourceapi.QualifiedName = "index"

	// AttrMinor is the number of the device file /dev/nvidia<minor> (int).
	AttrMinor resourceapi.QualifiedName = "minor"

	// AttrModuleID is the GPU's number on the baseboard, by which a fabric
	// manager knows it (int).
	AttrModuleID resourceapi.QualifiedName = "moduleID"

	// AttrProductName is the marketing name (string).
	AttrProductName resourceapi.QualifiedName = "productName"

	// AttrBrand is the product line (string).
	AttrBrand resourceapi.QualifiedName = "brand"

	// AttrArchitecture is the chip generation (string).
	AttrArchitecture resourceapi.QualifiedName = "architecture"

	// AttrCUDAComputeCapability is the compute capability (version).
	AttrCUDAComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"

	// AttrDriverVersion is the version of the kernel driver (version).
	AttrDriverVersion resourceapi.QualifiedName = "driverVersion"

	// AttrCUDADriverVersion is the newest CUDA that the driver supports (version).
	AttrCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"

	// AttrSimulated is true on devices that exist only in a recorded machine
	// (bool). It is absent on real devices.
	AttrSimulated resourceapi.QualifiedName = "simulated"

	// AttrParentUUID is the UUID of the GPU that a MIG device is part of (string).
	AttrParentUUID resourceapi.QualifiedName = "parentUUID"

	// AttrProfile is the MIG profile, such as "1g.10gb" (string).
	AttrProfile resourceapi.QualifiedName = "profile"

	// AttrGPUSlices is how many of the GPU's compute slices the GPU instance of a
	// MIG device has (int).
	AttrGPUSlices resourceapi.QualifiedName = "gpuSlices"

	// AttrComputeSlices is how many of these the MIG device itself has (int).
	AttrComputeSlices resourceapi.QualifiedName = "computeSlices"

	// AttrMemorySlices is how many of the GPU's memory slices the GPU instance of
	// a MIG device has (int).
	AttrMemorySlices resourceapi.QualifiedName = "memorySlices"
)

// Topology attributes. Their exact format is the business of package
// api/slicecodec.
const (
	// AttrNVLinks has one character per GPU of the node (string).
	AttrNVLinks resourceapi.QualifiedName = "nvlinks"

	// AttrPCIe has one character per GPU of the node (string).
	AttrPCIe resourceapi.QualifiedName = "pcie"

	// AttrNVLinkMBps is the bandwidth of one NVLink in one direction, in
	// megabytes (10^6 bytes) per second (int).
	AttrNVLinkMBps resourceapi.QualifiedName = "nvlinkMBps"

	// AttrNVLinkDomain is equal on GPUs of a node that NVLinks connect,
	// directly or through others (string).
	AttrNVLinkDomain resourceapi.QualifiedName = "nvlinkDomain"

	// AttrNVLinkSwitched says whether the links go into a switch (bool).
	AttrNVLinkSwitched resourceapi.QualifiedName = "nvlinkSwitched"

	// AttrFabricClique is "<cluster UUID>.<clique ID>" of a fabric that spans
	// nodes (string).
	AttrFabricClique resourceapi.QualifiedName = "fabricClique"

	// AttrPCIeGen is the PCIe generation of the link to the GPU (int).
	AttrPCIeGen resourceapi.QualifiedName = "pcieGen"

	// AttrNearestNIC is the network card that is closest by PCIe (string).
	AttrNearestNIC resourceapi.QualifiedName = "nearestNIC"
)

// Values of AttrType.
const (
	DeviceTypeGPU = "gpu"
	DeviceTypeMIG = "mig"
)

// Capacities of our own devices. Requests must use exactly these names, without
// a domain: the allocator compares capacity names as text.
const (
	// CapacityMemory is GPU memory in bytes.
	CapacityMemory resourceapi.QualifiedName = "memory"

	// CapacityCores is compute in percent of the GPU's multiprocessors.
	CapacityCores resourceapi.QualifiedName = "cores"

	// CapacitySlots is how many claims may share the GPU, one slot each.
	CapacitySlots resourceapi.QualifiedName = "slots"
)
