// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
)

// amounts makes a resource list of names without the prefix and values.
func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		name := pairs[i]
		if !strings.Contains(name, "/") {
			name = "nvidia.com/" + name
		}
		list[corev1.ResourceName(name)] = resource.MustParse(pairs[i+1])
	}
	return list
}

// podOf makes a pod with one container.
func podOf(limits corev1.ResourceList, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "app", Resources: corev1.ResourceRequirements{Limits: limits}},
	}}}
	pod.Annotations = map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

var ignorePaths = cmpopts.IgnoreTypes(&field.Path{})

func TestParseAmounts(t *testing.T) {
	t.Parallel()
	defaults := Default()
	tight := Default()
	tight.DefaultGPUs, tight.DefaultMemoryMiB, tight.DefaultCoresPercent, tight.MemoryFactorMiB = 2, 4096, 30, 1024
	for name, c := range map[string]struct {
		vocabulary *Vocabulary
		limits     corev1.ResourceList
		gpus       int
		want       Amount
		warning    string
	}{
		"count alone is whole GPUs":           {&defaults, amounts("gpu", "4"), 4, Amount{}, ""},
		"memory":                              {&defaults, amounts("gpu", "2", "gpumem", "8000"), 2, Amount{MemoryMiB: 8000}, ""},
		"memory with a suffix":                {&defaults, amounts("gpu", "1", "gpumem", "8k"), 1, Amount{MemoryMiB: 8000}, ""},
		"memory without count":                {&defaults, amounts("gpumem", "8000"), 1, Amount{MemoryMiB: 8000}, ""},
		"memory of zero without count":        {&defaults, amounts("gpumem", "0"), 1, Amount{}, ""},
		"percent without count":               {&defaults, amounts("gpumem-percentage", "50"), 1, Amount{MemoryPercent: 50}, ""},
		"cores without count take all memory": {&defaults, amounts("gpucores", "30"), 1, Amount{CoresPercent: 30}, ""},
		"one percent":                         {&defaults, amounts("gpu", "1", "gpumem-percentage", "1"), 1, Amount{MemoryPercent: 1}, ""},
		"all percent":                         {&defaults, amounts("gpu", "1", "gpumem-percentage", "100"), 1, Amount{}, ""},
		"the percentage that means none":      {&defaults, amounts("gpu", "1", "gpumem-percentage", "101"), 1, Amount{}, ""},
		"percent of zero":                     {&defaults, amounts("gpu", "1", "gpumem-percentage", "0"), 1, Amount{}, ""},
		"all cores and all memory":            {&defaults, amounts("gpu", "1", "gpucores", "100"), 1, Amount{}, ""},
		"all cores of a share":                {&defaults, amounts("gpu", "1", "gpucores", "100", "gpumem", "1"), 1, Amount{MemoryMiB: 1, CoresPercent: 100}, ""},
		"memory wins over percent":            {&defaults, amounts("gpu", "1", "gpumem", "5", "gpumem-percentage", "50"), 1, Amount{MemoryMiB: 5}, "gpumem-percentage] is not used"},
		"high priority":                       {&defaults, amounts("gpumem", "5", "priority", "0"), 1, Amount{MemoryMiB: 5, Priority: api.TaskPriorityHigh}, ""},
		"low priority":                        {&defaults, amounts("gpumem", "5", "priority", "1"), 1, Amount{MemoryMiB: 5, Priority: api.TaskPriorityLow}, ""},
		"priority of a whole GPU":             {&defaults, amounts("gpu", "1", "priority", "0"), 1, Amount{}, ""},
		"most GPUs":                           {&defaults, amounts("gpu", "32"), 32, Amount{}, ""},
		"configured defaults":                 {&tight, amounts("gpucores", "0"), 2, Amount{MemoryMiB: 4096}, ""},
		"configured cores":                    {&tight, amounts("gpu", "1"), 1, Amount{MemoryMiB: 4096, CoresPercent: 30}, ""},
		"configured factor":                   {&tight, amounts("gpumem", "3"), 2, Amount{MemoryMiB: 3072, CoresPercent: 30}, ""},
		"all percent over a default":          {&tight, amounts("gpu", "1", "gpumem-percentage", "100"), 1, Amount{CoresPercent: 30}, ""},
	} {
		demand, warnings, errs := c.vocabulary.Parse(podOf(c.limits))
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
			continue
		}
		want := &Demand{Needs: []Need{{Container: "app", Kind: App, GPUs: c.gpus, PerGPU: c.want}}}
		if diff := cmp.Diff(want, demand, ignorePaths); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.warning) || (c.warning == "") != (got == "") {
			t.Errorf("%s: warnings are %q, want %q", name, warnings, c.warning)
		}
	}
}

