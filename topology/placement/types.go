// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/quality"
)

// Capacity is an amount of the divisible parts of a GPU. A dimension whose total
// is 0 on a GPU is not limited there.
type Capacity struct {
	// MemoryMiB is device memory in MiB.
	MemoryMiB int64
	// CoresPercent is a share of the streaming multiprocessors, 100 is all.
	CoresPercent int64
	// Slots is the number of claims that hold a part of the GPU.
	Slots int64
}

// Inventory says what one machine has and what is left of it.
type Inventory struct {
	// Class holds the tables of the machine's topology.
	Class *quality.Class
	// Present are the GPUs that may be handed out at all.
	Present topology.Mask
	// Idle are the GPUs of which nothing is taken.
	Idle topology.Mask
	// Free is what is left of each GPU, Total what it had; by position.
	Free, Total []Capacity
}

// Request asks for a number of distinct GPUs that are all used alike.
type Request struct {
	// Name says which request it is, "claim/request". It is for messages and does
	// not influence the answer.
	Name string
	// Count is the number of GPUs, at least 1.
	Count int
	// Use is what the request consumes of each of its GPUs, after rounding by the
	// policies of the device.
	Use Capacity
	// Exclusive requests take a GPU entirely, whatever Use says.
	Exclusive bool
	// Eligible are the GPUs that pass selectors, taints and health. What is left
	// on them is checked by the planner.
	Eligible topology.Mask
}

// ConstraintKind says what a [Constraint] demands.
type ConstraintKind uint8

// The kinds of constraints.
const (
	// Match demands one common value for all GPUs of the requests.
	Match ConstraintKind = iota
	// Distinct demands a different value for every GPU of the requests. One GPU
	// that serves two of the requests counts twice and so violates it.
	Distinct
)

// Constraint ties the GPUs of several requests together by an attribute.
type Constraint struct {
	// Requests are indices into Demand.Requests.
	Requests []int
	Kind     ConstraintKind
	// Values is the attribute by GPU position, numbered by the caller: equal
	// numbers are equal values, -1 means that the GPU lacks the attribute and so
	// cannot satisfy the constraint.
	Values []int32
}

// Mode says how strongly the topology counts.
type Mode uint8

// The modes.
const (
	// Preferred takes the best set there is. It is the default.
	Preferred Mode = iota
	// Required refuses sets that are worse than the policy's level and rate.
	Required
	// None does not care for links: the set that costs later claims least.
	None
)

// Level is the worst kind of hop that a Required policy accepts.
type Level uint8

// The levels, from the weakest to the strictest.
const (
	LevelAny    Level = iota // every ring will do
	LevelNUMA                // NVLink, or PCIe within one NUMA node (NODE and closer)
	LevelPCIe                // NVLink, or PCIe switches only (PIX and PXB)
	LevelNVLink              // NVLink only
)

// Policy is what a claim demands of the links between its GPUs.
type Policy struct {
	Mode  Mode
	Level Level
	// MinMBps is the lowest acceptable Quality.MBps; 0 accepts all. Like Level it
	// binds Required policies only, and sets of one GPU satisfy it.
	MinMBps topology.MBps
}

// Accepts reports whether a set of the quality satisfies the policy.
func (p Policy) Accepts(q quality.Quality) bool {
	if p.Mode != Required || q.Bottleneck == quality.None {
		return true
	}
	if q.MBps < p.MinMBps {
		return false
	}
	switch p.Level {
	case LevelNVLink:
		return q.Reach <= quality.NVLink
	case LevelPCIe:
		return q.Reach <= quality.PXB
	case LevelNUMA:
		return q.Reach <= quality.NODE
	default:
		return true
	}
}

// Communication says whether the GPUs of a demand exchange data.
type Communication uint8

// The values of Communication.
const (
	// Auto assumes communication when the demand needs two GPUs or more.
	Auto Communication = iota
	Yes
	No
)

