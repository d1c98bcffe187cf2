// SPDX-License-Identifier: Apache-2.0

package hamicore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/enforce"
)

// MaxGPUs is the length of the library's own tables.
const MaxGPUs = 16

// Paths inside the container.
const (
	// ContainerLibrary is where the library looks for itself; the path is
	// compiled into it.
	ContainerLibrary = "/usr/local/vgpu/libvgpu.so"

	// ContainerPreload makes the dynamic linker load the library into every
	// process. It hides a file of that name in the image.
	ContainerPreload = "/etc/ld.so.preload"

	// ContainerOverride is a file from which the library sets environment
	// variables, over those of the process. An empty one that cannot be written
	// is mounted there, so that the image brings none.
	ContainerOverride = "/overrideEnv"

	// ContainerRegionDir is where processes of the container share their usage.
	ContainerRegionDir = "/usr/local/vgpu/region"

	// RegionFile is the name of the file in it.
	RegionFile = "vgpu.cache"
)

// Names of files in the library's directory on the host.
const (
	libraryName  = "libvgpu.so"
	preloadName  = "ld.so.preload"
	overrideName = "overrideEnv"
)

// edits computes what a limited container needs when the library lies in dir.
func edits(container *enforce.Container, dir string) (enforce.Edits, error) {
	if !container.Limited() {
		return enforce.Edits{}, nil
	}
	if len(container.GPUs) > MaxGPUs {
		return enforce.Edits{}, fmt.Errorf("the container gets %d GPUs, some of them shared; HAMi-core keeps limits for at most %d in one container",
			len(container.GPUs), MaxGPUs)
	}
	if container.RegionDir == "" {
		return enforce.Edits{}, fmt.Errorf("the container has no region directory")
	}
	return enforce.Edits{Env: environment(container), Mounts: []enforce.Mount{
		{HostPath: dir + "/" + preloadName, ContainerPath: ContainerPreload, ReadOnly: true},
		{HostPath: dir + "/" + overrideName, ContainerPath: ContainerOverride, ReadOnly: true},
		{HostPath: dir + "/" + libraryName, ContainerPath: ContainerLibrary, ReadOnly: true},
		{HostPath: container.RegionDir, ContainerPath: ContainerRegionDir},
	}}, nil
}

// environment lists the variables in order of name, those with numbers in order
// of number. Position i in container.GPUs is number i for CUDA, since
// CUDA_DEVICE_ORDER makes it count by PCI address and CUDA_VISIBLE_DEVICES is
// the identity; the library takes the same number for NVML's.
func environment(container *enforce.Container) []enforce.EnvVar {
	numbers := make([]string, len(container.GPUs))
	for i := range numbers {
		numbers[i] = strconv.Itoa(i)
	}
	out := []enforce.EnvVar{
		// 0 is no limit; it only keeps a value of the pod from counting.
		{Name: "CUDA_DEVICE_MEMORY_LIMIT", Value: "0"},
	}
	for i, gpu := range container.GPUs {
		out = append(out, enforce.EnvVar{Name: "CUDA_DEVICE_MEMORY_LIMIT_" + numbers[i], Value: memoryLimit(gpu)})
	}
	out = append(out,
		enforce.EnvVar{Name: "CUDA_DEVICE_MEMORY_SHARED_CACHE", Value: ContainerRegionDir + "/" + RegionFile},
		enforce.EnvVar{Name: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID"},
		enforce.EnvVar{Name: "CUDA_DEVICE_SM_LIMIT", Value: "0"})
	for i, gpu := range container.GPUs {
		out = append(out, enforce.EnvVar{Name: "CUDA_DEVICE_SM_LIMIT_" + numbers[i], Value: coreLimit(gpu)})
	}
	return append(out,
		enforce.EnvVar{Name: "CUDA_REDIRECT", Value: ContainerLibrary},
		enforce.EnvVar{Name: "CUDA_TASK_PRIORITY", Value: taskPriority(container.Settings.TaskPriority)},
		enforce.EnvVar{Name: "CUDA_VISIBLE_DEVICES", Value: strings.Join(numbers, ",")},
		enforce.EnvVar{Name: "GPU_CORE_UTILIZATION_POLICY", Value: strings.ToUpper(string(container.Settings.CorePolicy))},
		enforce.EnvVar{Name: "LIBCUDA_LOG_LEVEL", Value: logLevel(container.Settings.LogLevel)})
}

// memoryLimit is in the library's form. A GPU without limit gets all of its
// memory as limit where that is known, since without one the library answers
// questions about the memory's size wrongly.
func memoryLimit(gpu enforce.GPU) string {
	switch {
	case gpu.Limit != nil:
		return strconv.FormatInt(gpu.Limit.MemoryMiB, 10) + "m"
	case gpu.MemoryMiB > 0:
		return strconv.FormatInt(gpu.MemoryMiB, 10) + "m"
	default:
		return "0"
	}
}

// coreLimit is in percent. The library takes 100 and more for no limit; 0 would
// make it look at the variable without number.
func coreLimit(gpu enforce.GPU) string {
	if gpu.Limit == nil || gpu.Limit.CoresPercent == 0 {
		return "100"
	}
	return strconv.FormatInt(gpu.Limit.CoresPercent, 10)
}

// taskPriority is 0 for the tasks that go first and 1 for the others.
func taskPriority(p api.TaskPriority) string {
	if p == api.TaskPriorityHigh {
		return "0"
	}
	return "1"
}

// logLevel counts from 0, off, to 4, debug.
func logLevel(l api.LogLevel) string {
	levels := []api.LogLevel{api.LogLevelOff, api.LogLevelError, api.LogLevelWarning, api.LogLevelInfo, api.LogLevelDebug}
	return strconv.Itoa(max(0, slices.Index(levels, l)))
}

// ownedEnv are variables without number that the library or what comes with it
// reads, set or not.
var ownedEnv = []string{
	"ACTIVE_OOM_KILLER", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_SM_LIMIT",
	"CUDA_DISABLE_CONTROL", "CUDA_OVERSUBSCRIBE", "CUDA_REDIRECT", "CUDA_TASK_PRIORITY", "CUDA_VISIBLE_DEVICES",
	"GPU_CORE_UTILIZATION_POLICY", "LIBCUDA_LOG_LEVEL", "RECORD_KERNEL_INTERVAL",
}

// ownsEnv says whether a container must not set the variable itself.
func ownsEnv(name string) bool {
	return slices.Contains(ownedEnv, name) ||
		strings.HasPrefix(name, "CUDA_DEVICE_MEMORY_LIMIT_") || strings.HasPrefix(name, "CUDA_DEVICE_SM_LIMIT_")
}
