// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"

	"github.com/topodra/topodra/driver/device"
)

// Observation is what one look at a GPU has seen. What could not be seen is nil or
// "".
type Observation struct {
	UUID device.UUID

	// Lost is why the GPU does not answer any more; "" when it does.
	Lost string

	// Hangs is the question that has not been answered in time; "" when all have.
	Hangs string

	// Partial says that something that the GPU has could not be read: what is not
	// found then proves nothing.
	Partial bool

	// UncorrectedErrors counts memory errors that could not be corrected, since
	// the kernel driver was loaded or the GPU was reset.
	UncorrectedErrors *uint64

	// Remap is the state of the replacement of bad memory.
	Remap *Remap

	// ActiveLinks counts NVLinks that are up.
	ActiveLinks *int

	// Fabric is the state of the membership in an NVLink fabric; "" for GPUs that
	// need none.
	Fabric FabricState

	// Recovery is what the kernel driver wants to be done; "" for nothing.
	Recovery Recovery
}

// Remap is the state of the replacement of bad memory rows or pages.
type Remap struct {
	// Pending: it takes place with the next reset.
	Pending bool

	// Failed: there was no spare memory.
	Failed bool
}

// FabricState is the state of the membership in an NVLink fabric.
type FabricState string

// States of the membership.
const (
	FabricGood         FabricState = "good"
	FabricNotCompleted FabricState = "not-completed"
	FabricFailed       FabricState = "failed"
	FabricUnhealthy    FabricState = "unhealthy"
	FabricLimited      FabricState = "limited"
)

// Recovery is what the kernel driver wants to be done with a GPU.
type Recovery string

// What may be wanted.
const (
	RecoveryReset         Recovery = "reset"
	RecoveryReboot        Recovery = "reboot"
	RecoveryDrainP2P      Recovery = "drain-p2p"
	RecoveryDrainAndReset Recovery = "drain-and-reset"
	RecoveryOther         Recovery = "other"
)

// Baseline is what an observation is compared with.
type Baseline struct {
	// UncorrectedErrors at the last look.
	UncorrectedErrors uint64 `json:"uncorrectedErrors,omitempty"`

	// ActiveLinks is the most that have been up at once since the node booted.
	ActiveLinks int `json:"activeLinks,omitempty"`
}

// Complete says whether the look saw everything, so that what it did not find is
// not there.
func (o *Observation) Complete() bool { return o.Lost == "" && o.Hangs == "" && !o.Partial }

// Assess turns a look into findings, and returns what the next one is compared
// with. It is pure.
func Assess(o *Observation, base Baseline) ([]Finding, Baseline) {
	switch {
	case o.Lost != "":
		return []Finding{LostFinding("lost", o.Lost)}, base
	case o.Hangs != "":
		return []Finding{{
			Kind: KindHangs, Value: "hangs", Severity: Fatal, State: Unhealthy,
			Message: "the GPU's driver has not answered " + o.Hangs, Advice: rebootNode,
		}}, base
	}
	var out []Finding
	if o.UncorrectedErrors != nil {
		if fresh := *o.UncorrectedErrors; fresh > base.UncorrectedErrors {
			out = append(out, Finding{
				Kind: KindECC, Value: "uncorrectable", Severity: Fatal, State: Unhealthy,
				Message: fmt.Sprintf("%d new memory errors that could not be corrected", fresh-base.UncorrectedErrors), Advice: resetGPU,
			})
		}
		base.UncorrectedErrors = *o.UncorrectedErrors // Less after a reset.
	}
	out = appendRemap(out, o.Remap)
	out = appendFabric(out, o.Fabric)
	if o.ActiveLinks != nil {
		if up := *o.ActiveLinks; up < base.ActiveLinks {
			out = append(out, Finding{
				Kind: KindNVLink, Value: "links-down", Severity: Info,
				Message: fmt.Sprintf("%d of %d NVLinks are up; jobs are placed by the links that are", up, base.ActiveLinks), Advice: resetGPU,
			})
		}
		base.ActiveLinks = max(base.ActiveLinks, *o.ActiveLinks)
	}
	return appendRecovery(out, o.Recovery), base
}

// LostFinding says that a GPU is not there.
func LostFinding(value, why string) Finding {
	return Finding{Kind: KindLost, Value: value, Severity: Fatal, State: Unhealthy, Message: "the GPU is lost: " + why, Advice: rebootNode}
}

// appendRemap describes the replacement of bad memory.
func appendRemap(to []Finding, remap *Remap) []Finding {
	switch {
	case remap == nil:
		return to
	case remap.Failed:
		return append(to, Finding{Kind: KindRemap, Value: "failed", Severity: Fatal, State: Unhealthy,
			Message: "bad memory could not be replaced by spare memory", Advice: replaceGPU})
	case remap.Pending:
		return append(to, Finding{Kind: KindRemap, Value: "pending", Severity: Degraded, State: Unhealthy,
			Message: "bad memory waits to be replaced by spare memory", Advice: resetGPU})
	default:
		return to
	}
}

// appendFabric describes the membership in a fabric.
func appendFabric(to []Finding, state FabricState) []Finding {
	finding := Finding{Kind: KindFabric, Value: string(state), State: Unhealthy, Severity: Fatal}
	switch state {
	case FabricNotCompleted:
		finding.Message = "the GPU has not joined its NVLink fabric yet, and CUDA does not start before"
		finding.Advice = "see whether the fabric manager (nvidia-fabricmanager) runs"
	case FabricFailed:
		finding.Message, finding.Advice = "the GPU could not join its NVLink fabric", "look into the log of the fabric manager, and restart it"
	case FabricUnhealthy:
		finding.Severity, finding.Message, finding.Advice = Degraded, "the GPU's NVLink fabric is unhealthy", "look into the log of the fabric manager"
	case FabricLimited:
		finding.Severity, finding.State, finding.Message, finding.Advice = Info, "", "the GPU's NVLink fabric has less bandwidth than usual", "look into the log of the fabric manager"
	default:
		return to
	}
	return append(to, finding)
}

// appendRecovery describes what the kernel driver wants.
func appendRecovery(to []Finding, recovery Recovery) []Finding {
	finding := Finding{Kind: KindRecovery, Value: string(recovery), State: Unhealthy, Severity: Fatal}
	switch recovery {
	case RecoveryReset:
		finding.Message, finding.Advice = "the kernel driver asks for a reset of the GPU", resetGPU
	case RecoveryReboot:
		finding.Message, finding.Advice = "the kernel driver asks for a reboot", rebootNode
	case RecoveryDrainP2P:
		finding.Severity = Degraded
		finding.Message, finding.Advice = "the kernel driver asks to end all peer to peer work of the GPU", "end the jobs on several GPUs that use it"
	case RecoveryDrainAndReset:
		finding.Severity = Degraded
		finding.Message, finding.Advice = "the kernel driver asks for a reset of the GPU once its work has ended", resetGPU
	case RecoveryOther:
		finding.Severity = Degraded
		finding.Message, finding.Advice = "the kernel driver asks for something to be done that this version does not know", "see nvidia-smi -q"
	default:
		return to
	}
	return append(to, finding)
}

// nvmlFinding says that nothing is known of any GPU.
func nvmlFinding(err error) Finding {
	return Finding{
		Kind: KindNVML, Value: "unavailable", Severity: Fatal, State: Unknown,
		Message: "no GPU of the node can be looked at: " + err.Error(), Advice: "see whether the kernel driver is loaded and answers (nvidia-smi)",
	}
}
