// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/topodra/topodra/api"
)

// Annotations of pods.
const (
	// AnnotationUseUUID and AnnotationAvoidUUID list UUIDs, separated by commas.
	AnnotationUseUUID   = "nvidia.com/use-gpuuuid"
	AnnotationAvoidUUID = "nvidia.com/nouse-gpuuuid"
	// AnnotationUseType and AnnotationAvoidType list parts of product names, separated by commas, in any case.
	AnnotationUseType   = "nvidia.com/use-gputype"
	AnnotationAvoidType = "nvidia.com/nouse-gputype"
	// AnnotationNUMA is true or false.
	AnnotationNUMA = "nvidia.com/numa-bind"
	// AnnotationMode lists what may share GPUs: hami-core, mig.
	AnnotationMode = "nvidia.com/vgpu-mode"
	// AnnotationNodePolicy is binpack or spread.
	AnnotationNodePolicy = "hami.io/node-scheduler-policy"
	// AnnotationGPUPolicy lists binpack, spread, topology-aware, numa or mutex.
	AnnotationGPUPolicy = "hami.io/gpu-scheduler-policy"
	// AnnotationWeights is weights of the classic scheduler's formula.
	AnnotationWeights = "hami.io/device-scoring-weights"
)

const (
	modeCore = "hami-core"
	modeMIG  = "mig"
	modeMPS  = "mps"

	policyBinpack  = "binpack"
	policySpread   = "spread"
	policyTopology = "topology-aware"
	policyNUMA     = "numa"
	policyMutex    = "mutex"

	// maxUUIDs and maxTypes bound the lists, so that what is made of them stays within the API's limits.
	maxUUIDs = 128
	maxTypes = 32
)

var (
	uuidFormat = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)
	typeFormat = regexp.MustCompile(`^[0-9A-Za-z ._+()/-]{1,63}$`)
)

// knownAnnotations in a fixed order.
func knownAnnotations() []string {
	return []string{
		AnnotationUseUUID, AnnotationAvoidUUID, AnnotationUseType, AnnotationAvoidType, AnnotationNUMA, AnnotationMode,
		AnnotationNodePolicy, AnnotationGPUPolicy, AnnotationWeights,
	}
}

// parse reads the annotations of a pod that wants GPUs.
func (p *Placement) parse(annotations map[string]string) (warnings []string, errs field.ErrorList) {
	path := field.NewPath("metadata", "annotations")
	list := func(key string, format *regexp.Regexp, most int, allowed string) []string {
		value, found := annotations[key]
		if !found {
			return nil
		}
		items, problems := parseList(path.Key(key), value, format, most, allowed)
		errs = append(errs, problems...)
		return items
	}
	const uuids, types = "UUIDs of letters, digits and hyphens", "parts of product names: letters, digits, spaces and ._+()/-, up to 63 characters"
	p.UseUUIDs = list(AnnotationUseUUID, uuidFormat, maxUUIDs, uuids)
	p.AvoidUUIDs = list(AnnotationAvoidUUID, uuidFormat, maxUUIDs, uuids)
	p.UseTypes = lower(list(AnnotationUseType, typeFormat, maxTypes, types))
	p.AvoidTypes = lower(list(AnnotationAvoidType, typeFormat, maxTypes, types))
	if value, found := annotations[AnnotationNUMA]; found {
		bind, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			errs = append(errs, field.NotSupported(path.Key(AnnotationNUMA), value, []string{"true", "false"}))
		}
		p.OneNUMANode = bind
	}
	errs = append(errs, p.parseMode(path, annotations)...)
	more, problems := p.parsePolicies(path, annotations)
	return append(warnings, more...), append(errs, problems...)
}

// parseList reads a list of items with commas. Spaces around items and empty items do not count.
func parseList(path *field.Path, value string, format *regexp.Regexp, most int, allowed string) ([]string, field.ErrorList) {
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if !format.MatchString(item) {
			return nil, field.ErrorList{field.Invalid(path, item, "allowed are "+allowed+", separated by commas")}
		}
		items = append(items, item)
	}
	switch {
	case len(items) == 0:
		return nil, field.ErrorList{field.Required(path, "the list is empty; allowed are "+allowed+", separated by commas")}
	case len(items) > most:
		return nil, field.ErrorList{field.TooMany(path, len(items), most)}
	}
	return items, nil
}

// lower turns items to lower case; they are ASCII.
func lower(items []string) []string {
	for i := range items {
		items[i] = strings.ToLower(items[i])
	}
	return items
}

// parseMode reads how GPUs are shared.
func (p *Placement) parseMode(path *field.Path, annotations map[string]string) field.ErrorList {
	value, found := annotations[AnnotationMode]
	if !found {
		return nil
	}
	modes := map[string]bool{}
	for mode := range strings.SplitSeq(value, ",") {
		mode = strings.TrimSpace(mode)
		if mode != modeCore && mode != modeMIG && mode != modeMPS {
			return field.ErrorList{field.NotSupported(path.Key(AnnotationMode), mode, []string{modeCore, modeMIG})}
		}
		modes[mode] = true
	}
	if modes[modeMPS] && len(modes) == 1 {
		return field.ErrorList{field.NotSupported(path.Key(AnnotationMode), modeMPS, []string{modeCore, modeMIG})}
	}
	p.MIG = modes[modeMIG] && !modes[modeCore]
	return nil
}

// parsePolicies reads what the classic scheduler was told, and our own annotation.
func (p *Placement) parsePolicies(path *field.Path, annotations map[string]string) (warnings []string, errs field.ErrorList) {
	warn := func(key, text string) {
		warnings = append(warnings, fmt.Sprintf("%s=%q is not converted: %s", path.Key(key), annotations[key], text))
	}
	if value, found := annotations[AnnotationNodePolicy]; found {
		switch strings.TrimSpace(value) {
		case policyBinpack: // what our scheduler does anyway
		case policySpread:
			warn(AnnotationNodePolicy, "GPU pods go to the fullest node that has good links; use topologySpreadConstraints to spread them")
		default:
			errs = append(errs, field.NotSupported(path.Key(AnnotationNodePolicy), value, []string{policyBinpack, policySpread}))
		}
	}
	if value, found := annotations[AnnotationGPUPolicy]; found {
		for policy := range strings.SplitSeq(value, ",") {
			switch policy = strings.TrimSpace(policy); policy {
			case policyTopology, policyNUMA: // what our scheduler does anyway
			case policyBinpack:
				p.Topology = &api.TopologyConfig{Policy: api.PolicyPreferred, Communicates: new(false)}
			case policySpread, policyMutex:
				warn(AnnotationGPUPolicy, "shares are packed, so that linked GPUs stay whole; ask for all of its memory to have a GPU alone")
			default:
				errs = append(errs, field.NotSupported(path.Key(AnnotationGPUPolicy), policy,
					[]string{policyBinpack, policySpread, policyTopology, policyNUMA, policyMutex}))
			}
		}
	}
	if _, found := annotations[AnnotationWeights]; found {
		warn(AnnotationWeights, "weights are arguments of the scheduler, the same for all pods")
	}
	if value, found := annotations[api.AnnotationTopology]; found {
		config, err := api.ParseTopologyAnnotation(value)
		if err != nil {
			errs = append(errs, field.Invalid(path.Key(api.AnnotationTopology), value, err.Error()))
		} else {
			p.Topology = config
		}
	}
	return warnings, errs
}
