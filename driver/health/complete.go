// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// complete adds to a snapshot the GPUs that are known but missing, without links,
// and returns them. One whose place another GPU has taken is gone for good: it is
// in replaced. The snapshot is not changed.
func complete(snapshot *device.Snapshot, known map[device.UUID]*KnownGPU) (full *device.Snapshot, missing, replaced []device.UUID) {
	present, places := map[device.UUID]bool{}, map[device.PCIAddress]bool{}
	for i := range snapshot.GPUs {
		present[snapshot.GPUs[i].UUID] = true
		if address := snapshot.GPUs[i].PCIAddress; address != "" {
			places[address] = true
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(known)) {
		address := known[uuid].GPU.PCIAddress
		switch {
		case present[uuid]:
		case address == "" || places[address]:
			replaced = append(replaced, uuid)
		default:
			missing = append(missing, uuid)
			places[address] = true
		}
	}
	if len(missing) == 0 {
		return snapshot, nil, replaced
	}
	full = insert(snapshot, known, missing)
	if full.Validate() != nil {
		// For example, a MIG device has moved: better nothing than nonsense.
		return snapshot, nil, append(replaced, missing...)
	}
	return full, missing, replaced
}

// insert adds the missing GPUs.
func insert(snapshot *device.Snapshot, known map[device.UUID]*KnownGPU, missing []device.UUID) *device.Snapshot {
	type entry struct {
		gpu device.GPU
		old int // position in the snapshot; -1 for what is missing
	}
	var entries []entry
	for i := range snapshot.GPUs {
		entries = append(entries, entry{snapshot.GPUs[i], i})
	}
	for _, uuid := range missing {
		entries = append(entries, entry{known[uuid].GPU, -1})
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.gpu.PCIAddress, b.gpu.PCIAddress), cmp.Compare(a.gpu.UUID, b.gpu.UUID))
	})
	full := *snapshot
	full.GPUs = nil
	m := topology.New("", len(entries))
	if snapshot.Machine != nil {
		m.Name, m.Switched = snapshot.Machine.Name, snapshot.Machine.Switched
	}
	for i, a := range entries {
		full.GPUs = append(full.GPUs, a.gpu)
		if a.old >= 0 {
			m.GPUs[i] = snapshot.Machine.GPUs[a.old]
		} else {
			m.GPUs[i] = known[a.gpu.UUID].Info
		}
		for k, b := range entries[:i] {
			class := topology.SYS
			if a.old >= 0 && b.old >= 0 {
				class = snapshot.Machine.PCIe[a.old][b.old]
				m.NVLinks[i][k], m.NVLinks[k][i] = snapshot.Machine.NVLinks[a.old][b.old], snapshot.Machine.NVLinks[a.old][b.old]
			} else if was, ok := distance(known, a.gpu.UUID, b.gpu.UUID); ok {
				class = was
			}
			m.PCIe[i][k], m.PCIe[k][i] = class, class
		}
	}
	full.Machine = m
	return &full
}

// distance of two GPUs, one of which at least is known.
func distance(known map[device.UUID]*KnownGPU, a, b device.UUID) (topology.PCIe, bool) {
	for _, pair := range [][2]device.UUID{{a, b}, {b, a}} {
		if gpu := known[pair[0]]; gpu != nil {
			if class, ok := gpu.PCIe[pair[1]]; ok && class > topology.PCIeSelf && class <= topology.SYS {
				return class, true
			}
		}
	}
	return 0, false
}

// learn notes the GPUs that are there, and reports whether that is news.
func learn(snapshot *device.Snapshot, known map[device.UUID]*KnownGPU) bool {
	changed := false
	for i := range snapshot.GPUs {
		uuid := snapshot.GPUs[i].UUID
		gpu := &KnownGPU{GPU: snapshot.GPUs[i], Info: snapshot.Machine.GPUs[i], PCIe: map[device.UUID]topology.PCIe{}}
		if old := known[uuid]; old != nil {
			// What is missing now is still at its distance.
			maps.Copy(gpu.PCIe, old.PCIe)
			maps.DeleteFunc(gpu.PCIe, func(other device.UUID, _ topology.PCIe) bool { return known[other] == nil })
		}
		for k := range snapshot.GPUs {
			if k != i {
				gpu.PCIe[snapshot.GPUs[k].UUID] = snapshot.Machine.PCIe[i][k]
			}
		}
		if !reflect.DeepEqual(known[uuid], gpu) {
			known[uuid] = gpu
			changed = true
		}
	}
	return changed
}
