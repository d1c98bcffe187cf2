// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"slices"
	"strings"
)

// Scheduler is what is measured.
type Scheduler string

const (
	// InTree is the default profile of kube-scheduler.
	InTree Scheduler = "in-tree"
	// TopoDRA is the profile that we ship.
	TopoDRA Scheduler = "topodra"
)

// Schedulers that can be measured.
func Schedulers() []Scheduler { return []Scheduler{InTree, TopoDRA} }

// Request is what each pod of a case asks for, in one claim.
type Request struct {
	// GPUs, at least 1.
	GPUs int
	// MemoryGi of each, out of 80; 0 is all.
	MemoryGi int
	// CoresPercent of each; 0 is best effort.
	CoresPercent int
}

// perNode is how many such claims fit on a node of 8 idle GPUs with 80 GiB.
func (r Request) perNode() int {
	sharers := 1
	if r.MemoryGi > 0 {
		sharers = 80 / r.MemoryGi
	}
	if r.CoresPercent > 0 {
		sharers = min(sharers, 100/r.CoresPercent)
	}
	return 8 / r.GPUs * sharers
}

// Case is a kind of load.
type Case struct {
	Name string
	// About says, for people, what is measured.
	About string
	// Request of each pod.
	Request Request
	// FilledPercent of the nodes are full when the measurement begins.
	FilledPercent int
	// MixedPercent of the nodes are of other kinds than the rest.
	MixedPercent int
	// Churn keeps the load up: each pod that was scheduled is deleted and
	// replaced, for the duration of the run. Otherwise the pods are made at once
	// and the run ends when all of them have a node.
	Churn bool
}

// maxPods is how many pods are measured in a case without churn. The throughput is
// sampled once a second, so there must be enough for several.
const maxPods = 1000

// Pods returns how many pods are made on a cluster of so many nodes: as many as fit,
// with a tenth to spare, but not more than maxPods.
func (c *Case) Pods(nodes int) int {
	free := nodes * (100 - c.FilledPercent) / 100
	return max(1, min(maxPods, free*c.Request.perNode()*9/10))
}

// Cases that are measured, in the order in which they are reported.
func Cases() []Case {
	return []Case{
		{Name: "quads", About: "whole 4-GPU claims", Request: Request{GPUs: 4}},
		{Name: "shared-quads", About: "4-GPU claims of half the memory and half the cores", Request: Request{GPUs: 4, MemoryGi: 40, CoresPercent: 50}},
		{Name: "shares", About: "single shares, ten to a GPU", Request: Request{GPUs: 1, MemoryGi: 8}},
		{Name: "full", About: "whole 4-GPU claims, 90 % of the nodes are full", Request: Request{GPUs: 4}, FilledPercent: 90},
		{Name: "mixed", About: "whole 4-GPU claims, 10 % of the nodes are of other kinds", Request: Request{GPUs: 4}, MixedPercent: 10},
		{Name: "churn", About: "whole 4-GPU claims that come and go, half of the nodes are full", Request: Request{GPUs: 4}, FilledPercent: 50, Churn: true},
	}
}

// FindCase returns the case of a name.
func FindCase(name string) (Case, error) {
	cases := Cases()
	i := slices.IndexFunc(cases, func(c Case) bool { return c.Name == name })
	if i < 0 {
		names := make([]string, len(cases))
		for i := range cases {
			names[i] = cases[i].Name
		}
		return Case{}, fmt.Errorf("there is no case %q; there are %s", name, strings.Join(names, ", "))
	}
	return cases[i], nil
}
