// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
)

func TestParsePlacement(t *testing.T) {
	t.Parallel()
	v := Default()
	packed := &api.TopologyConfig{Policy: api.PolicyPreferred, Communicates: new(false)}
	for name, c := range map[string]struct {
		annotations []string
		want        Placement
		warning     string
	}{
		"UUIDs":            {[]string{AnnotationUseUUID, "GPU-1, GPU-2,,", AnnotationAvoidUUID, "GPU-3"}, Placement{UseUUIDs: []string{"GPU-1", "GPU-2"}, AvoidUUIDs: []string{"GPU-3"}}, ""},
		"types":            {[]string{AnnotationUseType, "A100,Tesla V100-SXM2", AnnotationAvoidType, "h100"}, Placement{UseTypes: []string{"a100", "tesla v100-sxm2"}, AvoidTypes: []string{"h100"}}, ""},
		"NUMA":             {[]string{AnnotationNUMA, "true"}, Placement{OneNUMANode: true}, ""},
		"no NUMA":          {[]string{AnnotationNUMA, "false"}, Placement{}, ""},
		"core mode":        {[]string{AnnotationMode, "hami-core"}, Placement{}, ""},
		"MIG":              {[]string{AnnotationMode, "mig"}, Placement{MIG: true}, ""},
		"core or MIG":      {[]string{AnnotationMode, "mig, hami-core"}, Placement{}, ""},
		"MIG or MPS":       {[]string{AnnotationMode, "mps,mig"}, Placement{MIG: true}, ""},
		"binpack nodes":    {[]string{AnnotationNodePolicy, "binpack"}, Placement{}, ""},
		"spread nodes":     {[]string{AnnotationNodePolicy, "spread"}, Placement{}, "use topologySpreadConstraints"},
		"topology":         {[]string{AnnotationGPUPolicy, "topology-aware,numa"}, Placement{}, ""},
		"binpack":          {[]string{AnnotationGPUPolicy, "binpack"}, Placement{Topology: packed}, ""},
		"spread":           {[]string{AnnotationGPUPolicy, "spread"}, Placement{}, "shares are packed"},
		"mutex":            {[]string{AnnotationGPUPolicy, "mutex"}, Placement{}, "to have a GPU alone"},
		"weights":          {[]string{AnnotationWeights, "slot=1,core=1,memory=3"}, Placement{}, "weights are arguments of the scheduler"},
		"our own policy":   {[]string{api.AnnotationTopology, "Required,level=NVLink"}, Placement{Topology: &api.TopologyConfig{Policy: api.PolicyRequired, Level: api.LevelNVLink}}, ""},
		"ours over theirs": {[]string{api.AnnotationTopology, "None", AnnotationGPUPolicy, "binpack"}, Placement{Topology: &api.TopologyConfig{Policy: api.PolicyNone}}, ""},
	} {
		demand, warnings, errs := v.Parse(podOf(amounts("gpu", "2"), c.annotations...))
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
			continue
		}
		if diff := cmp.Diff(c.want, demand.Placement); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.warning) || (c.warning == "") != (got == "") {
			t.Errorf("%s: warnings are %q, want %q", name, warnings, c.warning)
		}
	}
}

func TestParseRejectsAnnotations(t *testing.T) {
	t.Parallel()
	v := Default()
	for _, c := range []struct{ key, value, want string }{
		{AnnotationUseUUID, "", `metadata.annotations[nvidia.com/use-gpuuuid]: Required value: the list is empty`},
		{AnnotationAvoidUUID, " , ", `metadata.annotations[nvidia.com/nouse-gpuuuid]: Required value`},
		{AnnotationUseUUID, `GPU-1"] || true || ["`, `allowed are UUIDs of letters, digits and hyphens`},
		{AnnotationUseUUID, strings.Repeat("GPU-1,", 129), `must have at most 128 items`},
		{AnnotationUseType, "A100\n", ""},
		{AnnotationUseType, "A\x00", `allowed are parts of product names`},
		{AnnotationUseType, "Ä100", `allowed are parts of product names`},
		{AnnotationAvoidType, strings.Repeat("x", 64), `up to 63 characters`},
		{AnnotationNUMA, "yes", `metadata.annotations[nvidia.com/numa-bind]: Unsupported value: "yes": supported values: "true", "false"`},
		{AnnotationMode, "mps", `metadata.annotations[nvidia.com/vgpu-mode]: Unsupported value: "mps": supported values: "hami-core", "mig"`},
		{AnnotationMode, "", `Unsupported value: ""`},
		{AnnotationMode, "MIG", `Unsupported value: "MIG"`},
		{AnnotationNodePolicy, "pack", `metadata.annotations[hami.io/node-scheduler-policy]: Unsupported value: "pack": supported values: "binpack", "spread"`},
		{AnnotationGPUPolicy, "binpack,fast", `metadata.annotations[hami.io/gpu-scheduler-policy]: Unsupported value: "fast"`},
		{api.AnnotationTopology, "Required", `metadata.annotations[gpu.topodra.dev/topology]: Invalid value`},
	} {
		_, _, errs := v.Parse(podOf(amounts("gpu", "2"), c.key, c.value))
		if c.want == "" {
			if len(errs) > 0 {
				t.Errorf("%s=%q: %v", c.key, c.value, errs)
			}
			continue
		}
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
			t.Errorf("%s=%q: got %v, want %q", c.key, c.value, errs, c.want)
		}
	}
}

