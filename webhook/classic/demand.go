// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
)

// Demand is what a pod asks for.
type Demand struct {
	// Needs of the containers that want GPUs: init containers first, each group in the order of the pod.
	Needs []Need
	// Placement holds for all of them.
	Placement Placement
}

// Kind says when a container runs, which decides with whom it can share.
type Kind int

const (
	// Init containers run one after the other, before the app.
	Init Kind = iota
	// Sidecar is an init container that is restarted always: it runs from its turn to the end of the pod.
	Sidecar
	// App containers run together, after the init containers.
	App
)

// Need is what one container asks for.
type Need struct {
	// Container is its name.
	Container string
	// Kind says when it runs.
	Kind Kind
	// Path of the container in the pod.
	Path *field.Path
	// GPUs is the number of distinct GPUs, 1 to MaxGPUs.
	GPUs int
	// PerGPU is what it takes of each of them.
	PerGPU Amount
}

// Amount is what a container takes of one GPU. Equal amounts can be compared by ==.
type Amount struct {
	// MemoryMiB, or MemoryPercent (1 to 99), or neither for all of the memory.
	MemoryMiB     int64
	MemoryPercent int64
	// CoresPercent is compute, 0 to 100; 0 reserves and limits nothing.
	CoresPercent int64
	// Priority of its work among the GPU's users; empty leaves it open.
	Priority api.TaskPriority
}

// Whole says whether the amount takes a GPU for itself without any limit.
func (a Amount) Whole() bool {
	return a.AllMemory() && (a.CoresPercent == 0 || a.CoresPercent == 100)
}

// AllMemory says whether the amount takes all of a GPU's memory.
func (a Amount) AllMemory() bool { return a.MemoryMiB == 0 && a.MemoryPercent == 0 }

// Placement says which GPUs the pod wants.
type Placement struct {
	// UseUUIDs and AvoidUUIDs are lists of UUIDs. An empty list says nothing.
	UseUUIDs, AvoidUUIDs []string
	// UseTypes and AvoidTypes are parts of product names in lower case, see TypePrefix. An empty list says nothing.
	UseTypes, AvoidTypes []string
	// OneNUMANode wants all GPUs of a container on one NUMA node.
	OneNUMANode bool
	// MIG wants MIG devices instead of GPUs.
	MIG bool
	// Topology is a policy for the links between the GPUs; nil leaves it to the scheduler.
	Topology *api.TopologyConfig
}

// TypePrefix precedes the product name, in lower case, where UseTypes and AvoidTypes are looked for: in the classic
// vocabulary the type of a GPU is its vendor, a hyphen and its product name.
const TypePrefix = "nvidia-"
