// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
)

// migSymbols are needed to list MIG devices.
var migSymbols = []string{
	"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

// describeMIG reads whether the GPU is in MIG mode and which MIG devices it has.
// None is made or removed.
func (g *foundGPU) describeMIG() {
	mode, ok := optional(g.reader, "nvmlDeviceGetMigMode", "GetMigMode", func() (int, nvml.Return) {
		current, _, ret := g.handle.GetMigMode()
		return current, ret
	})
	if !ok || mode != nvml.DEVICE_MIG_ENABLE {
		return
	}
	g.gpu.MIGEnabled = true
	for _, symbol := range migSymbols {
		if !g.reader.has(symbol) {
			g.reader.warn("it is in MIG mode, but the driver is too old to list its MIG devices (no %s): nothing of it is published", symbol)
			return
		}
	}
	count, ok := optional(g.reader, "", "GetMaxMigDeviceCount", g.handle.GetMaxMigDeviceCount)
	if !ok {
		return
	}
	var found []foundMIG
	for i := range count {
		if mig, ok := g.readMIG(i); ok {
			found = append(found, mig)
		}
	}
	slices.SortFunc(found, func(a, b foundMIG) int {
		return cmp.Or(cmp.Compare(a.gpuInstance, b.gpuInstance), cmp.Compare(a.computeInstance, b.computeInstance))
	})
	for _, mig := range found {
		g.gpu.MIGDevices = append(g.gpu.MIGDevices, mig.device)
	}
}

// foundMIG is a MIG device with what it is sorted by.
type foundMIG struct {
	gpuInstance, computeInstance int
	device                       device.MIGDevice
}

// readMIG reads the MIG device in one of the GPU's places, which may be empty.
func (g *foundGPU) readMIG(place int) (foundMIG, bool) {
	r := g.reader
	handle, ok := optional(r, "", fmt.Sprintf("GetMigDeviceHandleByIndex(%d)", place), func() (nvml.Device, nvml.Return) {
		handle, ret := g.handle.GetMigDeviceHandleByIndex(place)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			ret = nvml.ERROR_NOT_SUPPORTED // An empty place is nothing to warn of.
		}
		return handle, ret
	})
	if !ok {
		return foundMIG{}, false
	}
	what := fmt.Sprintf("of MIG device %d", place)
	uuid, haveUUID := optional(r, "", "GetUUID "+what, handle.GetUUID)
	gi, haveGI := optional(r, "", "GetGpuInstanceId "+what, handle.GetGpuInstanceId)
	ci, haveCI := optional(r, "", "GetComputeInstanceId "+what, handle.GetComputeInstanceId)
	if !haveUUID || !haveGI || !haveCI {
		return foundMIG{}, false
	}
	mig := foundMIG{gpuInstance: gi, computeInstance: ci, device: device.MIGDevice{UUID: device.UUID(uuid), GPUInstance: gi, ComputeInstance: ci}}
	attributes, haveAttributes := optional(r, "nvmlDeviceGetAttributes_v2", "GetAttributes "+what, handle.GetAttributes)
	if haveAttributes {
		mig.device.GPUSlices, mig.device.ComputeSlices = int(attributes.GpuInstanceSliceCount), int(attributes.ComputeInstanceSliceCount)
	}
	mig.device.MemorySlices = g.memorySlices(gi)
	name, _ := optional(r, "", "GetName "+what, handle.GetName)
	switch _, profile, found := strings.Cut(name, " MIG "); {
	case found:
		mig.device.Profile = profile
	case haveAttributes:
		mig.device.Profile = profileOf(&attributes)
	}
	if memory, ok := optional(r, "", "GetMemoryInfo "+what, handle.GetMemoryInfo); ok {
		mig.device.Memory = device.Bytes(memory.Total)
	} else if haveAttributes {
		mig.device.Memory = device.Bytes(attributes.MemorySizeMB) * device.MiB
	}
	return mig, true
}

// memorySlices returns how many of the GPU's memory slices a GPU instance has, by
// its place; 0 when that is not known.
func (g *foundGPU) memorySlices(gpuInstance int) int {
	instance, ok := optional(g.reader, "nvmlDeviceGetGpuInstanceById", fmt.Sprintf("GetGpuInstanceById(%d)", gpuInstance),
		func() (nvml.GpuInstance, nvml.Return) { return ifPermitted(g.handle.GetGpuInstanceById(gpuInstance)) })
	if !ok {
		return 0
	}
	info, _ := optional(g.reader, "nvmlGpuInstanceGetInfo", fmt.Sprintf("GetInfo of GPU instance %d", gpuInstance),
		func() (nvml.GpuInstanceInfo, nvml.Return) { return ifPermitted(instance.GetInfo()) })
	return int(info.Placement.Size)
}

// ifPermitted takes what only administrators may read for not supported: the rest
// of a MIG device is known without.
func ifPermitted[T any](value T, ret nvml.Return) (T, nvml.Return) {
	if ret == nvml.ERROR_NO_PERMISSION || ret == nvml.ERROR_NOT_FOUND {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return value, ret
}

// profileOf builds a profile's name as NVIDIA does: "1c." for a part of the compute
// slices, "3g" for the GPU slices, "20gb" for the memory, rounded up.
func profileOf(a *nvml.DeviceAttributes) string {
	const mbPerGB = 1024
	profile := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, (a.MemorySizeMB+mbPerGB-1)/mbPerGB)
	if a.ComputeInstanceSliceCount < a.GpuInstanceSliceCount {
		profile = fmt.Sprintf("%dc.", a.ComputeInstanceSliceCount) + profile
	}
	return profile
}
