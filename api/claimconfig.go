// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// GPUClaimConfig is the opaque configuration that a ResourceClaim or
// DeviceClass hands to the driver gpu.topodra.dev.
type GPUClaimConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Topology says how well linked the GPUs must or should be. Nil leaves it
	// to the scheduler's default policy.
	Topology *TopologyConfig `json:"topology,omitempty"`

	// Sharing says how the limits of shared GPUs are kept. Nil leaves it to
	// the other configurations of the claim, and then to the defaults.
	Sharing *SharingConfig `json:"sharing,omitempty"`
}

// Policy says what the interconnect is worth to a claim.
type Policy string

const (
	// PolicyPreferred gets the best-linked set that is free, whatever it is.
	PolicyPreferred Policy = "Preferred"

	// PolicyRequired gets a set that meets Level and MinGBps, or none.
	PolicyRequired Policy = "Required"

	// PolicyNone leaves the choice to the allocator's first fit.
	PolicyNone Policy = "None"
)

// Level is the weakest kind of hop that the best ring through a set may have.
// A single GPU satisfies every level.
type Level string

const (
	// LevelAny accepts every hop; the value of a claim that names no level.
	LevelAny Level = ""

	// LevelNVLink accepts only NVLink between neighbours of the ring.
	LevelNVLink Level = "NVLink"

	// LevelPCIe accepts NVLink and PCIe paths that stay below one host bridge
	// (PIX, PXB).
	LevelPCIe Level = "PCIe"

	// LevelNUMA accepts NVLink and every path inside one NUMA node.
	LevelNUMA Level = "NUMA"
)

// TopologyConfig is a claim's wish or demand for interconnect.
type TopologyConfig struct {
	// Policy defaults to Preferred. Required needs Level, MinGBps or both,
	// and only Required allows them.
	Policy Policy `json:"policy,omitempty"`

	// Level defaults to LevelAny.
	Level Level `json:"level,omitempty"`

	// MinGBps is the least bandwidth of the set in gigabytes (10^9 bytes) per
	// second and direction: rings times link rate, or the weakest hop of the
	// best ring when that is not all NVLink. 0 demands none.
	MinGBps int32 `json:"minGBps,omitempty"`

	// Communicates says whether the GPUs exchange data. Nil means that two
	// GPUs or more do and a single one does not.
	Communicates *bool `json:"communicates,omitempty"`
}

// MaxMinGBps is the largest MinGBps that validation lets through; in MB/s it
// still fits into 32 bits.
const MaxMinGBps = math.MaxUint32 / 1000

// MinMBps returns MinGBps in megabytes (10^6 bytes) per second.
func (t *TopologyConfig) MinMBps() uint32 {
	if t.MinGBps <= 0 || t.MinGBps > MaxMinGBps {
		return 0
	}
	return uint32(t.MinGBps) * 1000
}

// DecodeGPUClaimConfig reads the JSON parameters of an opaque device
// configuration, fills in defaults and validates. apiVersion and kind must be
// present.
func DecodeGPUClaimConfig(raw []byte) (*GPUClaimConfig, error) {
	obj, err := decodeStrict(raw, nil)
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*GPUClaimConfig)
	if !ok {
		return nil, fmt.Errorf("decoding configuration: kind %q does not configure claims, use %q",
			obj.GetObjectKind().GroupVersionKind().Kind, KindGPUClaimConfig)
	}
	config.Default()
	if err := config.Validate().ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating %s: %w", KindGPUClaimConfig, err)
	}
	return config, nil
}

// Default fills in what the user left out.
func (c *GPUClaimConfig) Default() {
	if c.Topology != nil {
		c.Topology.Default()
	}
}

// Validate reports every problem with its field path.
func (c *GPUClaimConfig) Validate() field.ErrorList {
	var errs field.ErrorList
	if c.Topology != nil {
		errs = append(errs, c.Topology.Validate(field.NewPath("topology"))...)
	}
	if c.Sharing != nil {
		errs = append(errs, c.Sharing.Validate(field.NewPath("sharing"))...)
	}
	return errs
}

// Default fills in what the user left out.
func (t *TopologyConfig) Default() {
	if t.Policy == "" {
		t.Policy = PolicyPreferred
	}
}

// Validate reports every problem with its field path below path.
func (t *TopologyConfig) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch t.Policy {
	case PolicyPreferred, PolicyRequired, PolicyNone:
	default:
		errs = append(errs, field.NotSupported(path.Child("policy"), t.Policy,
			[]Policy{PolicyPreferred, PolicyRequired, PolicyNone}))
	}
	switch t.Level {
	case LevelAny, LevelNVLink, LevelPCIe, LevelNUMA:
	default:
		errs = append(errs, field.NotSupported(path.Child("level"), t.Level,
			[]Level{LevelNVLink, LevelPCIe, LevelNUMA}))
	}
	if t.MinGBps < 0 || t.MinGBps > MaxMinGBps {
		errs = append(errs, field.Invalid(path.Child("minGBps"), t.MinGBps,
			fmt.Sprintf("must be between 0 and %d gigabytes per second", MaxMinGBps)))
	}
	return append(errs, t.validateGuarantee(path)...)
}

// validateGuarantee ties the two limits to the only policy that keeps them.
func (t *TopologyConfig) validateGuarantee(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch t.Policy {
	case PolicyRequired:
		if t.Level == LevelAny && t.MinGBps == 0 {
			errs = append(errs, field.Required(path.Child("level"),
				"policy Required guarantees nothing without level, minGBps or both"))
		}
	default:
		if t.Level != LevelAny {
			errs = append(errs, field.Forbidden(path.Child("level"),
				fmt.Sprintf("only policy Required guarantees a level, policy is %q", t.Policy)))
		}
		if t.MinGBps != 0 {
			errs = append(errs, field.Forbidden(path.Child("minGBps"),
				fmt.Sprintf("only policy Required guarantees a bandwidth, policy is %q", t.Policy)))
		}
	}
	return errs
}
