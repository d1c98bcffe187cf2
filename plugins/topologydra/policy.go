// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/plugins/internal/kube"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// policy is what a request demands of the links between its GPUs.
type policy struct {
	placement.Policy
	communicates placement.Communication
}

// required says whether the policy is a guarantee.
func (p policy) required() bool { return p.Mode == placement.Required }

// requestPolicies are the policies of one request. Our own driver's
// configuration speaks about our own devices only.
type requestPolicies struct {
	own, others policy
}

// forDriver returns the policy that holds for devices of the driver.
func (p requestPolicies) forDriver(driver string) policy {
	if driver == api.DriverName {
		return p.own
	}
	return p.others
}

// ignored says that the request leaves the choice to the allocator.
func (p requestPolicies) ignored() bool {
	return p.own.Mode == placement.None && p.others.Mode == placement.None
}

// policyOf translates a configuration.
func policyOf(config *api.TopologyConfig) policy {
	p := policy{}
	switch config.Policy {
	case api.PolicyRequired:
		p.Mode = placement.Required
	case api.PolicyNone:
		p.Mode = placement.None
	default:
		p.Mode = placement.Preferred
	}
	switch config.Level {
	case api.LevelNVLink:
		p.Level = placement.LevelNVLink
	case api.LevelPCIe:
		p.Level = placement.LevelPCIe
	case api.LevelNUMA:
		p.Level = placement.LevelNUMA
	default:
		p.Level = placement.LevelAny
	}
	p.MinMBps = topology.MBps(config.MinMBps())
	if config.Communicates != nil {
		p.communicates = placement.No
		if *config.Communicates {
			p.communicates = placement.Yes
		}
	}
	return p
}

// policyReader finds the policies of the requests of one claim. From strongest
// to weakest: the claim's opaque configuration for our driver, that of the
// device class, the claim's annotation, the plugin's default. Of several
// configurations for one request the last counts, as in drivers. A claim that
// stands for extended resources has no user who could annotate it: there the
// pod's annotation takes its place.
type policyReader struct {
	claim    *resourceapi.ResourceClaim
	fallback policy
}

// newPolicyReader reads the claim's annotation.
func newPolicyReader(claim *resourceapi.ResourceClaim, pod *v1.Pod, defaultPolicy policy) (*policyReader, error) {
	reader := &policyReader{claim: claim, fallback: defaultPolicy}
	annotations := claim.Annotations
	if annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		annotations = pod.Annotations
	}
	if value, ok := annotations[api.AnnotationTopology]; ok {
		config, err := api.ParseTopologyAnnotation(value)
		if err != nil {
			return nil, err
		}
		reader.fallback = policyOf(config)
	}
	return reader, nil
}

// of returns the policies of one alternative of a request.
func (r *policyReader) of(request *kube.Request) (requestPolicies, error) {
	policies := requestPolicies{own: r.fallback, others: r.fallback}
	for i := range request.ClassConfig {
		if err := policies.apply(&request.ClassConfig[i].DeviceConfiguration); err != nil {
			return policies, fmt.Errorf("reading configuration of device class %q: %w", request.ClassName, err)
		}
	}
	base, _, _ := strings.Cut(request.Name, "/")
	for i := range r.claim.Spec.Devices.Config {
		config := &r.claim.Spec.Devices.Config[i]
		if len(config.Requests) > 0 && !slices.Contains(config.Requests, request.Name) && !slices.Contains(config.Requests, base) {
			continue
		}
		if err := policies.apply(&config.DeviceConfiguration); err != nil {
			return policies, fmt.Errorf("reading configuration %d of the claim: %w", i, err)
		}
	}
	return policies, nil
}

// apply reads a configuration if it is for our driver and names a policy.
func (p *requestPolicies) apply(config *resourceapi.DeviceConfiguration) error {
	if config.Opaque == nil || config.Opaque.Driver != api.DriverName {
		return nil
	}
	decoded, err := api.DecodeGPUClaimConfig(config.Opaque.Parameters.Raw)
	if err != nil {
		return err
	}
	if decoded.Topology != nil {
		p.own = policyOf(decoded.Topology)
	}
	return nil
}