func TestParseNothing(t *testing.T) {
	t.Parallel()
	v := Default()
	for name, c := range map[string]struct {
		limits  corev1.ResourceList
		warning string
	}{
		"no GPU words":              {amounts("example.com/gpu", "1", "example.com/cpu", "1"), ""},
		"zero GPUs":                 {amounts("gpu", "0"), ""},
		"zero GPUs, zero of them":   {amounts("gpu", "0", "gpumem", "0"), ""},
		"zero GPUs of some memory":  {amounts("gpu", "0", "gpumem", "5"), "the container gets no GPU"},
		"priority alone":            {amounts("priority", "0"), "has no effect without nvidia.com/gpu"},
		"nothing at all":            {nil, ""},
		"a device plugin's replica": {amounts("gpu.shared", "1"), ""},
	} {
		demand, warnings, errs := v.Parse(podOf(c.limits, AnnotationMode, "nonsense"))
		if demand != nil || len(errs) > 0 {
			t.Errorf("%s: got demand %+v, errors %v", name, demand, errs)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.warning) || (c.warning == "") != (got == "") {
			t.Errorf("%s: warnings are %q, want %q", name, warnings, c.warning)
		}
	}
}

func TestParseRejectsAmounts(t *testing.T) {
	t.Parallel()
	v := Default()
	for _, c := range []struct {
		limits corev1.ResourceList
		want   string
	}{
		{amounts("gpu", "-1"), `spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "-1": must be a whole number from 0 to 32`},
		{amounts("gpu", "33"), `limits[nvidia.com/gpu]: Invalid value: "33": must be a whole number from 0 to 32`},
		{amounts("gpu", "1500m"), `limits[nvidia.com/gpu]: Invalid value: "1500m": must be a whole number from 0 to 32`},
		{amounts("gpu", "10E30"), `limits[nvidia.com/gpu]: Invalid value`},
		{amounts("gpu", "1", "gpumem", "1.5"), `limits[nvidia.com/gpumem]: Invalid value: "1500m": must be a whole number from 0 to 1073741824`},
		{amounts("gpu", "1", "gpumem", "2Gi"), `limits[nvidia.com/gpumem]: Invalid value: "2Gi": must be a whole number from 0 to 1073741824`},
		{amounts("gpu", "1", "gpumem-percentage", "102"), `limits[nvidia.com/gpumem-percentage]: Invalid value: "102": must be a whole number from 0 to 101`},
		{amounts("gpu", "1", "gpucores", "101"), `limits[nvidia.com/gpucores]: Invalid value: "101": must be a whole number from 0 to 100`},
		{amounts("gpu", "1", "priority", "2"), `limits[nvidia.com/priority]: Invalid value: "2": must be a whole number from 0 to 1`},
	} {
		_, _, errs := v.Parse(podOf(c.limits))
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.limits, errs, c.want)
		}
	}
}

func TestParseRequestsAndLimits(t *testing.T) {
	t.Parallel()
	v := Default()
	pod := podOf(nil)
	pod.Spec.Containers[0].Resources.Requests = amounts("gpu", "2", "gpumem", "100")
	demand, _, errs := v.Parse(pod)
	want := &Demand{Needs: []Need{{Container: "app", Kind: App, GPUs: 2, PerGPU: Amount{MemoryMiB: 100}}}}
	if diff := cmp.Diff(want, demand, ignorePaths); diff != "" || len(errs) > 0 {
		t.Errorf("requests without limits: %s %v", diff, errs)
	}
	pod.Spec.Containers[0].Resources.Limits = amounts("gpu", "2", "gpumem", "0.1k")
	if _, _, errs := v.Parse(pod); len(errs) > 0 {
		t.Errorf("equal requests and limits: %v", errs)
	}
	pod.Spec.Containers[0].Resources.Limits = amounts("gpu", "1")
	_, _, errs = v.Parse(pod)
	const path = `spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "2": must be equal to the limit, 1`
	if len(errs) != 1 || errs[0].Error() != path {
		t.Errorf("other requests than limits: got %v, want %q", errs, path)
	}
	pod.Spec.Containers[0].Resources.Limits = nil
	pod.Spec.Containers[0].Resources.Requests = amounts("gpu", "1", "gpucores", "200")
	if _, _, errs = v.Parse(pod); len(errs) != 1 || errs[0].Field != "spec.containers[0].resources.requests[nvidia.com/gpucores]" {
		t.Errorf("a bad request: got %v", errs)
	}
}

