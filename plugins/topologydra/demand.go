// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/topodra/topodra/plugins/internal/kube"
)

// maxChoices is how many combinations of alternatives are planned. Prioritised
// lists have at most 8 entries; two lists in a pod stay within the limit.
const maxChoices = 64

// demandKey identifies all of a demand that a plan depends on. Pods of one
// workload have the same key, whatever their claims are called.
type demandKey [sha256.Size]byte

// demand is what a pod asks for, with everything resolved that does not depend
// on the node.
type demand struct {
	// claims that need an allocation, in the allocator's order.
	claims []*claimDemand
	// held are the results of the pod's claims that are allocated already.
	held []resourceapi.DeviceRequestAllocationResult
	key  demandKey
}

// claimDemand is one claim of a demand.
type claimDemand struct {
	claim    *resourceapi.ResourceClaim
	requests []*requestDemand
}

// requestDemand is one request of a claim.
type requestDemand struct {
	// alternatives in order of preference; one unless the request has a list.
	alternatives []*kube.Request
	// policies by alternative.
	policies []requestPolicies
}

// newDemand resolves claims. Errors are for the owner of the pod.
func newDemand(pod *v1.Pod, claims []*resourceapi.ResourceClaim, allocated []kube.AllocatedClaim, classes fwk.DeviceClassLister, defaultPolicy policy) (*demand, error) {
	d := &demand{}
	for _, claim := range claims {
		resolved, err := newClaimDemand(pod, claim, classes, defaultPolicy)
		if err != nil {
			return nil, fmt.Errorf("resourceclaim %q: %w", claim.Name, err)
		}
		d.claims = append(d.claims, resolved)
	}
	for _, claim := range allocated {
		for _, result := range claim.Allocation.Devices.Results {
			if result.AdminAccess == nil || !*result.AdminAccess {
				d.held = append(d.held, result)
			}
		}
	}
	key, err := d.computeKey()
	if err != nil {
		return nil, err
	}
	d.key = key
	return d, nil
}

// newClaimDemand resolves one claim.
func newClaimDemand(pod *v1.Pod, claim *resourceapi.ResourceClaim, classes fwk.DeviceClassLister, defaultPolicy policy) (*claimDemand, error) {
	reader, err := newPolicyReader(claim, pod, defaultPolicy)
	if err != nil {
		return nil, err
	}
	resolved := &claimDemand{claim: claim}
	for i := range claim.Spec.Devices.Requests {
		alternatives, err := kube.Alternatives(&claim.Spec.Devices.Requests[i], classes)
		if err != nil {
			return nil, err
		}
		request := &requestDemand{alternatives: alternatives}
		for _, alternative := range alternatives {
			policies, err := reader.of(alternative)
			if err != nil {
				return nil, err
			}
			request.policies = append(request.policies, policies)
		}
		resolved.requests = append(resolved.requests, request)
	}
	return resolved, nil
}

// keyContent is what computeKey hashes of a request.
type keyContent struct {
	Name       string
	Request    kube.RequestKey
	All, Admin bool
	Count      int64
	Policies   string
}

// computeKey hashes the demand.
func (d *demand) computeKey() (demandKey, error) {
	type claimContent struct {
		Requests    [][]keyContent
		Constraints []resourceapi.DeviceConstraint
	}
	content := struct {
		Claims []claimContent
		Held   [][3]string
	}{}
	for _, claim := range d.claims {
		c := claimContent{Constraints: claim.claim.Spec.Devices.Constraints}
		for _, request := range claim.requests {
			var alternatives []keyContent
			for i, r := range request.alternatives {
				alternatives = append(alternatives, keyContent{
					Name: r.Name, Request: r.Key(), All: r.All, Admin: r.Admin, Count: r.Count,
					Policies: fmt.Sprintf("%+v", request.policies[i]),
				})
			}
			c.Requests = append(c.Requests, alternatives)
		}
		content.Claims = append(content.Claims, c)
	}
	for _, held := range d.held {
		content.Held = append(content.Held, [3]string{held.Driver, held.Pool, held.Device})
	}
	encoded, err := json.Marshal(content)
	if err != nil {
		return demandKey{}, fmt.Errorf("encoding the pod's demand: %w", err)
	}
	return sha256.Sum256(encoded), nil
}

// planned says whether any request wants its devices chosen by topology.
func (d *demand) planned() bool {
	for _, claim := range d.claims {
		for _, request := range claim.requests {
			for i, r := range request.alternatives {
				if !r.Admin && !request.policies[i].ignored() {
					return true
				}
			}
		}
	}
	return false
}

// guarantee is a request, or the alternative of one, that has a guarantee.
type guarantee struct {
	*kube.Request
	policy policy
}

// guarantees returns the alternatives that have a guarantee.
func (d *demand) guarantees() []guarantee {
	var found []guarantee
	for _, claim := range d.claims {
		for _, request := range claim.requests {
			for i, r := range request.alternatives {
				policies := request.policies[i]
				switch {
				case r.Admin:
				case policies.own.required():
					found = append(found, guarantee{r, policies.own})
				case policies.others.required():
					found = append(found, guarantee{r, policies.others})
				}
			}
		}
	}
	return found
}

// guaranteed says whether any request has a guarantee.
func (d *demand) guaranteed() bool { return len(d.guarantees()) > 0 }

// strict says whether there is a guarantee that an unplanned choice of the
// allocator could break. A single GPU satisfies every policy.
func (d *demand) strict() bool {
	found := d.guarantees()
	return len(found) > 1 || len(found) == 1 && (found[0].All || found[0].Count > 1 || len(d.held) > 0)
}

// wanted describes the first guarantee, and how many GPUs have the same one in
// one combination of alternatives.
func (d *demand) wanted() string {
	found := d.guarantees()
	if len(found) == 0 {
		return ""
	}
	count := 0
	for _, claim := range d.claims {
		for _, request := range claim.requests {
			first := request.policies[0]
			if first.own == found[0].policy || first.others == found[0].policy {
				count += clampInt(request.alternatives[0].Count)
			}
		}
	}
	return wantedText(count, found[0].policy)
}

// item is a request, or the alternative of one, in a combination that is planned.
type item struct {
	claim, request int
	*kube.Request
	policies requestPolicies
}

// is says whether both are the same request.
func (it item) is(other item) bool { return it.claim == other.claim && it.request == other.request }

// choices returns the combinations of alternatives in the order in which the
// allocator tries them: a later request gives way before an earlier one does.
// complete is false when there are more.
func (d *demand) choices() (choices [][]item, complete bool) {
	choices = [][]item{nil}
	for c, claim := range d.claims {
		for r, request := range claim.requests {
			var longer [][]item
			for _, prefix := range choices {
				for a, alternative := range request.alternatives {
					longer = append(longer, append(slices.Clone(prefix), item{c, r, alternative, request.policies[a]}))
				}
			}
			if len(longer) > maxChoices {
				return nil, false
			}
			choices = longer
		}
	}
	return choices, true
}

// applies says whether a constraint of a claim ties the request.
func applies(constraint *resourceapi.DeviceConstraint, request *kube.Request) bool {
	base, _, _ := strings.Cut(request.Name, "/")
	return len(constraint.Requests) == 0 ||
		slices.Contains(constraint.Requests, request.Name) || slices.Contains(constraint.Requests, base)
}

// resourceClaims returns the claims for the allocator.
func (d *demand) resourceClaims() []*resourceapi.ResourceClaim {
	claims := make([]*resourceapi.ResourceClaim, len(d.claims))
	for i, claim := range d.claims {
		claims[i] = claim.claim
	}
	return claims
}
