// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// header is what every claim configuration starts with.
const header = `"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig"`

func TestDecodeGPUClaimConfig(t *testing.T) {
	t.Parallel()
	meta := metav1.TypeMeta{APIVersion: "gpu.topodra.dev/v1alpha1", Kind: "GPUClaimConfig"}
	for name, tc := range map[string]struct {
		raw  string
		want *TopologyConfig
	}{
		"no topology":              {`{` + header + `}`, nil},
		"empty topology":           {`{` + header + `,"topology":{}}`, &TopologyConfig{Policy: PolicyPreferred}},
		"none":                     {`{` + header + `,"topology":{"policy":"None"}}`, &TopologyConfig{Policy: PolicyNone}},
		"level":                    {`{` + header + `,"topology":{"policy":"Required","level":"NVLink"}}`, &TopologyConfig{Policy: PolicyRequired, Level: LevelNVLink}},
		"bandwidth":                {`{` + header + `,"topology":{"policy":"Required","minGBps":50}}`, &TopologyConfig{Policy: PolicyRequired, MinGBps: 50}},
		"both":                     {`{` + header + `,"topology":{"policy":"Required","level":"NUMA","minGBps":12}}`, &TopologyConfig{Policy: PolicyRequired, Level: LevelNUMA, MinGBps: 12}},
		"communicates defaulted":   {`{` + header + `,"topology":{"communicates":false}}`, &TopologyConfig{Policy: PolicyPreferred, Communicates: new(false)}},
		"communicates with policy": {`{` + header + `,"topology":{"policy":"None","communicates":true}}`, &TopologyConfig{Policy: PolicyNone, Communicates: new(true)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := DecodeGPUClaimConfig([]byte(tc.raw))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&GPUClaimConfig{TypeMeta: meta, Topology: tc.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeGPUClaimConfigRejects(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ raw, want string }{
		"empty":               {``, `decoding configuration: `},
		"no kind":             {`{"topology":{}}`, `set apiVersion "gpu.topodra.dev/v1alpha1" and a kind`},
		"no version":          {`{"kind":"GPUClaimConfig"}`, `set apiVersion "gpu.topodra.dev/v1alpha1" and a kind`},
		"other version":       {`{"apiVersion":"gpu.topodra.dev/v1","kind":"GPUClaimConfig"}`, `apiVersion "gpu.topodra.dev/v1", kind "GPUClaimConfig" is unknown here`},
		"arguments":           {`{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"TopologyDynamicResourcesArgs"}`, `kind "TopologyDynamicResourcesArgs" does not configure claims`},
		"unknown field":       {`{` + header + `,"topology":{"polcy":"Required"}}`, `unknown field "topology.polcy"`},
		"unknown top field":   {`{` + header + `,"shares":{}}`, `unknown field "shares"`},
		"field in wrong case": {`{` + header + `,"topology":{"Policy":"None"}}`, `unknown field "topology.Policy"`},
		"duplicate field":     {`{` + header + `,"topology":{"policy":"None","policy":"None"}}`, `duplicate field "topology.policy"`},
		"not an object":       {`[1]`, `decoding configuration: `},
		"fraction":            {`{` + header + `,"topology":{"policy":"Required","minGBps":1.5}}`, `decoding configuration: `},
		"bad policy":          {`{` + header + `,"topology":{"policy":"required"}}`, `topology.policy: Unsupported value: "required": supported values: "Preferred", "Required", "None"`},
		"bad level":           {`{` + header + `,"topology":{"policy":"Required","level":"NVLINK"}}`, `topology.level: Unsupported value: "NVLINK"`},
		"negative":            {`{` + header + `,"topology":{"policy":"Required","minGBps":-1}}`, `topology.minGBps: Invalid value: -1: must be between 0 and 4294967`},
		"too much":            {`{` + header + `,"topology":{"policy":"Required","minGBps":4294968}}`, `topology.minGBps: Invalid value: 4294968`},
		"level preferred":     {`{` + header + `,"topology":{"level":"NVLink"}}`, `topology.level: Forbidden: only policy Required guarantees a level, policy is "Preferred"`},
		"bandwidth none":      {`{` + header + `,"topology":{"policy":"None","minGBps":5}}`, `topology.minGBps: Forbidden: only policy Required guarantees a bandwidth, policy is "None"`},
		"empty guarantee":     {`{` + header + `,"topology":{"policy":"Required"}}`, `topology.level: Required value: policy Required guarantees nothing without level, minGBps or both`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := DecodeGPUClaimConfig([]byte(tc.raw))
			if err == nil {
				t.Fatalf("accepted: %+v", got)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %q, want it to contain %q", err, tc.want)
			}
		})
	}
}

func TestMinMBps(t *testing.T) {
	t.Parallel()
	for gbps, want := range map[int32]uint32{0: 0, -5: 0, 1: 1000, 450: 450000, MaxMinGBps: 4294967000, MaxMinGBps + 1: 0} {
		if got := (&TopologyConfig{MinGBps: gbps}).MinMBps(); got != want {
			t.Errorf("%d GB/s: got %d MB/s, want %d", gbps, got, want)
		}
	}
}

func FuzzDecodeGPUClaimConfig(f *testing.F) {
	f.Add([]byte(`{` + header + `,"topology":{"policy":"Required","level":"PCIe","minGBps":7}}`))
	f.Add([]byte(`{"kind":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := DecodeGPUClaimConfig(raw)
		if err != nil {
			return
		}
		if errs := config.Validate(); len(errs) > 0 {
			t.Errorf("accepted, but invalid: %v", errs)
		}
		again := config.DeepCopy()
		again.Default()
		if diff := cmp.Diff(config, again); diff != "" {
			t.Errorf("defaulting twice changes the value: %s", diff)
		}
	})
}
