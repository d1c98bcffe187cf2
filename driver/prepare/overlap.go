// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/checkpoint"
)

// overlap is a device of which claims would use more than there is.
type overlap struct {
	message string

	// others are the prepared claims that use the device, in order.
	others []types.UID
}

// findOverlap checks the record of claim uid against all other prepared claims
// and against itself, and its devices against the parts and the wholes of them that
// others hold. Devices with admin access are used beside everybody else and do not
// count. It returns nil when everything fits.
func findOverlap(uid types.UID, record *checkpoint.Claim, prepared map[types.UID]*checkpoint.Claim, known devices) *overlap {
	byUUID := map[string][]use{}
	for i := range record.Devices {
		addUse(byUUID, uid, record, &record.Devices[i])
	}
	for _, other := range slices.Sorted(maps.Keys(prepared)) {
		if other == uid {
			continue
		}
		for i := range prepared[other].Devices {
			device := &prepared[other].Devices[i]
			if _, wanted := byUUID[device.UUID]; wanted {
				addUse(byUUID, other, prepared[other], device)
			}
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(byUUID)) {
		if message := overbooked(byUUID[uuid], known); message != "" {
			return &overlap{message: message, others: otherClaims(byUUID[uuid], uid)}
		}
	}
	return wholeBesidePart(uid, record, prepared)
}

// wholeBesidePart looks for a GPU that one claim holds and a MIG device of it that
// another one holds, either way round: a GPU can change its MIG mode while it is
// idle, whoever holds it.
func wholeBesidePart(uid types.UID, record *checkpoint.Claim, prepared map[types.UID]*checkpoint.Claim) *overlap {
	for i := range record.Devices {
		mine := use{claim: uid, record: record, device: &record.Devices[i]}
		if mine.device.AdminAccess {
			continue
		}
		uses := usesBeside(uid, mine.device, prepared)
		if len(uses) == 0 {
			continue
		}
		relation := "which has MIG devices that are allocated to"
		if isPart(mine.device, uses[0].device) {
			relation = "which is a part of GPU " + describe(uses[0].device) + ", and that is allocated to"
		}
		return &overlap{others: otherClaims(uses, uid), message: fmt.Sprintf("device %s is allocated to %s, %s %s",
			describe(mine.device), holders([]use{mine}), relation, holders(uses))}
	}
	return nil
}

// usesBeside lists what other claims than uid hold of the GPU that the device is a
// part of, and of parts of the device.
func usesBeside(uid types.UID, mine *checkpoint.Device, prepared map[types.UID]*checkpoint.Claim) []use {
	var out []use
	for _, other := range slices.Sorted(maps.Keys(prepared)) {
		if other == uid {
			continue
		}
		for i := range prepared[other].Devices {
			if device := &prepared[other].Devices[i]; !device.AdminAccess && (isPart(mine, device) || isPart(device, mine)) {
				out = append(out, use{claim: other, record: prepared[other], device: device})
			}
		}
	}
	return out
}

// isPart says whether part is a MIG device of the GPU whole.
func isPart(part, whole *checkpoint.Device) bool {
	return part.ParentUUID != "" && part.ParentUUID == whole.UUID
}

// describe names a recorded device, which need not be there any more.
func describe(device *checkpoint.Device) string {
	return (&Device{Name: device.Name, UUID: device.UUID, PCIAddress: device.PCIAddress}).String()
}

// use is one share of a device.
type use struct {
	claim  types.UID
	record *checkpoint.Claim
	device *checkpoint.Device
}

// addUse books a device unless it is there for admin access.
func addUse(byUUID map[string][]use, uid types.UID, record *checkpoint.Claim, device *checkpoint.Device) {
	if !device.AdminAccess {
		byUUID[device.UUID] = append(byUUID[device.UUID], use{claim: uid, record: record, device: device})
	}
}

// overbooked says in words what is too much; "" when it fits.
func overbooked(uses []use, known devices) string {
	if len(uses) == 0 {
		return ""
	}
	device := known.present[uses[0].device.Name]
	if len(uses) > 1 && (!device.Shareable || slices.ContainsFunc(uses, func(u use) bool { return len(u.device.Consumed) == 0 })) {
		return fmt.Sprintf("device %s can be used by one claim at a time, but is allocated to %s", device.String(), holders(uses))
	}
	for _, name := range slices.Sorted(maps.Keys(device.Capacity)) {
		total := int64(0)
		for _, u := range uses {
			total += u.device.Consumed[name]
		}
		if total > device.Capacity[name] {
			return fmt.Sprintf("device %s has %d of capacity %q, but %d is allocated to %s", device.String(), device.Capacity[name], name, total, holders(uses))
		}
	}
	return ""
}

// holders lists the claims for messages.
func holders(uses []use) string {
	var names []string
	for _, u := range uses {
		names = append(names, fmt.Sprintf("claim %q (request %q)", u.record, u.device.Request))
	}
	return strings.Join(names, ", ")
}

// otherClaims in the order of uses, each once.
func otherClaims(uses []use, self types.UID) []types.UID {
	var out []types.UID
	for _, u := range uses {
		if u.claim != self && !slices.Contains(out, u.claim) {
			out = append(out, u.claim)
		}
	}
	return out
}