func TestParseContainers(t *testing.T) {
	t.Parallel()
	v := Default()
	always := corev1.ContainerRestartPolicyAlways
	pod := podOf(amounts("gpu", "1"))
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "plain"},
		corev1.Container{Name: "second", Resources: corev1.ResourceRequirements{Limits: amounts("gpumem", "7")}})
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "init", Resources: corev1.ResourceRequirements{Limits: amounts("gpu", "2")}},
		{Name: "sidecar", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Limits: amounts("gpu", "3")}},
	}
	before := pod.DeepCopy()
	demand, _, errs := v.Parse(pod)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	spec := field.NewPath("spec")
	want := []Need{
		{"init", Init, spec.Child("initContainers").Index(0), 2, Amount{}},
		{"sidecar", Sidecar, spec.Child("initContainers").Index(1), 3, Amount{}},
		{"app", App, spec.Child("containers").Index(0), 1, Amount{}},
		{"second", App, spec.Child("containers").Index(2), 1, Amount{MemoryMiB: 7}},
	}
	if diff := cmp.Diff(want, demand.Needs, cmp.Comparer(func(a, b *field.Path) bool { return a.String() == b.String() })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("parsing changes the pod: %s", diff)
	}
	if !v.Strip(pod) {
		t.Error("nothing was stripped")
	}
	if again, _, _ := v.Parse(pod); again != nil || v.Strip(pod) {
		t.Errorf("after stripping there is still %+v", again)
	}
}

func TestStripLeavesOthers(t *testing.T) {
	t.Parallel()
	v := Default()
	pod := podOf(amounts("gpu", "1", "gpumem", "2", "gpumem-percentage", "3", "gpucores", "4", "priority", "1", "mig-1g.5gb", "1", "example.com/x", "1"))
	pod.Spec.Containers[0].Resources.Requests = amounts("gpu", "1", "example.com/y", "1")
	v.Strip(pod)
	want := corev1.ResourceRequirements{Limits: amounts("mig-1g.5gb", "1", "example.com/x", "1"), Requests: amounts("example.com/y", "1")}
	if diff := cmp.Diff(want, pod.Spec.Containers[0].Resources); diff != "" {
		t.Error(diff)
	}
}

func TestParseOtherNames(t *testing.T) {
	t.Parallel()
	v := Default()
	v.Resources.GPU, v.Resources.Memory = "example.com/gpus", "example.com/vram"
	demand, _, _ := v.Parse(podOf(amounts("example.com/gpus", "2", "example.com/vram", "9", "gpu", "7")))
	want := &Demand{Needs: []Need{{Container: "app", Kind: App, GPUs: 2, PerGPU: Amount{MemoryMiB: 9}}}}
	if diff := cmp.Diff(want, demand, ignorePaths); diff != "" {
		t.Error(diff)
	}
}

func TestVocabularyValidate(t *testing.T) {
	t.Parallel()
	v := Default()
	if errs := v.Validate(); len(errs) > 0 {
		t.Errorf("the defaults are invalid: %v", errs)
	}
	v.Resources.Cores, v.Resources.Priority = "bad name", v.Resources.GPU
	v.DefaultGPUs, v.DefaultMemoryMiB, v.DefaultCoresPercent, v.MemoryFactorMiB = 0, -1, 101, 0
	var fields []string
	for _, err := range v.Validate() {
		fields = append(fields, err.Field)
	}
	want := []string{"resources.cores", "resources.priority", "defaultGPUs", "defaultMemoryMiB", "defaultCoresPercent", "memoryFactorMiB"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
}
