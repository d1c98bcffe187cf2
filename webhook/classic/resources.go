// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
)

// amountOf is the value of one resource of a container.
type amountOf struct {
	value int64
	given bool
	path  *field.Path // where it is written
}

// Parse reads what the pod asks for. demand is nil if it asks for nothing in this vocabulary. Warnings are for the user and
// come with and without a demand; if there are errors, the demand is not to be used.
func (v *Vocabulary) Parse(pod *corev1.Pod) (demand *Demand, warnings []string, errs field.ErrorList) {
	demand = &Demand{}
	fromAnnotations, placementErrs := demand.Placement.parse(pod.Annotations)
	containers := func(path *field.Path, list []corev1.Container, kind func(*corev1.Container) Kind) {
		for i := range list {
			need, more, problems := v.parseContainer(path.Index(i), &list[i], demand.Placement.MIG)
			warnings = append(warnings, more...)
			errs = append(errs, problems...)
			if need != nil {
				need.Kind = kind(&list[i])
				demand.Needs = append(demand.Needs, *need)
			}
		}
	}
	spec := field.NewPath("spec")
	containers(spec.Child("initContainers"), pod.Spec.InitContainers, initKind)
	containers(spec.Child("containers"), pod.Spec.Containers, func(*corev1.Container) Kind { return App })
	warnings = append(warnings, v.nearMisses(pod)...)
	if len(demand.Needs) == 0 {
		return nil, warnings, errs
	}
	warnings = append(warnings, fromAnnotations...)
	errs = append(errs, placementErrs...)
	if demand.Placement.MIG {
		errs = append(errs, demand.validateMIG(&v.Resources)...)
	}
	return demand, warnings, errs
}

// initKind tells init containers from sidecars.
func initKind(container *corev1.Container) Kind {
	if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return Sidecar
	}
	return Init
}

// parseContainer reads the resources of one container. The need is nil if it wants no GPU.
func (v *Vocabulary) parseContainer(path *field.Path, container *corev1.Container, mig bool) (*Need, []string, field.ErrorList) {
	var errs field.ErrorList
	read := func(name corev1.ResourceName, most int64) amountOf {
		amount, problems := readAmount(path.Child("resources"), &container.Resources, name, most)
		errs = append(errs, problems...)
		return amount
	}
	names := &v.Resources
	gpus := read(names.GPU, MaxGPUs)
	memory := read(names.Memory, MaxMemoryMiB/v.MemoryFactorMiB)
	percent := read(names.MemoryPercent, unsetPercent)
	cores := read(names.Cores, 100)
	priority := read(names.Priority, 1)
	if len(errs) > 0 {
		return nil, nil, errs
	}
	number, warnings := v.number(gpus, memory, percent, cores, priority)
	if number == 0 {
		return nil, warnings, nil
	}
	need := &Need{Container: container.Name, Path: path, GPUs: int(number)}
	switch {
	case cores.given:
		need.PerGPU.CoresPercent = cores.value
	case !mig: // MIG devices have compute of their own
		need.PerGPU.CoresPercent = v.DefaultCoresPercent
	}
	if priority.given {
		need.PerGPU.Priority = []api.TaskPriority{api.TaskPriorityHigh, api.TaskPriorityLow}[priority.value]
	}
	percentGiven := percent.value > 0 && percent.value < unsetPercent
	switch {
	case memory.value > 0:
		need.PerGPU.MemoryMiB = memory.value * v.MemoryFactorMiB
		if percentGiven {
			warnings = append(warnings, fmt.Sprintf("%s is not used: %s of the same container counts", percent.path, names.Memory))
		}
	case percentGiven && percent.value < 100:
		need.PerGPU.MemoryPercent = percent.value
	case percentGiven:
	default:
		need.PerGPU.MemoryMiB = v.DefaultMemoryMiB
	}
	if need.PerGPU.Whole() { // then nothing is left to divide or to order
		need.PerGPU = Amount{}
	}
	return need, warnings, nil
}

// number returns how many GPUs a container wants.
func (v *Vocabulary) number(gpus, memory, percent, cores, priority amountOf) (int64, []string) {
	asked := memory.given || percent.given || cores.given
	switch {
	case gpus.given && gpus.value == 0:
		if memory.value > 0 || percent.value > 0 || cores.value > 0 {
			return 0, []string{fmt.Sprintf("%s is 0: the container gets no GPU, whatever else it asks for", gpus.path)}
		}
		return 0, nil
	case gpus.given:
		return gpus.value, nil
	case asked:
		return v.DefaultGPUs, nil
	case priority.given:
		return 0, []string{fmt.Sprintf("%s has no effect without %s in the same container", priority.path, v.Resources.GPU)}
	default:
		return 0, nil
	}
}

// readAmount reads one resource: the limit, or the request if there is no limit. Both may only be equal.
func readAmount(path *field.Path, resources *corev1.ResourceRequirements, name corev1.ResourceName, most int64) (amountOf, field.ErrorList) {
	limit, limited := resources.Limits[name]
	request, requested := resources.Requests[name]
	limitPath, requestPath := path.Child("limits").Key(string(name)), path.Child("requests").Key(string(name))
	amount := amountOf{given: limited || requested, path: limitPath}
	if !limited {
		limit, amount.path = request, requestPath
	}
	if !amount.given {
		return amount, nil
	}
	if limited && requested && limit.Cmp(request) != 0 {
		return amount, field.ErrorList{field.Invalid(requestPath, request.String(), "must be equal to the limit, "+limit.String())}
	}
	value, whole := limit.AsInt64()
	if !whole || value < 0 || value > most {
		return amount, field.ErrorList{field.Invalid(amount.path, limit.String(), fmt.Sprintf("must be a whole number from 0 to %d", most))}
	}
	amount.value = value
	return amount, nil
}

// validateMIG refuses what MIG devices cannot give.
func (d *Demand) validateMIG(names *Resources) field.ErrorList {
	var errs field.ErrorList
	for _, need := range d.Needs {
		limits := need.Path.Child("resources", "limits")
		if need.PerGPU.MemoryPercent > 0 {
			errs = append(errs, field.Forbidden(limits.Key(string(names.MemoryPercent)),
				fmt.Sprintf("a MIG device has a fixed size: use %s with annotation %s=%s", names.Memory, AnnotationMode, modeMIG)))
		}
		if need.PerGPU.CoresPercent > 0 {
			errs = append(errs, field.Forbidden(limits.Key(string(names.Cores)),
				fmt.Sprintf("a MIG device has compute of its own: leave it out with annotation %s=%s", AnnotationMode, modeMIG)))
		}
	}
	return errs
}

// Strip removes the vocabulary's resources from all containers and says whether there were any.
func (v *Vocabulary) Strip(pod *corev1.Pod) bool {
	stripped := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, amounts := range []corev1.ResourceList{list[i].Resources.Limits, list[i].Resources.Requests} {
				for _, name := range v.Resources.names() {
					if _, found := amounts[name]; found {
						delete(amounts, name)
						stripped = true
					}
				}
			}
		}
	}
	return stripped
}
