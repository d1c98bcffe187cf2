// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/topodra/topodra/driver/checkpoint"
)

// TestFindOverlapAgainstSums draws claims at random and compares with the plain
// sums: there is an overlap if and only if a device of the claim is overbooked,
// and the claims that it names are exactly the others on one such device.
func TestFindOverlapAgainstSums(t *testing.T) {
	t.Parallel()
	part := migDevice()
	part.ParentUUID = gpuDevice(1).UUID
	present := []Device{gpuDevice(0), gpuDevice(1), part}
	known := newDevices(present, func(string) (Device, bool) { return Device{}, false })
	drawDevice := func(t *rapid.T) checkpoint.Device {
		device := rapid.SampledFrom(present).Draw(t, "device")
		out := checkpoint.Device{Name: device.Name, UUID: device.UUID, ParentUUID: device.ParentUUID, Request: "r", AdminAccess: rapid.IntRange(0, 5).Draw(t, "admin") == 0}
		if device.Shareable && rapid.IntRange(0, 9).Draw(t, "exclusive") > 0 {
			out.Consumed = map[string]int64{"memory": rapid.Int64Range(1, 80).Draw(t, "GiB") * gib, "cores": rapid.Int64Range(0, 100).Draw(t, "cores")}
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		prepared := map[types.UID]*checkpoint.Claim{}
		for i := range rapid.IntRange(1, 5).Draw(t, "claims") {
			prepared[types.UID(fmt.Sprint("uid-", i))] = &checkpoint.Claim{Namespace: "n", Name: fmt.Sprint("c", i), Devices: rapid.SliceOfN(rapid.Custom(drawDevice), 1, 3).Draw(t, "devices")}
		}
		uid := types.UID("uid-0")
		got := findOverlap(uid, prepared[uid], prepared, known)
		bad := map[string][]types.UID{} // other claims, by overbooked device of the claim or by a whole and its part
		for _, device := range present {
			if others, overbooked := sums(uid, device, prepared); overbooked {
				bad[device.UUID] = others
			}
		}
		for _, pair := range [][2]string{{part.UUID, part.ParentUUID}, {part.ParentUUID, part.UUID}} {
			if others := holding(pair[1], prepared, uid); len(others) > 0 && slices.Contains(holding(pair[0], prepared, ""), uid) {
				bad[pair[0]+" beside "+pair[1]] = others
			}
		}
		if (got == nil) != (len(bad) == 0) {
			t.Fatalf("got %+v, want overlaps on %v", got, bad)
		}
		if got == nil {
			return
		}
		for _, others := range bad {
			if slices.Equal(others, got.others) {
				return
			}
		}
		t.Errorf("got others %v, want those of one of %v", got.others, bad)
	})
}

// holding lists the claims but one that hold the device, not for admin access.
func holding(uuid string, prepared map[types.UID]*checkpoint.Claim, but types.UID) []types.UID {
	var out []types.UID
	for i := range 6 {
		uid := types.UID(fmt.Sprint("uid-", i))
		if record := prepared[uid]; record != nil && uid != but &&
			slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool { return d.UUID == uuid && !d.AdminAccess }) {
			out = append(out, uid)
		}
	}
	return out
}

// sums adds up who uses the device, if the claim does, and says whether that is
// too much.
func sums(uid types.UID, device Device, prepared map[types.UID]*checkpoint.Claim) (others []types.UID, overbooked bool) {
	var memory, cores, users, whole int64
	mine := false
	for i := range 6 {
		claim := types.UID(fmt.Sprint("uid-", i))
		if prepared[claim] == nil {
			continue
		}
		for _, d := range prepared[claim].Devices {
			if d.UUID != device.UUID || d.AdminAccess {
				continue
			}
			users++
			memory += d.Consumed["memory"]
			cores += d.Consumed["cores"]
			if d.Consumed == nil {
				whole++
			}
			if claim == uid {
				mine = true
			} else if !slices.Contains(others, claim) {
				others = append(others, claim)
			}
		}
	}
	return others, mine && ((users > 1 && (whole > 0 || !device.Shareable)) || (device.Shareable && (memory > 80*gib || cores > 100)))
}
