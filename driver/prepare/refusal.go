// SPDX-License-Identifier: Apache-2.0

package prepare

import "fmt"

// Reason is why a claim is refused, as it appears in events and metrics.
type Reason string

// Reasons of refusals. Trying again does not help until somebody changes
// something.
const (
	// ReasonBadConfiguration: an opaque configuration of the claim or its class
	// is invalid.
	ReasonBadConfiguration Reason = "BadConfiguration"

	// ReasonNotForThisNode: the allocation names devices of another node, or
	// none of this driver.
	ReasonNotForThisNode Reason = "NotForThisNode"

	// ReasonNotReserved: no pod may use the claim.
	ReasonNotReserved Reason = "NotReserved"

	// ReasonDeviceGone: an allocated device is not there any more.
	ReasonDeviceGone Reason = "DeviceGone"

	// ReasonDeviceSwapped: another device is where the allocated one was.
	ReasonDeviceSwapped Reason = "DeviceSwapped"

	// ReasonOverlap: together with claims that are prepared already, more than
	// all of a device would be in use.
	ReasonOverlap Reason = "Overlap"

	// ReasonCannotEnforce: nothing on this node keeps the claim's limits.
	ReasonCannotEnforce Reason = "CannotEnforce"

	// ReasonSharedByContainers: two containers that run at the same time would
	// each get all of one share.
	ReasonSharedByContainers Reason = "SharedByContainers"

	// ReasonNeedsNRI: the limits differ by container in a way that only NRI can
	// express, and the runtime does not offer it.
	ReasonNeedsNRI Reason = "NeedsNRI"
)

// Refusal is an error that somebody has to do something about.
type Refusal struct {
	Reason  Reason
	Message string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// refuse makes a Refusal.
func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
