// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/classic"
)

// options are those of a cluster with two kinds of GPUs.
func options() Options {
	return Options{
		Resources: classic.Default().Resources, ClassGPU: api.DeviceClassGPU, ClassMIG: api.DeviceClassMIG, ShareInitContainers: true,
		GPUs: []GPU{
			{"GPU-a", "Tesla V100-SXM2-32GB", 32510 * mebi},
			{"GPU-b", "NVIDIA A100-SXM4-80GB", 81251 * mebi},
			{"GPU-c", "NVIDIA A100-SXM4-80GB", 81251 * mebi},
		},
	}
}

// need makes a need of an app container unless the name starts with "init" or "sidecar".
func need(name string, gpus int, amount classic.Amount) classic.Need {
	n := classic.Need{Container: name, Kind: classic.App, Path: field.NewPath("spec", "containers").Index(0), GPUs: gpus, PerGPU: amount}
	switch {
	case strings.HasPrefix(name, "init"):
		n.Kind = classic.Init
	case strings.HasPrefix(name, "sidecar"):
		n.Kind = classic.Sidecar
	}
	return n
}

func plan(t *testing.T, demand *classic.Demand, o Options) *Plan {
	t.Helper()
	p, errs := New(demand, o)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return p
}

var (
	whole = classic.Amount{}
	share = classic.Amount{MemoryMiB: 8000, CoresPercent: 25}
	half  = classic.Amount{MemoryPercent: 50}
)

// TestPlans compares whole claims with files: what a person reads in a review is what users get.
func TestPlans(t *testing.T) {
	t.Parallel()
	for name, demand := range map[string]*classic.Demand{
		"whole":   {Needs: []classic.Need{need("app", 4, whole)}},
		"share":   {Needs: []classic.Need{need("app", 2, share)}},
		"percent": {Needs: []classic.Need{need("app", 1, half)}},
		"everything": {
			Needs: []classic.Need{
				need("init", 1, share), need("sidecar", 1, classic.Amount{MemoryMiB: 500, Priority: api.TaskPriorityHigh}),
				need("app", 3, share), need("app-2", 1, classic.Amount{MemoryPercent: 30, CoresPercent: 10, Priority: api.TaskPriorityLow}),
			},
			Placement: classic.Placement{
				UseUUIDs: []string{"GPU-b", "GPU-c"}, AvoidUUIDs: []string{"GPU-x"}, UseTypes: []string{"a100", "h100"}, AvoidTypes: []string{"v100"},
				OneNUMANode: true, Topology: &api.TopologyConfig{Policy: api.PolicyRequired, Level: api.LevelNVLink},
			},
		},
		"mig": {
			Needs:     []classic.Need{need("app", 2, classic.Amount{MemoryMiB: 5000})},
			Placement: classic.Placement{MIG: true, UseUUIDs: []string{"GPU-a"}, UseTypes: []string{"a100"}},
		},
		"two-containers": {Needs: []classic.Need{need("a", 1, share), need("b", 1, share)}},
	} {
		p := plan(t, demand, options())
		got, err := yaml.Marshal(struct {
			Spec resourceapi.ResourceClaimSpec
			Uses []Use
		}{p.Spec, p.Uses})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, got)
	}
}

// golden compares with testdata/NAME.yaml; with TOPODRA_UPDATE_GOLDEN=1 it writes the file instead.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".yaml")
	if os.Getenv("TOPODRA_UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

// usesText is "container=request,request …" with counts of the requests.
func usesText(p *Plan) string {
	count := map[string]int64{}
	for i := range p.Spec.Devices.Requests {
		r := &p.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			count[r.Name] = r.Exactly.Count
		} else {
			count[r.Name] = r.FirstAvailable[0].Count
		}
	}
	var parts []string
	for _, use := range p.Uses {
		var requests []string
		for _, r := range use.Requests {
			requests = append(requests, fmt.Sprintf("%s×%d", strings.TrimPrefix(r, "gpu-"), count[r]))
		}
		parts = append(parts, use.Container+"="+strings.Join(requests, ","))
	}
	return strings.Join(parts, " ")
}

func TestContainersShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		needs       []classic.Need
		apart       bool
		want        string
		constraints int
	}{
		{[]classic.Need{need("app", 2, whole)}, false, "app=0×2", 0},
		{[]classic.Need{need("a", 1, whole), need("b", 2, whole)}, false, "a=0×1 b=1×2", 0},
		// An init container gets some of the app's.
		{[]classic.Need{need("init", 1, whole), need("app", 8, whole)}, false, "init=0×1 app=0×1,1×7", 0},
		{[]classic.Need{need("init", 8, whole), need("app", 8, whole)}, false, "init=0×8 app=0×8", 0},
		{[]classic.Need{need("init", 3, whole), need("a", 2, whole), need("b", 2, whole)}, false, "init=0×2,1×1 a=0×2 b=1×1,2×1", 0},
		{[]classic.Need{need("init", 4, whole), need("app", 2, whole)}, false, "init=0×2,1×2 app=0×2", 0},
		{[]classic.Need{need("init-1", 1, whole), need("init-2", 3, whole), need("app", 4, whole)}, false, "init-1=0×1 init-2=0×1,1×2 app=0×1,1×2,2×1", 0},
		// Shares of one container only, so that a second one stays free to share its GPU.
		{[]classic.Need{need("init", 1, share), need("app", 2, share)}, false, "init=0×1 app=0×1,1×1", 1},
		{[]classic.Need{need("init", 2, share), need("a", 1, share), need("b", 1, share)}, false, "init=2×2 a=0×1 b=1×1", 0},
		{[]classic.Need{need("init", 1, share), need("app", 1, share)}, true, "init=1×1 app=0×1", 0},
		{[]classic.Need{need("init", 1, whole), need("app", 1, whole)}, true, "init=0×1 app=0×1", 0},
		// Other amounts are other requests.
		{[]classic.Need{need("init", 1, whole), need("app", 1, share)}, false, "init=1×1 app=0×1", 0},
		// A sidecar runs beside the init containers that follow it.
		{[]classic.Need{need("sidecar", 1, whole), need("init", 1, whole)}, false, "sidecar=0×1 init=1×1", 0},
		{[]classic.Need{need("init", 1, whole), need("sidecar", 1, whole)}, false, "init=0×1 sidecar=0×1", 0},
		{[]classic.Need{need("sidecar", 1, share), need("app", 1, share)}, false, "sidecar=0×1 app=1×1", 0},
		// Init containers share with each other.
		{[]classic.Need{need("init-1", 1, share), need("init-2", 2, share)}, false, "init-1=0×1 init-2=0×1,1×1", 1},
	} {
		o := options()
		o.ShareInitContainers = !c.apart
		p := plan(t, &classic.Demand{Needs: c.needs}, o)
		if got := usesText(p); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if got := len(p.Spec.Devices.Constraints); got != c.constraints {
			t.Errorf("%s: got %d constraints, want %d", c.want, got, c.constraints)
		}
	}
}

// TestSharingProperties draws pods and checks them against the definition: who runs at the same time shares nothing, everybody
// gets distinct GPUs of its own amount, and pods with whole GPUs hold no more than they can use at once.
func TestSharingProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var needs []classic.Need
		for i := range rapid.IntRange(1, 5).Draw(t, "containers") {
			kind := rapid.SampledFrom([]string{"init", "sidecar", "app"}).Draw(t, "kind")
			needs = append(needs, need(fmt.Sprintf("%s-%d", kind, i), rapid.IntRange(1, 4).Draw(t, "gpus"), rapid.SampledFrom([]classic.Amount{whole, share, half}).Draw(t, "amount")))
		}
		slices.SortStableFunc(needs, func(a, b classic.Need) int { return min(int(a.Kind), 2)/2 - min(int(b.Kind), 2)/2 })
		all := units(needs, true)
		got := map[int]int{}
		for _, u := range all {
			for x, a := range u.users {
				got[a]++
				if u.amount != needs[a].PerGPU {
					t.Fatalf("container %q uses amount %v, wants %v", needs[a].Container, u.amount, needs[a].PerGPU)
				}
				for _, b := range u.users[x+1:] {
					if together(needs, a, b) {
						t.Fatalf("%q and %q run together and use the same unit", needs[a].Container, needs[b].Container)
					}
				}
			}
		}
		for i, n := range needs {
			if got[i] != n.GPUs {
				t.Fatalf("container %q has %d, wants %d", n.Container, got[i], n.GPUs)
			}
		}
		if wholeOnly := !slices.ContainsFunc(needs, func(n classic.Need) bool { return n.PerGPU != whole }); wholeOnly && len(all) != peak(needs) {
			t.Fatalf("the pod holds %d whole GPUs, it uses at most %d at once", len(all), peak(needs))
		}
		p, errs := New(&classic.Demand{Needs: needs}, options())
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		checkDistinct(t, needs, p)
	})
}

// together says whether two containers can run at the same time; a < b.
func together(needs []classic.Need, a, b int) bool {
	first, second := needs[a].Kind, needs[b].Kind
	return first != classic.Init && (second != classic.Init || first == classic.Sidecar)
}