// Demand is what has to be placed together: all requests of all claims of a pod.
type Demand struct {
	Requests    []Request
	Constraints []Constraint
	// Forced GPUs must be among those that serve the requests.
	Forced topology.Mask
	// Held GPUs already belong to the pod. They count for the quality of the set
	// but serve no request; a request may still share one of them.
	Held         topology.Mask
	Policy       Policy
	Communicates Communication
}

// Set is one way to serve a demand.
type Set struct {
	// GPUs is the union over the requests.
	GPUs topology.Mask
	// PerRequest are the GPUs of each request, in the order of Demand.Requests.
	PerRequest []topology.Mask
	// Quality is that of GPUs together with Demand.Held.
	Quality quality.Quality
	// Tier counts from 0, the best tier of this answer. See docs/objective.md.
	Tier int
	// DeltaV is what the set costs later claims: V before minus V after.
	DeltaV int64
	// Keys are the remaining criteria, for explanations.
	Keys Keys
}

// Keys are the criteria that decide between sets of one tier and DeltaV, in the
// order in which they are asked.
type Keys struct {
	// Stranded is the change of the capacity that typical claims cannot use, in
	// per mille of a GPU, weighted by how typical they are; less is better.
	Stranded int64
	// Residual is what remains of the GPUs of a set of shares, in per mille of a
	// GPU; less is better. 0 for whole GPUs.
	Residual int64
	// PairMBps is the sum of the weights of all pairs; more is better.
	PairMBps int64
	// CutMBps is the sum of the weights between the set and the other idle GPUs;
	// less is better: it leaves the better connected GPUs together.
	CutMBps int64
	// NUMANodes counts the NUMA nodes of the set; fewer is better.
	NUMANodes int
	// DeltaLocal is DeltaV computed with PCIe and NUMA distances instead of
	// NVLinks; less is better. It keeps sockets whole on machines whose links are
	// all alike.
	DeltaLocal int64
	// Rails counts the nearest network cards of the set, and GPUs without one;
	// fewer is better.
	Rails int
}

// Result is the answer to a demand on one machine.
type Result struct {
	// Sets are ranked, the best first. Empty when Reason says why.
	Sets []Set
	// Reason is ReasonNone when there are sets.
	Reason Reason
	// BestNow is the best set that fits, BestWhenFree the best one if nothing were
	// taken, both whatever the policy demands. Nil when there is none. They are
	// filled in when Sets is empty, for messages.
	BestNow, BestWhenFree *Set
	// Communicates tells which order was used, as decided from the demand.
	Communicates bool
	// VMax is the value V of the machine with every present GPU idle. It bounds
	// DeltaV.
	VMax int64
	// Exact is false when the search was cut short, see the package comment.
	Exact bool
	// Feasible counts the sets that fit, before the policy.
	Feasible int
}

// Reason says why there is no set.
type Reason uint8

// The reasons, in the order in which they are found.
const (
	ReasonNone Reason = iota
	// ReasonTooFewEligible: some request asks for more GPUs than it may use.
	ReasonTooFewEligible
	// ReasonForcedNotEligible: a forced GPU cannot serve any request.
	ReasonForcedNotEligible
	// ReasonConstraint: no set satisfies the constraints, even if all were free.
	ReasonConstraint
	// ReasonTooFewFree: it would fit if GPUs were freed.
	ReasonTooFewFree
	// ReasonPolicyNever: no set of this machine satisfies the required policy.
	ReasonPolicyNever
	// ReasonPolicyNow: a set that satisfies the policy exists but is not free.
	ReasonPolicyNow
	numReasons
)

var reasonText = [numReasons]string{
	"",
	"not enough eligible GPUs",
	"forced GPU not eligible",
	"constraints cannot be satisfied",
	"not enough free GPUs",
	"no set of GPUs reaches the required topology",
	"no free set of GPUs reaches the required topology",
}

// String returns the reason for people; constant texts, suitable for counting.
func (r Reason) String() string {
	if r >= numReasons {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return reasonText[r]
}
