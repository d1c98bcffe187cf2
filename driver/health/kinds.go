// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
)

// Kind says what is wrong. It is the name of the taint below Domain.
type Kind string

// Domain is the prefix of the keys of our taints.
const Domain = api.DriverName + "/"

// Kinds of conditions.
const (
	// KindXID: the kernel driver reported an error; the value is its number.
	KindXID Kind = "xid"

	// KindLost: the GPU does not answer any more or is not there ("lost",
	// "missing").
	KindLost Kind = "lost"

	// KindHangs: a question about the GPU has not been answered ("hangs").
	KindHangs Kind = "not-responding"

	// KindECC: there were new memory errors that could not be corrected
	// ("uncorrectable").
	KindECC Kind = "ecc"

	// KindRemap: memory waits to be replaced by spare memory, or there is none
	// ("pending", "failed").
	KindRemap Kind = "row-remap"

	// KindRecovery: the kernel driver asks for something to be done ("reset",
	// "reboot", "drain-p2p", "drain-and-reset", "other").
	KindRecovery Kind = "recovery-action"

	// KindFabric: the GPU is not a working member of its NVLink fabric
	// ("not-completed", "failed", "unhealthy", "limited").
	KindFabric Kind = "fabric"

	// KindNVLink: fewer links are up than have been ("links-down").
	KindNVLink Kind = "nvlink"

	// KindNVML: no GPU of the node can be looked at ("unavailable").
	KindNVML Kind = "nvml"

	// KindViolation: a container uses more memory than it has ("over-limit").
	KindViolation Kind = "memory-violation"

	// KindOtherAllocator: somebody else hands out the same GPUs; the value is the
	// name of the extended resource, with a dot for the slash.
	KindOtherAllocator Kind = "other-allocator"
)

// kinds are all of them, in the order of the taints of a device.
var kinds = []Kind{
	KindECC, KindFabric, KindLost, KindViolation, KindHangs, KindNVLink, KindNVML, KindOtherAllocator, KindRecovery, KindRemap, KindXID,
}

// Severity says how bad a finding is.
type Severity string

// Severities.
const (
	// Fatal: new work would fail, or harm others.
	Fatal Severity = "fatal"

	// Degraded: work goes on, but something has to be done before long.
	Degraded Severity = "degraded"

	// Info: worth knowing; work is not at risk.
	Info Severity = "info"
)

// severities from bad to harmless.
var severities = []Severity{Fatal, Degraded, Info}

// Policy is what whoever runs the node has chosen.
type Policy struct {
	// Effects by severity; missing ones are DefaultEffects.
	Effects map[Severity]resourceapi.DeviceTaintEffect

	// ByKind wins over Effects.
	ByKind map[Kind]resourceapi.DeviceTaintEffect

	// IgnoredXIDs are errors that say nothing about the GPU. Nil means
	// DefaultIgnoredXIDs.
	IgnoredXIDs []uint64
}

// DefaultEffects keeps new work away and lets work that is there go on.
var DefaultEffects = map[Severity]resourceapi.DeviceTaintEffect{
	Fatal: resourceapi.DeviceTaintEffectNoSchedule, Degraded: resourceapi.DeviceTaintEffectNoSchedule, Info: resourceapi.DeviceTaintEffectNone,
}

// effects that may be chosen.
var effects = []resourceapi.DeviceTaintEffect{
	resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute,
}

// Effect of a finding.
func (p *Policy) Effect(kind Kind, severity Severity) resourceapi.DeviceTaintEffect {
	if effect, ok := p.ByKind[kind]; ok {
		return effect
	}
	if effect, ok := p.Effects[severity]; ok {
		return effect
	}
	return DefaultEffects[severity]
}

// Ignores says whether an XID is of no importance.
func (p *Policy) Ignores(xid uint64) bool {
	ignored := p.IgnoredXIDs
	if ignored == nil {
		ignored = DefaultIgnoredXIDs
	}
	return slices.Contains(ignored, xid)
}

// SetEffects reads choices such as "fatal": "NoExecute" or "nvlink": "NoSchedule":
// severities and kinds, each with an effect.
func (p *Policy) SetEffects(choices map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(choices)) {
		effect := resourceapi.DeviceTaintEffect(choices[name])
		if !slices.Contains(effects, effect) {
			errs = append(errs, fmt.Errorf("the effect of %q is %q, known are %s", name, choices[name], list(effects)))
			continue
		}
		switch {
		case slices.Contains(severities, Severity(name)):
			if p.Effects == nil {
				p.Effects = map[Severity]resourceapi.DeviceTaintEffect{}
			}
			p.Effects[Severity(name)] = effect
		case slices.Contains(kinds, Kind(name)):
			if p.ByKind == nil {
				p.ByKind = map[Kind]resourceapi.DeviceTaintEffect{}
			}
			p.ByKind[Kind(name)] = effect
		default:
			errs = append(errs, fmt.Errorf("%q is neither a severity (%s) nor a kind of taint (%s)", name, list(severities), list(kinds)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reading effects of taints: %w", err)
	}
	return nil
}

// list joins names for messages.
func list[T ~string](names []T) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}
