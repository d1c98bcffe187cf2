// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
)

const configHead = `{"apiVersion":"gpu.topodra.dev/v1alpha1","kind":"GPUClaimConfig",`

func TestDecodeSharing(t *testing.T) {
	t.Parallel()
	got, err := DecodeGPUClaimConfigFrom([]byte(configHead+
		`"sharing":{"taskPriority":"High","corePolicy":"Disable","logLevel":"Debug","enforcement":"None"}}`),
		resourceapi.AllocationConfigSourceClass)
	if err != nil {
		t.Fatal(err)
	}
	want := &SharingConfig{TaskPriority: TaskPriorityHigh, CorePolicy: CorePolicyDisable, LogLevel: LogLevelDebug, Enforcement: EnforcementNone}
	if diff := cmp.Diff(want, got.Sharing); diff != "" {
		t.Error(diff)
	}
	if got.Topology != nil {
		t.Errorf("sharing alone made a topology: %+v", got.Topology)
	}
	if _, err := DecodeGPUClaimConfigFrom([]byte(configHead+`"sharing":{}}`), resourceapi.AllocationConfigSourceClaim); err != nil {
		t.Errorf("an empty sharing is refused: %v", err)
	}
}

// TestD18_SharingIsValidated: a configuration that means nothing is an error
// with the field's name, never ignored.
func TestD18_SharingIsValidated(t *testing.T) {
	t.Parallel()
	for rest, want := range map[string]string{
		`"sharing":{"taskPriority":"high"}}`:  `sharing.taskPriority: Unsupported value: "high": supported values: "High", "Low"`,
		`"sharing":{"corePolicy":"Off"}}`:     `sharing.corePolicy: Unsupported value: "Off"`,
		`"sharing":{"logLevel":"4"}}`:         `sharing.logLevel: Unsupported value: "4"`,
		`"sharing":{"enforcement":"none"}}`:   `sharing.enforcement: Unsupported value: "none"`,
		`"sharing":{"priority":"High"}}`:      `unknown field "sharing.priority"`,
		`"sharing":{"enforcement":"None"}}`:   `sharing.enforcement: Forbidden: only the configuration of a DeviceClass may take limits away`,
		`"sharing":{"corePolicy":"Disable"}}`: `sharing.corePolicy: Forbidden: only the configuration of a DeviceClass may take limits away`,
	} {
		got, err := DecodeGPUClaimConfigFrom([]byte(configHead+rest), resourceapi.AllocationConfigSourceClaim)
		if err == nil {
			t.Errorf("%s: accepted as %+v", rest, got)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %q, want it to contain %q", rest, err, want)
		}
	}
}

func TestEffectiveSharing(t *testing.T) {
	t.Parallel()
	with := func(s SharingConfig) *GPUClaimConfig { return &GPUClaimConfig{Sharing: &s} }
	for name, test := range map[string]struct {
		class, claim []*GPUClaimConfig
		want         SharingConfig
	}{
		"defaults": {
			want: SharingConfig{TaskPriorityLow, CorePolicyDefault, LogLevelWarning, EnforcementEnforced},
		},
		"topology alone changes nothing": {
			class: []*GPUClaimConfig{with(SharingConfig{LogLevel: LogLevelInfo})},
			claim: []*GPUClaimConfig{{Topology: &TopologyConfig{Policy: PolicyNone}}},
			want:  SharingConfig{TaskPriorityLow, CorePolicyDefault, LogLevelInfo, EnforcementEnforced},
		},
		"later wins field by field": {
			class: []*GPUClaimConfig{with(SharingConfig{LogLevel: LogLevelInfo, TaskPriority: TaskPriorityHigh})},
			claim: []*GPUClaimConfig{with(SharingConfig{LogLevel: LogLevelOff}), with(SharingConfig{LogLevel: LogLevelDebug, CorePolicy: CorePolicyForce})},
			want:  SharingConfig{TaskPriorityHigh, CorePolicyForce, LogLevelDebug, EnforcementEnforced},
		},
		"the class has the last word on limits": {
			class: []*GPUClaimConfig{with(SharingConfig{CorePolicy: CorePolicyForce, Enforcement: EnforcementNone})},
			claim: []*GPUClaimConfig{with(SharingConfig{CorePolicy: CorePolicyDefault, Enforcement: EnforcementEnforced, TaskPriority: TaskPriorityHigh})},
			want:  SharingConfig{TaskPriorityHigh, CorePolicyForce, LogLevelWarning, EnforcementNone},
		},
	} {
		if diff := cmp.Diff(test.want, EffectiveSharing(test.class, test.claim)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
