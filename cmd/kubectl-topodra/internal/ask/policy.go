// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/placement"
)

// policy finds the policy of a request. From strongest to weakest: the claim's configuration for our driver, that of the class,
// the claim's annotation. For extended resources the pod's annotation takes the place of the claim's.
func (r *resolver) policy(q *Request, class *resourceapi.DeviceClass) error {
	annotations := r.claim.Annotations
	if r.extended {
		annotations = r.pod.Annotations
	}
	if value, ok := annotations[api.AnnotationTopology]; ok {
		config, err := api.ParseTopologyAnnotation(value)
		if err != nil {
			return fmt.Errorf("its topology annotation cannot be read: %w", err)
		}
		q.set(config)
	}
	for i := range class.Spec.Config {
		if err := q.apply(&class.Spec.Config[i].DeviceConfiguration); err != nil {
			return fmt.Errorf("the configuration of device class %q cannot be read: %w", class.Name, err)
		}
	}
	base, _, _ := strings.Cut(q.Name, "/")
	for i := range r.claim.Spec.Devices.Config {
		config := &r.claim.Spec.Devices.Config[i]
		if len(config.Requests) > 0 && !slices.Contains(config.Requests, q.Name) && !slices.Contains(config.Requests, base) {
			continue
		}
		if err := q.apply(&config.DeviceConfiguration); err != nil {
			return fmt.Errorf("its configuration %d cannot be read: %w", i, err)
		}
	}
	return nil
}

func (q *Request) apply(config *resourceapi.DeviceConfiguration) error {
	if config.Opaque == nil || config.Opaque.Driver != api.DriverName {
		return nil
	}
	decoded, err := api.DecodeGPUClaimConfig(config.Opaque.Parameters.Raw)
	if err != nil {
		return err
	}
	if decoded.Topology != nil {
		q.set(decoded.Topology)
	}
	return nil
}

// levels translates the API's words.
var levels = map[api.Level]placement.Level{
	api.LevelNVLink: placement.LevelNVLink, api.LevelPCIe: placement.LevelPCIe, api.LevelNUMA: placement.LevelNUMA,
}

func (q *Request) set(config *api.TopologyConfig) {
	q.Policy = placement.Policy{Level: levels[config.Level], MinMBps: topology.MBps(config.MinMBps())}
	switch config.Policy {
	case api.PolicyRequired:
		q.Policy.Mode = placement.Required
	case api.PolicyNone:
		q.Policy.Mode = placement.None
	default:
		q.Policy.Mode = placement.Preferred
	}
	q.Communicates = placement.Auto
	if config.Communicates != nil {
		q.Communicates = placement.No
		if *config.Communicates {
			q.Communicates = placement.Yes
		}
	}
}

// DescribePolicy says in words what the links must be; empty when nothing is required.
func DescribePolicy(p placement.Policy) string {
	if p.Mode == placement.None {
		return "any GPUs"
	}
	if p.Mode != placement.Required {
		return ""
	}
	return "required" + p.Links()
}
