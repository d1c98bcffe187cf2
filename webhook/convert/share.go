// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"

	"github.com/topodra/topodra/webhook/classic"
)

// unit is one GPU, or one share of a GPU, that a claim holds for the containers that use it.
type unit struct {
	amount classic.Amount
	holder int   // the need that runs until the end of the pod, or noHolder
	users  []int // needs, ascending
}

// noHolder marks units that only init containers use.
const noHolder = -1

// units decides which container uses which of the pod's GPUs. Containers that run at the same time share none. Init
// containers use those of containers that start later, and each other's. A container without limits may have them from
// several containers; shares come from a single one, so that nothing but their own constraint ties them.
func units(needs []classic.Need, shareInit bool) []unit {
	var all []unit
	for i, need := range needs {
		if need.Kind == classic.Init {
			continue
		}
		for range need.GPUs {
			all = append(all, unit{amount: need.PerGPU, holder: i, users: []int{i}})
		}
	}
	for i, need := range needs {
		if need.Kind != classic.Init {
			continue
		}
		chosen := candidates(all, needs, i, shareInit)
		for _, u := range chosen {
			all[u].users = append(all[u].users, i)
		}
		for range need.GPUs - len(chosen) {
			all = append(all, unit{amount: need.PerGPU, holder: noHolder, users: []int{i}})
		}
	}
	for i := range all {
		slices.Sort(all[i].users)
	}
	return all
}

// candidates returns units that init container i can use, at most as many as it needs.
func candidates(all []unit, needs []classic.Need, i int, shareInit bool) []int {
	need := needs[i]
	if !shareInit && !need.PerGPU.Whole() {
		return nil
	}
	var fromHolders, pool []int
	ofHolder := map[int][]int{}
	for u := range all {
		switch holder := all[u].holder; {
		case all[u].amount != need.PerGPU:
		case holder == noHolder:
			pool = append(pool, u)
		case needs[holder].Kind == classic.Sidecar && holder < i: // it runs already
		default:
			fromHolders = append(fromHolders, u)
			ofHolder[holder] = append(ofHolder[holder], u)
		}
	}
	if need.PerGPU.Whole() {
		usable := slices.Concat(fromHolders, pool)
		return usable[:min(len(usable), need.GPUs)]
	}
	for holder := range needs {
		if usable := ofHolder[holder]; len(usable) >= need.GPUs {
			return usable[:need.GPUs]
		}
	}
	return pool[:min(len(pool), need.GPUs)]
}

// group is consecutive units with the same users: one request.
type group struct {
	amount classic.Amount
	count  int
	users  []int
}

// groups joins units.
func groups(all []unit) []group {
	var joined []group
	for _, u := range all {
		if n := len(joined); n > 0 && joined[n-1].amount == u.amount && slices.Equal(joined[n-1].users, u.users) {
			joined[n-1].count++
			continue
		}
		joined = append(joined, group{amount: u.amount, count: 1, users: u.users})
	}
	return joined
}