// peak is the most GPUs that the pod uses at any time.
func peak(needs []classic.Need) int {
	most, running := 0, 0
	for _, n := range needs {
		if n.Kind == classic.Init {
			most = max(most, running+n.GPUs)
		} else {
			running += n.GPUs
		}
	}
	return max(most, running)
}

// checkDistinct fails if a container with shares from several requests has no constraint over exactly these.
func checkDistinct(t *rapid.T, needs []classic.Need, p *Plan) {
	t.Helper()
	for i, use := range p.Uses {
		if len(use.Requests) < 2 || needs[i].PerGPU.Whole() {
			continue
		}
		if !slices.ContainsFunc(p.Spec.Devices.Constraints, func(c resourceapi.DeviceConstraint) bool {
			return slices.Equal(c.Requests, use.Requests) && c.DistinctAttribute != nil && *c.DistinctAttribute == "gpu.topodra.dev/uuid"
		}) {
			t.Fatalf("nothing keeps the GPUs of container %q apart: %v", use.Container, p.Spec.Devices.Constraints)
		}
	}
}

func TestPercentOfEachSize(t *testing.T) {
	t.Parallel()
	o := options()
	o.MemorySizesMiB = []int64{48 * 1024}
	p := plan(t, &classic.Demand{Needs: []classic.Need{need("app", 1, classic.Amount{MemoryPercent: 33, CoresPercent: 7})}}, o)
	got := map[string]string{}
	var order []string
	for _, sub := range p.Spec.Devices.Requests[0].FirstAvailable {
		memory, cores := sub.Capacity.Requests[api.CapacityMemory], sub.Capacity.Requests[api.CapacityCores]
		got[sub.Name] = memory.String() + " " + cores.String()
		order = append(order, sub.Name)
	}
	// 32510 × .33 = 10728.3, 49152 × .33 = 16220.16, 81251 × .33 = 26812.83
	want := map[string]string{"32510mi": "10728Mi 7", "48gi": "16220Mi 7", "81251mi": "26812Mi 7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"32510mi", "48gi", "81251mi"}, order); diff != "" {
		t.Error(diff)
	}
	for percent := int64(1); percent < 100; percent++ {
		for _, size := range []int64{mebi, 15109 * mebi, 40536 * mebi, 81251 * mebi} {
			part := percentMiB(size, percent)
			if parts := 100 / percent; size >= 100*mebi && part*parts > size/mebi {
				t.Errorf("%d parts of %d %% of %d do not fit", parts, percent, size)
			}
			if part < 1 {
				t.Errorf("%d %% of %d is %d", percent, size, part)
			}
		}
	}
}

func TestPercentFollowsSelectors(t *testing.T) {
	t.Parallel()
	names := func(p classic.Placement) string {
		plan := plan(t, &classic.Demand{Needs: []classic.Need{need("app", 1, half)}, Placement: p}, options())
		var list []string
		for _, sub := range plan.Spec.Devices.Requests[0].FirstAvailable {
			list = append(list, sub.Name)
		}
		return strings.Join(list, " ")
	}
	for _, c := range []struct {
		placement classic.Placement
		want      string
	}{
		{classic.Placement{}, "32510mi 81251mi"},
		{classic.Placement{UseTypes: []string{"v100"}}, "32510mi"},
		{classic.Placement{UseTypes: []string{"nvidia-nvidia a100"}}, "81251mi"},
		{classic.Placement{AvoidTypes: []string{"v100"}}, "81251mi"},
		{classic.Placement{UseUUIDs: []string{"GPU-a"}}, "32510mi"},
		{classic.Placement{AvoidUUIDs: []string{"GPU-a"}}, "81251mi"},
	} {
		if got := names(c.placement); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.placement, got, c.want)
		}
	}
}

func TestPercentOfNothing(t *testing.T) {
	t.Parallel()
	o := options()
	demand := &classic.Demand{Needs: []classic.Need{need("app", 1, half), need("other", 1, whole)}, Placement: classic.Placement{UseTypes: []string{"b200"}}}
	_, errs := New(demand, o)
	if len(errs) != 1 || errs[0].Field != "spec.containers[0].resources.limits[nvidia.com/gpumem-percentage]" || !strings.Contains(errs[0].Error(), "ask for nvidia.com/gpumem instead") {
		t.Errorf("got %v", errs)
	}
	o.MemorySizesMiB = []int64{1000}
	if _, errs := New(demand, o); len(errs) > 0 {
		t.Errorf("with a configured size: %v", errs)
	}
	if _, errs := New(&classic.Demand{Needs: []classic.Need{need("app", 1, share)}}, Options{}); len(errs) > 0 {
		t.Errorf("without a percentage: %v", errs)
	}
}

