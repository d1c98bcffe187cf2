// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseTopologyAnnotation(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]TopologyConfig{
		"Preferred":                            {Policy: PolicyPreferred},
		"None":                                 {Policy: PolicyNone},
		"Required,level=NVLink":                {Policy: PolicyRequired, Level: LevelNVLink},
		"Required,minGBps=50,level=PCIe":       {Policy: PolicyRequired, Level: LevelPCIe, MinGBps: 50},
		" Required , level = NUMA ":            {Policy: PolicyRequired, Level: LevelNUMA},
		"Preferred,communicates=false":         {Policy: PolicyPreferred, Communicates: new(false)},
		"Required,minGBps=3,communicates=true": {Policy: PolicyRequired, MinGBps: 3, Communicates: new(true)},
	} {
		got, err := ParseTopologyAnnotation(value)
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%q: %s", value, diff)
		}
	}
}

func TestParseTopologyAnnotationRejects(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                               `policy: Unsupported value: ""`,
		"required":                       `policy: Unsupported value: "required"`,
		"level=NVLink":                   `policy: Unsupported value: "level=NVLink"`,
		"Required":                       `level: Required value`,
		"Required,":                      `part "" is not of the form name=value`,
		"Required,NVLink":                `part "NVLink" is not of the form name=value`,
		"Required,level=":                `"level" has no value`,
		"Required,level=nvlink":          `level: Unsupported value: "nvlink"`,
		"Required,minGBps=1.5":           `minGBps: Invalid value: "1.5": must be a whole number of gigabytes per second`,
		"Required,minGBps=99999999999":   `minGBps: Invalid value`,
		"Required,minGBps=-4":            `minGBps: Invalid value: -4`,
		"Required,speed=5":               `"speed" is unknown; known are "level", "minGBps" and "communicates"`,
		"Required,level=PCIe,level=PCIe": `"level" is there twice`,
		"Preferred,communicates=yes":     `communicates: Unsupported value: "yes"`,
		"Preferred,level=NVLink":         `level: Forbidden`,
		"None,minGBps=5":                 `minGBps: Forbidden`,
		`{"policy":"Preferred"}`:         `policy: Unsupported value`,
	} {
		got, err := ParseTopologyAnnotation(value)
		if err == nil {
			t.Errorf("%q: accepted as %+v", value, got)
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), AnnotationTopology) {
			t.Errorf("%q: got error %q, want it to contain %q and the annotation's name", value, err, want)
		}
	}
}

func FuzzParseTopologyAnnotation(f *testing.F) {
	for _, seed := range []string{"Preferred", "Required,level=NVLink,minGBps=50", "None,communicates=true", ",=,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		config, err := ParseTopologyAnnotation(value)
		if err != nil {
			return
		}
		again, err := ParseTopologyAnnotation(FormatTopologyAnnotation(config))
		if err != nil {
			t.Fatalf("%q: formatted value does not parse: %v", value, err)
		}
		if diff := cmp.Diff(config, again); diff != "" {
			t.Errorf("%q: round trip: %s", value, diff)
		}
	})
}
