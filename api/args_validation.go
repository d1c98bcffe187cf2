// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of TopologyDynamicResourcesArgs.
const (
	MaxTierPercent   = 50
	MaxScoreWeight   = 1000
	MaxMixEntries    = 16
	MaxMixWeight     = 10000
	MaxTypicalGPUs   = 64
	LimitCandidates  = 1024
	MinPlanBudget    = time.Millisecond
	MaxPlanBudget    = 10 * time.Second
	MaxDriverEntries = 64
)

// Validate reports every problem with its field path. It expects defaulted
// arguments.
func (a *TopologyDynamicResourcesArgs) Validate() field.ErrorList {
	var errs field.ErrorList
	if a.FilterTimeout != nil && a.FilterTimeout.Duration < 0 {
		errs = append(errs, field.Invalid(field.NewPath("filterTimeout"), a.FilterTimeout.Duration.String(), "must not be negative"))
	}
	if a.BindingTimeout != nil && a.BindingTimeout.Duration < time.Second {
		errs = append(errs, field.Invalid(field.NewPath("bindingTimeout"), a.BindingTimeout.Duration.String(), "must be at least 1s"))
	}
	switch a.DefaultPolicy {
	case PolicyPreferred, PolicyNone:
	default:
		errs = append(errs, field.NotSupported(field.NewPath("defaultPolicy"), a.DefaultPolicy, []Policy{PolicyPreferred, PolicyNone}))
	}
	errs = append(errs, validateRange(field.NewPath("tierPercent"), a.TierPercent, 0, MaxTierPercent)...)
	errs = append(errs, validateRange(field.NewPath("maxCandidates"), a.MaxCandidates, 1, LimitCandidates)...)
	if a.PlanBudget == nil {
		errs = append(errs, field.Required(field.NewPath("planBudget"), ""))
	} else if d := a.PlanBudget.Duration; d < MinPlanBudget || d > MaxPlanBudget {
		errs = append(errs, field.Invalid(field.NewPath("planBudget"), d.String(),
			fmt.Sprintf("must be between %s and %s", MinPlanBudget, MaxPlanBudget)))
	}
	errs = append(errs, a.ScoreWeights.validate(field.NewPath("scoreWeights"))...)
	errs = append(errs, validateMix(a.Mix, field.NewPath("mix"))...)
	return append(errs, validateDrivers(a.Drivers, field.NewPath("drivers"))...)
}

// validateRange checks a number that defaulting has set.
func validateRange(path *field.Path, value *int32, low, high int32) field.ErrorList {
	switch {
	case value == nil:
		return field.ErrorList{field.Required(path, "")}
	case *value < low || *value > high:
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be between %d and %d", low, high))}
	default:
		return nil
	}
}

// validate checks the weights one by one and that they rank at all.
func (w *ScoreWeights) validate(path *field.Path) field.ErrorList {
	if w == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	errs = append(errs, validateRange(path.Child("quality"), &w.Quality, 0, MaxScoreWeight)...)
	errs = append(errs, validateRange(path.Child("allocated"), &w.Allocated, 0, MaxScoreWeight)...)
	errs = append(errs, validateRange(path.Child("remaining"), &w.Remaining, 0, MaxScoreWeight)...)
	if w.Quality == 0 && w.Allocated == 0 && w.Remaining == 0 {
		errs = append(errs, field.Invalid(path, *w, "at least one weight must be above 0"))
	}
	return errs
}

// validateMix checks the typical claims.
func validateMix(mix []TypicalClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(mix) > MaxMixEntries {
		errs = append(errs, field.TooMany(path, len(mix), MaxMixEntries))
	}
	for i := range mix {
		claim, at := &mix[i], path.Index(i)
		errs = append(errs, validateRange(at.Child("gpus"), &claim.GPUs, 1, MaxTypicalGPUs)...)
		errs = append(errs, validateRange(at.Child("cores"), &claim.Cores, 0, 100)...)
		errs = append(errs, validateRange(at.Child("weight"), &claim.Weight, 1, MaxMixWeight)...)
		if claim.Memory != nil && claim.Memory.Sign() <= 0 {
			errs = append(errs, field.Invalid(at.Child("memory"), claim.Memory.String(), "must be above 0; leave it out for a whole GPU"))
		}
		if claim.Memory == nil && claim.Cores != 0 {
			errs = append(errs, field.Forbidden(at.Child("cores"), "a whole GPU takes all cores; set memory as well"))
		}
	}
	return errs
}

// validateDrivers checks the mappings and that no driver is mapped twice.
func validateDrivers(drivers []DriverMapping, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(drivers) > MaxDriverEntries {
		errs = append(errs, field.TooMany(path, len(drivers), MaxDriverEntries))
	}
	seen := map[string]bool{}
	for i := range drivers {
		mapping, at := &drivers[i], path.Index(i)
		name := at.Child("driver")
		switch {
		case mapping.Driver == DriverName:
			errs = append(errs, field.Forbidden(name, fmt.Sprintf("the attributes of %q are fixed", DriverName)))
		case seen[mapping.Driver]:
			errs = append(errs, field.Duplicate(name, mapping.Driver))
		}
		seen[mapping.Driver] = true
		for _, msg := range validation.IsDNS1123Subdomain(mapping.Driver) {
			errs = append(errs, field.Invalid(name, mapping.Driver, msg))
		}
		errs = append(errs, mapping.validateNames(at)...)
	}
	return errs
}

// validateNames checks that every name can exist in a ResourceSlice.
func (m *DriverMapping) validateNames(path *field.Path) field.ErrorList {
	a, c := m.Attributes, m.Capacities
	attributes, capacities := path.Child("attributes"), path.Child("capacities")
	var errs field.ErrorList
	for _, entry := range []struct {
		path *field.Path
		name string
	}{
		{attributes.Child("index"), a.Index},
		{attributes.Child("nvlinks"), a.NVLinks},
		{attributes.Child("pcie"), a.PCIe},
		{attributes.Child("nvlinkMBps"), a.NVLinkMBps},
		{attributes.Child("nvlinkSwitched"), a.NVLinkSwitched},
		{attributes.Child("pcieGen"), a.PCIeGen},
		{attributes.Child("nearestNIC"), a.NearestNIC},
		{attributes.Child("nvlinkDomain"), a.NVLinkDomain},
		{attributes.Child("pcieRoot"), a.PCIeRoot},
		{attributes.Child("numaNode"), a.NUMANode},
		{attributes.Child("pciBusID"), a.PCIBusID},
		{capacities.Child("memory"), c.Memory},
		{capacities.Child("cores"), c.Cores},
		{capacities.Child("slots"), c.Slots},
	} {
		errs = append(errs, validateQualifiedName(entry.path, entry.name)...)
	}
	return errs
}

// validateQualifiedName follows the rules of the resource API: an optional DNS
// subdomain and a slash, then a C identifier.
func validateQualifiedName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return nil
	}
	var errs field.ErrorList
	domain, id, qualified := strings.Cut(name, "/")
	if !qualified {
		id = name
	} else {
		for _, msg := range validation.IsDNS1123Subdomain(domain) {
			errs = append(errs, field.Invalid(path, name, "domain: "+msg))
		}
		if len(domain) > resourceapi.DeviceMaxDomainLength {
			errs = append(errs, field.TooLong(path, domain, resourceapi.DeviceMaxDomainLength))
		}
	}
	for _, msg := range validation.IsCIdentifier(id) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	if len(id) > resourceapi.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, id, resourceapi.DeviceMaxIDLength))
	}
	return errs
}
