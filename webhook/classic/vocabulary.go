// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of what can be asked for.
const (
	// MaxGPUs is how many devices one claim can hold: a limit of the Kubernetes API.
	MaxGPUs = 32

	// MaxMemoryMiB is 1Pi, which no GPU has; sums and products stay far from overflow.
	MaxMemoryMiB = 1 << 30

	// maxFactor bounds Vocabulary.MemoryFactorMiB.
	maxFactor = 1 << 20

	// unsetPercent is the percentage by which the classic vocabulary says "none given".
	unsetPercent = 101
)

// Resources are the names of the extended resources.
type Resources struct {
	// GPU is a number of distinct GPUs.
	GPU corev1.ResourceName
	// Memory is an amount of memory per GPU, in units of Vocabulary.MemoryFactorMiB.
	Memory corev1.ResourceName
	// MemoryPercent is the same in percent of the GPU's memory.
	MemoryPercent corev1.ResourceName
	// Cores is compute per GPU in percent.
	Cores corev1.ResourceName
	// Priority is 0 for high and 1 for low.
	Priority corev1.ResourceName
}

// Vocabulary is the names and defaults of one cluster.
type Vocabulary struct {
	Resources Resources

	// DefaultGPUs is the number of GPUs of a container that names an amount but no number. 1 to MaxGPUs.
	DefaultGPUs int64
	// DefaultMemoryMiB is the memory per GPU where none is given; 0 is all of it.
	DefaultMemoryMiB int64
	// DefaultCoresPercent is the compute per GPU where none is given, 0 to 100; 0 reserves and limits nothing.
	DefaultCoresPercent int64
	// MemoryFactorMiB is how many MiB one unit of Resources.Memory is, at least 1.
	MemoryFactorMiB int64
}

// Default returns the names and defaults that the classic vocabulary has out of the box.
func Default() Vocabulary {
	return Vocabulary{
		Resources: Resources{
			GPU:           "nvidia.com/gpu",
			Memory:        "nvidia.com/gpumem",
			MemoryPercent: "nvidia.com/gpumem-percentage",
			Cores:         "nvidia.com/gpucores",
			Priority:      "nvidia.com/priority",
		},
		DefaultGPUs:     1,
		MemoryFactorMiB: 1,
	}
}

// names returns the resource names in a fixed order.
func (r *Resources) names() []corev1.ResourceName {
	return []corev1.ResourceName{r.GPU, r.Memory, r.MemoryPercent, r.Cores, r.Priority}
}

// Has says whether the name is one of the resources.
func (r *Resources) Has(name corev1.ResourceName) bool { return slices.Contains(r.names(), name) }

// Validate reports every problem with its field path.
func (v *Vocabulary) Validate() field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("resources")
	seen := map[corev1.ResourceName]bool{}
	for i, name := range v.Resources.names() {
		child := path.Child([]string{"gpu", "memory", "memoryPercent", "cores", "priority"}[i])
		for _, problem := range validation.IsQualifiedName(string(name)) {
			errs = append(errs, field.Invalid(child, name, problem))
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(child, name))
		}
		seen[name] = true
	}
	errs = append(errs, within(field.NewPath("defaultGPUs"), v.DefaultGPUs, 1, MaxGPUs)...)
	errs = append(errs, within(field.NewPath("defaultMemoryMiB"), v.DefaultMemoryMiB, 0, MaxMemoryMiB)...)
	errs = append(errs, within(field.NewPath("defaultCoresPercent"), v.DefaultCoresPercent, 0, 100)...)
	return append(errs, within(field.NewPath("memoryFactorMiB"), v.MemoryFactorMiB, 1, maxFactor)...)
}

// within checks a number.
func within(path *field.Path, value, least, most int64) field.ErrorList {
	if value >= least && value <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be a whole number from %d to %d", least, most))}
}
