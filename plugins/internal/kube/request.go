// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// RequestKey identifies everything that decides which devices a request
// matches and what it consumes of them. Requests of different claims with the
// same key match alike.
type RequestKey [sha256.Size]byte

// Request is one request of a claim, or one alternative of a request with a
// prioritised list, with its class resolved.
type Request struct {
	// Name of the request, with "/" and the alternative's name appended for an
	// alternative, as in allocation results.
	Name string
	// ClassName of the device class.
	ClassName string
	// Selectors are the CEL expressions of the class, then of the request.
	Selectors []string
	// Tolerations of device taints.
	Tolerations []resourceapi.DeviceToleration
	// Capacity that is asked for, by name.
	Capacity *resourceapi.CapacityRequirements
	// All means every device that matches; Count is then meaningless.
	All bool
	// Count of devices, at least 1.
	Count int64
	// Admin requests observe devices, in use or not, and consume nothing.
	Admin bool
	// ClassConfig is the configuration of the class.
	ClassConfig []resourceapi.DeviceClassConfiguration

	key RequestKey
}

// Key returns the request's key.
func (r *Request) Key() RequestKey { return r.key }

// errUnknownRequest means that the claim uses a part of the API that did not
// exist when this was written. The in-tree plugin reports it to the user.
var errUnknownRequest = errors.New("request has neither a device class nor alternatives")

// Alternatives resolves a request into its alternatives: one for a plain
// request, as many as the list is long otherwise, in order of preference.
func Alternatives(request *resourceapi.DeviceRequest, classes fwk.DeviceClassLister) ([]*Request, error) {
	if exact := request.Exactly; exact != nil {
		resolved, err := resolve(&Request{
			Name: request.Name, ClassName: exact.DeviceClassName, Tolerations: exact.Tolerations, Capacity: exact.Capacity,
			Count: exact.Count, Admin: exact.AdminAccess != nil && *exact.AdminAccess,
		}, exact.AllocationMode, exact.Selectors, classes)
		if err != nil {
			return nil, fmt.Errorf("resolving request %q: %w", request.Name, err)
		}
		return []*Request{resolved}, nil
	}
	if len(request.FirstAvailable) == 0 {
		return nil, fmt.Errorf("resolving request %q: %w", request.Name, errUnknownRequest)
	}
	alternatives := make([]*Request, 0, len(request.FirstAvailable))
	for i := range request.FirstAvailable {
		sub := &request.FirstAvailable[i]
		name := request.Name + "/" + sub.Name
		resolved, err := resolve(&Request{
			Name: name, ClassName: sub.DeviceClassName, Tolerations: sub.Tolerations, Capacity: sub.Capacity, Count: sub.Count,
		}, sub.AllocationMode, sub.Selectors, classes)
		if err != nil {
			return nil, fmt.Errorf("resolving request %q: %w", name, err)
		}
		alternatives = append(alternatives, resolved)
	}
	return alternatives, nil
}

// resolve adds what the class says and computes the key.
func resolve(r *Request, mode resourceapi.DeviceAllocationMode, own []resourceapi.DeviceSelector, classes fwk.DeviceClassLister) (*Request, error) {
	class, err := classes.Get(r.ClassName)
	if err != nil {
		return nil, fmt.Errorf("reading device class %q: %w", r.ClassName, err)
	}
	for _, selectors := range [][]resourceapi.DeviceSelector{class.Spec.Selectors, own} {
		for i := range selectors {
			if selectors[i].CEL == nil {
				return nil, errUnknownRequest
			}
			r.Selectors = append(r.Selectors, selectors[i].CEL.Expression)
		}
	}
	r.ClassConfig = class.Spec.Config
	switch mode {
	case resourceapi.DeviceAllocationModeAll:
		r.All = true
	case resourceapi.DeviceAllocationModeExactCount, "":
		r.Count = max(r.Count, 1)
	default:
		return nil, fmt.Errorf("reading allocation mode %q: %w", mode, errUnknownRequest)
	}
	content, err := json.Marshal(struct {
		Selectors   []string
		Tolerations []resourceapi.DeviceToleration
		Capacity    *resourceapi.CapacityRequirements
	}{r.Selectors, r.Tolerations, r.Capacity})
	if err != nil {
		return nil, fmt.Errorf("encoding request: %w", err)
	}
	r.key = sha256.Sum256(content)
	return r, nil
}