func TestParseMIG(t *testing.T) {
	t.Parallel()
	v := Default()
	v.DefaultCoresPercent = 50
	demand, _, errs := v.Parse(podOf(amounts("gpu", "1", "gpumem", "5000"), AnnotationMode, "mig"))
	if len(errs) > 0 || demand.Needs[0].PerGPU != (Amount{MemoryMiB: 5000}) {
		t.Errorf("got %+v, %v", demand, errs)
	}
	for _, c := range []struct{ name, want string }{
		{"gpumem-percentage", "spec.containers[0].resources.limits[nvidia.com/gpumem-percentage]: Forbidden: a MIG device has a fixed size"},
		{"gpucores", "spec.containers[0].resources.limits[nvidia.com/gpucores]: Forbidden: a MIG device has compute of its own"},
	} {
		_, _, errs := v.Parse(podOf(amounts("gpu", "1", c.name, "50"), AnnotationMode, "mig"))
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, errs, c.want)
		}
	}
}

func TestNearMisses(t *testing.T) {
	t.Parallel()
	v := Default()
	for _, c := range []struct{ where, key, want string }{
		{"annotation", "nvidia.com/gpumem", `annotation "nvidia.com/gpumem" has no effect: it is a resource, write "nvidia.com/gpumem" under resources.limits`},
		{"annotation", "gpumem", `write "nvidia.com/gpumem" under`},
		{"annotation", "gpucores", `write "nvidia.com/gpucores" under`},
		{"annotation", "nvidia.com/gpu", `write "nvidia.com/gpu" under`},
		{"annotation", "gpu", ""},
		{"annotation", "priority", ""},
		{"annotation", "nvidia.com/use-gputypes", `did you mean annotation "nvidia.com/use-gputype"?`},
		{"annotation", "nvidia.com/use-gputpye", `did you mean annotation "nvidia.com/use-gputype"?`},
		{"annotation", "use-gpuuuid", `did you mean annotation "nvidia.com/use-gpuuuid"?`},
		{"annotation", "nvidia.com/gpu-scheduler-policy", `did you mean annotation "hami.io/gpu-scheduler-policy"?`},
		{"annotation", "nvidia.com/use-gputype", ""},
		{"annotation", "example.com/anything", ""},
		{"label", "nvidia.com/gpu", ""},
		{"label", "nvidia.com/gpumem", `label "nvidia.com/gpumem" has no effect: it is a resource`},
		{"label", "nvidia.com/numa-bind", `label "nvidia.com/numa-bind" has no effect: it is an annotation`},
		{"label", "nvidia.com/gpu.product", ""},
		{"resource", "nvidia.com/gpu-mem", `resource "nvidia.com/gpu-mem" is none that GPUs are asked for with: did you mean "nvidia.com/gpumem"?`},
		{"resource", "nvidia.com/gpucore", `did you mean "nvidia.com/gpucores"?`},
		{"resource", "nvidia.com/gpus", `did you mean "nvidia.com/gpu"?`},
		{"resource", "nvidia.com/mig-1g.5gb", ""},
		{"resource", "memory", ""},
		{"resource", "example.com/gpu", ""},
	} {
		pod := podOf(nil)
		switch c.where {
		case "annotation":
			pod.Annotations = map[string]string{c.key: "1"}
		case "label":
			pod.Labels = map[string]string{c.key: "1"}
		default:
			pod.Spec.Containers[0].Resources.Limits = amounts(c.key, "1")
			if c.key == "memory" {
				pod.Spec.Containers[0].Resources.Limits = nil
			}
		}
		_, warnings, errs := v.Parse(pod)
		if len(errs) > 0 {
			t.Errorf("%s %q: %v", c.where, c.key, errs)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s %q: warnings are %q, want %q", c.where, c.key, warnings, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "axc", 1}, {"abc", "abcd", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"gpumem", "gpu-mem", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: got %d, want %d", c.a, c.b, got, c.want)
		}
		if got := distance(c.b, c.a); got != c.want {
			t.Errorf("%q, %q: got %d, want %d", c.b, c.a, got, c.want)
		}
	}
}

// FuzzParse feeds any texts into the places that users write: there is always an answer, errors have a path, and what is
// accepted keeps the documented limits.
func FuzzParse(f *testing.F) {
	f.Add("GPU-1", "A100", "true", "mig", "binpack", "spread", "Required,level=NVLink")
	f.Add(`"]`, "\x00", "", "hami-core,", ",", "é", "None")
	v := Default()
	f.Fuzz(func(t *testing.T, uuid, kind, numa, mode, node, gpu, topology string) {
		demand, _, errs := v.Parse(podOf(amounts("gpu", "2", "gpumem", "3"), AnnotationUseUUID, uuid, AnnotationAvoidType, kind, AnnotationNUMA, numa,
			AnnotationMode, mode, AnnotationNodePolicy, node, AnnotationGPUPolicy, gpu, api.AnnotationTopology, topology))
		for _, err := range errs {
			if !strings.HasPrefix(err.Field, "metadata.annotations[") {
				t.Errorf("error without a path: %v", err)
			}
		}
		if len(errs) > 0 {
			return
		}
		for _, item := range append(demand.Placement.UseUUIDs, demand.Placement.AvoidTypes...) {
			if item == "" || len(item) > 64 || strings.ContainsAny(item, "\"'\\\n\r\x00,") {
				t.Errorf("accepted %q", item)
			}
		}
	})
}
