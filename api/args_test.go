// SPDX-License-Identifier: Apache-2.0

package api

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
)

// defaultArgs spells the defaults out.
func defaultArgs() *TopologyDynamicResourcesArgs {
	return &TopologyDynamicResourcesArgs{
		TypeMeta:      metav1.TypeMeta{APIVersion: "gpu.topodra.dev/v1alpha1", Kind: "TopologyDynamicResourcesArgs"},
		DefaultPolicy: PolicyPreferred,
		TierPercent:   new(int32(10)),
		ScoreWeights:  &ScoreWeights{Quality: 60, Allocated: 30, Remaining: 10},
		Mix:           []TypicalClaim{{GPUs: 1, Weight: 50}, {GPUs: 2, Weight: 22}, {GPUs: 4, Weight: 20}, {GPUs: 8, Weight: 8}},
		MaxCandidates: new(int32(16)),
		PlanBudget:    &metav1.Duration{Duration: time.Second},
	}
}

func TestDecodeArgsDefaults(t *testing.T) {
	t.Parallel()
	for name, obj := range map[string]runtime.Object{
		"nothing":        nil,
		"nil arguments":  (*TopologyDynamicResourcesArgs)(nil),
		"nil raw":        (*runtime.Unknown)(nil),
		"no raw":         &runtime.Unknown{},
		"empty object":   &runtime.Unknown{Raw: []byte(`{}`)},
		"only type":      &runtime.Unknown{Raw: []byte(`{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"TopologyDynamicResourcesArgs"}`)},
		"empty own type": &TopologyDynamicResourcesArgs{},
	} {
		got, err := DecodeTopologyDynamicResourcesArgs(obj)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(defaultArgs(), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecodeArgsAllFields(t *testing.T) {
	t.Parallel()
	got, err := DecodeTopologyDynamicResourcesArgs(&runtime.Unknown{Raw: []byte(`{
		"filterTimeout":"5s", "bindingTimeout":"60s", "defaultPolicy":"None", "tierPercent":0,
		"scoreWeights":{"quality":1,"allocated":0,"remaining":2},
		"mix":[{"gpus":2,"memory":"40Gi","cores":50,"weight":3}],
		"drivers":[{"driver":"gpu.example.com","attributes":{"nvlinks":"links","nvlinkDomain":"other.example.com/domain"},"capacities":{"cores":"compute"}}],
		"maxCandidates":4, "planBudget":"20ms"}`)})
	if err != nil {
		t.Fatal(err)
	}
	want := defaultArgs()
	want.FilterTimeout = &metav1.Duration{Duration: 5 * time.Second}
	want.BindingTimeout = &metav1.Duration{Duration: time.Minute}
	want.DefaultPolicy = PolicyNone
	want.TierPercent = new(int32(0))
	want.ScoreWeights = &ScoreWeights{Quality: 1, Remaining: 2}
	want.Mix = []TypicalClaim{{GPUs: 2, Memory: new(resource.MustParse("40Gi")), Cores: 50, Weight: 3}}
	want.Drivers = []DriverMapping{{
		Driver: "gpu.example.com",
		Attributes: AttributeMapping{NVLinks: "links", NVLinkDomain: "other.example.com/domain",
			PCIeRoot: "resource.kubernetes.io/pcieRoot", NUMANode: "resource.kubernetes.io/numaNode", PCIBusID: "resource.kubernetes.io/pciBusID"},
		Capacities: CapacityMapping{Memory: "memory", Cores: "compute"},
	}}
	want.MaxCandidates = new(int32(4))
	want.PlanBudget = &metav1.Duration{Duration: 20 * time.Millisecond}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want.Drivers[0], got.MappingFor("gpu.example.com")); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeArgsRejects(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{`: `decoding configuration`,
		`{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig"}`: `kind is "GPUClaimConfig", want "TopologyDynamicResourcesArgs"`,
		`{"apiVersion":"v1","kind":"TopologyDynamicResourcesArgs"}`:         `apiVersion "v1", kind "TopologyDynamicResourcesArgs" is unknown here`,
		`{"tierPercnt":5}`:                                               `unknown field "tierPercnt"`,
		`{"mix":[{"gpu":5}]}`:                                            `unknown field "mix[0].gpu"`,
		`{"tierPercent":5,"tierPercent":6}`:                              `duplicate field "tierPercent"`,
		`{"filterTimeout":"-1s"}`:                                        `filterTimeout: Invalid value: "-1s": must not be negative`,
		`{"bindingTimeout":"10ms"}`:                                      `bindingTimeout: Invalid value: "10ms": must be at least 1s`,
		`{"defaultPolicy":"Required"}`:                                   `defaultPolicy: Unsupported value: "Required": supported values: "Preferred", "None"`,
		`{"tierPercent":51}`:                                             `tierPercent: Invalid value: 51: must be between 0 and 50`,
		`{"maxCandidates":0}`:                                            `maxCandidates: Invalid value: 0: must be between 1 and 1024`,
		`{"planBudget":"1us"}`:                                           `planBudget: Invalid value: "1µs": must be between 1ms and 10s`,
		`{"scoreWeights":{"quality":0}}`:                                 `at least one weight must be above 0`,
		`{"scoreWeights":{"quality":-1,"remaining":1}}`:                  `scoreWeights.quality: Invalid value: -1`,
		`{"mix":[{"gpus":0,"weight":1}]}`:                                `mix[0].gpus: Invalid value: 0: must be between 1 and 64`,
		`{"mix":[{"gpus":1}]}`:                                           `mix[0].weight: Invalid value: 0`,
		`{"mix":[{"gpus":1,"weight":1,"cores":5}]}`:                      `mix[0].cores: Forbidden: a whole GPU takes all cores`,
		`{"mix":[{"gpus":1,"weight":1,"memory":"0"}]}`:                   `mix[0].memory: Invalid value: "0": must be above 0`,
		`{"drivers":[{"driver":"Bad_Name"}]}`:                            `drivers[0].driver: Invalid value: "Bad_Name"`,
		`{"drivers":[{"driver":"gpu.topodra.dev"}]}`:                     `drivers[0].driver: Forbidden: the attributes of "gpu.topodra.dev" are fixed`,
		`{"drivers":[{"driver":"a.b"},{"driver":"a.b"}]}`:                `drivers[1].driver: Duplicate value: "a.b"`,
		`{"drivers":[{"driver":"a.b","attributes":{"pcie":"no-id"}}]}`:   `drivers[0].attributes.pcie: Invalid value: "no-id"`,
		`{"drivers":[{"driver":"a.b","attributes":{"numaNode":"/x"}}]}`:  `drivers[0].attributes.numaNode: Invalid value: "/x": domain: `,
		`{"drivers":[{"driver":"a.b","capacities":{"memory":"a/b/c"}}]}`: `drivers[0].capacities.memory: Invalid value: "a/b/c"`,
		`{"drivers":[{"driver":"a.b","capacities":{"slots":"` + strings.Repeat("x", 33) + `"}}]}`: `drivers[0].capacities.slots: Too long`,
	} {
		got, err := DecodeTopologyDynamicResourcesArgs(&runtime.Unknown{Raw: []byte(raw)})
		if err == nil {
			t.Errorf("%s: accepted: %+v", raw, got)
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"TopologyDynamicResources"`) {
			t.Errorf("%s: got error %q, want it to contain %q and the plugin's name", raw, err, want)
		}
	}
	if _, err := DecodeTopologyDynamicResourcesArgs(&GPUClaimConfig{}); err == nil || !strings.Contains(err.Error(), "got a *api.GPUClaimConfig") {
		t.Errorf("wrong type: got error %v", err)
	}
}

func TestDecodeArgsDoesNotChangeItsInput(t *testing.T) {
	t.Parallel()
	given := &TopologyDynamicResourcesArgs{Drivers: []DriverMapping{{Driver: "gpu.example.com"}}}
	if _, err := DecodeTopologyDynamicResourcesArgs(given); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&TopologyDynamicResourcesArgs{Drivers: []DriverMapping{{Driver: "gpu.example.com"}}}, given); diff != "" {
		t.Error(diff)
	}
}

func TestMappingFor(t *testing.T) {
	t.Parallel()
	args := defaultArgs()
	if diff := cmp.Diff(OwnMapping(), args.MappingFor(DriverName)); diff != "" {
		t.Error(diff)
	}
	want := DriverMapping{
		Driver:     "gpu.nvidia.com",
		Attributes: AttributeMapping{PCIeRoot: "resource.kubernetes.io/pcieRoot", NUMANode: "resource.kubernetes.io/numaNode", PCIBusID: "resource.kubernetes.io/pciBusID"},
		Capacities: CapacityMapping{Memory: "memory"},
	}
	if diff := cmp.Diff(want, args.MappingFor("gpu.nvidia.com")); diff != "" {
		t.Error(diff)
	}
	for _, mapping := range []DriverMapping{OwnMapping(), want} {
		if errs := mapping.validateNames(nil); len(errs) > 0 {
			t.Errorf("built-in mapping of %q: %v", mapping.Driver, errs)
		}
	}
}

// TestDeepCopy fills both kinds at random, and then checks that a copy is equal
// and that no pointer, slice or map in it leads to memory of the original.
func TestDeepCopy(t *testing.T) {
	t.Parallel()
	fill := randfill.NewWithSeed(1).NilChance(0.2).NumElements(1, 3).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63(), resource.BinarySI)
		})
	for range 200 {
		args, config := &TopologyDynamicResourcesArgs{}, &GPUClaimConfig{}
		fill.Fill(args)
		fill.Fill(config)
		argsCopy, configCopy := args.DeepCopyObject(), config.DeepCopyObject()
		if diff := cmp.Diff(runtime.Object(args), argsCopy); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(runtime.Object(config), configCopy); diff != "" {
			t.Fatal(diff)
		}
		requireDisjoint(t, "args", reflect.ValueOf(args), reflect.ValueOf(argsCopy))
		requireDisjoint(t, "config", reflect.ValueOf(config), reflect.ValueOf(configCopy))
	}
}

// requireDisjoint walks two equal values side by side.
func requireDisjoint(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() {
			return
		}
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", path)
		}
		requireDisjoint(t, path, a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() > 0 && a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", path)
		}
		for i := range a.Len() {
			requireDisjoint(t, path+"[]", a.Index(i), b.Index(i))
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if a.Type().Field(i).IsExported() {
				requireDisjoint(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		}
	case reflect.Map:
		t.Errorf("%s: maps are not expected here", path)
	default:
	}
}

func FuzzDecodeArgs(f *testing.F) {
	f.Add([]byte(`{"tierPercent":5,"mix":[{"gpus":1,"weight":1,"memory":"1Gi"}],"drivers":[{"driver":"a.b"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		args, err := DecodeTopologyDynamicResourcesArgs(&runtime.Unknown{Raw: raw})
		if err != nil {
			return
		}
		again, err := DecodeTopologyDynamicResourcesArgs(args)
		if err != nil {
			t.Fatalf("accepted arguments are rejected the second time: %v", err)
		}
		if diff := cmp.Diff(args, again); diff != "" {
			t.Errorf("defaulting twice changes the value: %s", diff)
		}
	})
}
