// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SharingConfig says how the limits of shared GPUs are kept. It has no effect
// on whole GPUs and on devices allocated for admin access, which have none.
//
// Two fields take limits away and therefore belong to whoever owns the
// DeviceClass: Enforcement None and CorePolicy Disable. A claim that asks for
// them is refused, see ValidateSource.
type SharingConfig struct {
	// TaskPriority orders the kernels of containers on one GPU. Default Low.
	TaskPriority TaskPriority `json:"taskPriority,omitempty"`

	// CorePolicy says when the compute limit holds. Default Default.
	CorePolicy CorePolicy `json:"corePolicy,omitempty"`

	// LogLevel of the enforcing library inside the container. Default Warning.
	LogLevel LogLevel `json:"logLevel,omitempty"`

	// Enforcement says whether limits are kept at all. Default Enforced.
	Enforcement Enforcement `json:"enforcement,omitempty"`
}

// TaskPriority orders the kernels of containers on one GPU.
type TaskPriority string

const (
	// TaskPriorityHigh goes first: lower ones wait while it has work.
	TaskPriorityHigh TaskPriority = "High"

	// TaskPriorityLow is the default.
	TaskPriorityLow TaskPriority = "Low"
)

// CorePolicy says when a compute limit holds.
type CorePolicy string

const (
	// CorePolicyDefault leaves it to the enforcing library: a container that
	// is alone on its GPU may be let loose.
	CorePolicyDefault CorePolicy = "Default"

	// CorePolicyForce keeps the limit always.
	CorePolicyForce CorePolicy = "Force"

	// CorePolicyDisable never limits compute. Only a DeviceClass may say so.
	CorePolicyDisable CorePolicy = "Disable"
)

// LogLevel is how much the enforcing library writes to the container's
// standard error.
type LogLevel string

// Levels, each including those before it.
const (
	LogLevelOff     LogLevel = "Off"
	LogLevelError   LogLevel = "Error"
	LogLevelWarning LogLevel = "Warning"
	LogLevelInfo    LogLevel = "Info"
	LogLevelDebug   LogLevel = "Debug"
)

// Enforcement says whether limits are kept.
type Enforcement string

const (
	// EnforcementEnforced keeps the limits or does not start the container.
	EnforcementEnforced Enforcement = "Enforced"

	// EnforcementNone only counts: shares are booked and nothing stops a
	// container from using more. Only a DeviceClass may say so.
	EnforcementNone Enforcement = "None"
)

// Validate reports every problem with its field path below path. Empty fields
// are fine: they mean the default, or what another configuration of the same
// claim says.
func (s *SharingConfig) Validate(path *field.Path) field.ErrorList {
	return append(append(append(
		validateChoice(path.Child("taskPriority"), s.TaskPriority, TaskPriorityHigh, TaskPriorityLow),
		validateChoice(path.Child("corePolicy"), s.CorePolicy, CorePolicyDefault, CorePolicyForce, CorePolicyDisable)...),
		validateChoice(path.Child("logLevel"), s.LogLevel, LogLevelOff, LogLevelError, LogLevelWarning, LogLevelInfo, LogLevelDebug)...),
		validateChoice(path.Child("enforcement"), s.Enforcement, EnforcementEnforced, EnforcementNone)...)
}

// validateChoice accepts the empty value and the choices.
func validateChoice[T ~string](path *field.Path, value T, choices ...T) field.ErrorList {
	if value == "" || slices.Contains(choices, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, choices)}
}

// ValidateSource reports what the place where the configuration was written
// may not say. Webhook and driver both call it: the webhook when a claim or
// class is written, the driver when a claim is prepared.
func (c *GPUClaimConfig) ValidateSource(source resourceapi.AllocationConfigSource) field.ErrorList {
	if source == resourceapi.AllocationConfigSourceClass || c.Sharing == nil {
		return nil
	}
	var errs field.ErrorList
	path := field.NewPath("sharing")
	if c.Sharing.Enforcement == EnforcementNone {
		errs = append(errs, field.Forbidden(path.Child("enforcement"), onlyClassMayLoosen))
	}
	if c.Sharing.CorePolicy == CorePolicyDisable {
		errs = append(errs, field.Forbidden(path.Child("corePolicy"), onlyClassMayLoosen))
	}
	return errs
}

const onlyClassMayLoosen = "only the configuration of a DeviceClass may take limits away, since the GPU's other users rely on them"

// EffectiveSharing is what holds for one request: the configurations that apply
// to it, in the order in which the claim's allocation lists them, and then the
// defaults. Field by field the later one wins, with one exception: where a
// DeviceClass sets Enforcement or CorePolicy, a claim cannot change them.
func EffectiveSharing(fromClass, fromClaim []*GPUClaimConfig) SharingConfig {
	effective := SharingConfig{}
	for _, config := range fromClass {
		effective.overlay(config.Sharing)
	}
	class := effective
	for _, config := range fromClaim {
		effective.overlay(config.Sharing)
	}
	effective.overlay(&SharingConfig{Enforcement: class.Enforcement, CorePolicy: class.CorePolicy})
	setIfEmpty(&effective.TaskPriority, TaskPriorityLow)
	setIfEmpty(&effective.CorePolicy, CorePolicyDefault)
	setIfEmpty(&effective.LogLevel, LogLevelWarning)
	setIfEmpty(&effective.Enforcement, EnforcementEnforced)
	return effective
}

// overlay takes over the fields that other sets.
func (s *SharingConfig) overlay(other *SharingConfig) {
	if other == nil {
		return
	}
	setUnlessEmpty(&s.TaskPriority, other.TaskPriority)
	setUnlessEmpty(&s.CorePolicy, other.CorePolicy)
	setUnlessEmpty(&s.LogLevel, other.LogLevel)
	setUnlessEmpty(&s.Enforcement, other.Enforcement)
}

// setUnlessEmpty sets target to a value that says something.
func setUnlessEmpty[T ~string](target *T, value T) {
	if value != "" {
		*target = value
	}
}

// setIfEmpty sets a target that says nothing.
func setIfEmpty[T ~string](target *T, value T) {
	if *target == "" {
		*target = value
	}
}

// DecodeGPUClaimConfigFrom is DecodeGPUClaimConfig followed by ValidateSource.
func DecodeGPUClaimConfigFrom(raw []byte, source resourceapi.AllocationConfigSource) (*GPUClaimConfig, error) {
	config, err := DecodeGPUClaimConfig(raw)
	if err != nil {
		return nil, err
	}
	if err := config.ValidateSource(source).ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating %s: %w", KindGPUClaimConfig, err)
	}
	return config, nil
}