func TestTooManySizes(t *testing.T) {
	t.Parallel()
	o := options()
	o.GPUs = nil
	for i := range int64(12) {
		for range i/2 + 1 { // pairs of sizes with equally many GPUs
			o.GPUs = append(o.GPUs, GPU{MemoryBytes: (20 + i) * 1024 * mebi})
		}
	}
	o.MemorySizesMiB = []int64{5 * 1024}
	p := plan(t, &classic.Demand{Needs: []classic.Need{need("app", 1, half)}}, o)
	var got []string
	for _, sub := range p.Spec.Devices.Requests[0].FirstAvailable {
		got = append(got, sub.Name)
	}
	if diff := cmp.Diff([]string{"5gi", "25gi", "26gi", "27gi", "28gi", "29gi", "30gi", "31gi"}, got); diff != "" {
		t.Error(diff)
	}
	want := "there are more than 8 sizes of GPU memory: the pod does not get GPUs with 20Gi, 21Gi, 22Gi, 23Gi, 24Gi; use annotation nvidia.com/use-gputype to choose others"
	if diff := cmp.Diff([]string{want}, p.Warnings); diff != "" {
		t.Error(diff)
	}
	if p := plan(t, &classic.Demand{Needs: []classic.Need{need("app", 1, share)}}, o); len(p.Warnings) > 0 {
		t.Errorf("no percentage, but %q", p.Warnings)
	}
}

func TestTooManyGPUs(t *testing.T) {
	t.Parallel()
	_, errs := New(&classic.Demand{Needs: []classic.Need{need("a", 20, whole), need("b", 13, whole)}}, options())
	if len(errs) != 1 || errs[0].Error() != "spec: Invalid value: 33: GPUs of all containers together: a claim holds at most 32" {
		t.Errorf("got %v", errs)
	}
	if _, errs := New(&classic.Demand{Needs: []classic.Need{need("init", 20, whole), need("b", 32, whole)}}, options()); len(errs) > 0 {
		t.Errorf("what is not used at once counts: %v", errs)
	}
}

// TestNamesDoNotMatter makes equal specs of equal demands, as templates are named by content.
func TestNamesDoNotMatter(t *testing.T) {
	t.Parallel()
	encode := func(a, b string) string {
		p := plan(t, &classic.Demand{Needs: []classic.Need{need(a, 2, share), need(b, 1, half)}}, options())
		data, err := json.Marshal(p.Spec)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if a, b := encode("a", "b"), encode("trainer", "logger"); a != b {
		t.Error(cmp.Diff(a, b))
	}
}

func TestConfigurationsAreValid(t *testing.T) {
	t.Parallel()
	demand := &classic.Demand{
		Needs: []classic.Need{
			need("a", 1, classic.Amount{MemoryMiB: 1, Priority: api.TaskPriorityHigh}), need("b", 1, classic.Amount{MemoryMiB: 1, Priority: api.TaskPriorityLow}),
			need("c", 1, classic.Amount{MemoryMiB: 1}),
		},
	}
	p := plan(t, demand, options())
	var got []string
	for _, config := range p.Spec.Devices.Config {
		decoded, err := api.DecodeGPUClaimConfigFrom(config.Opaque.Parameters.Raw, resourceapi.AllocationConfigSourceClaim)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(config.Requests, ",")
		if decoded.Sharing != nil {
			text += " " + string(decoded.Sharing.TaskPriority)
		}
		if decoded.Topology != nil {
			text += fmt.Sprintf(" %s %t", decoded.Topology.Policy, *decoded.Topology.Communicates)
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{" Preferred false", "gpu-0 High", "gpu-1 Low"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: ClaimName}, {Name: "mine"}},
		InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{
			{Name: "app", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "mine"}}}},
			{Name: "plain"},
		},
	}}
	p := plan(t, &classic.Demand{Needs: []classic.Need{need("init", 1, whole), need("app", 2, whole)}}, options())
	p.Apply(pod, "template-1")
	const name = ClaimName + "-2"
	want := corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: ClaimName}, {Name: "mine"}, {Name: name, ResourceClaimTemplateName: new("template-1")}},
		InitContainers: []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: name, Request: "gpu-0"}}}}},
		Containers: []corev1.Container{
			{Name: "app", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "mine"}, {Name: name, Request: "gpu-0"}, {Name: name, Request: "gpu-1"}}}},
			{Name: "plain"},
		},
	}
	if diff := cmp.Diff(want, pod.Spec); diff != "" {
		t.Error(diff)
	}
}
