// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
)

// FuzzDecode feeds pools as JSON. Whatever is accepted must be valid, must not
// depend on the order of devices, and must survive a round trip.
func FuzzDecode(f *testing.F) {
	for _, devices := range [][]Device{devicesOf(f, quad()), devicesOf(f, quad())[2:], {{Name: "a"}, {Name: "b"}}} {
		seed, err := json.Marshal(devices)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, own bool) {
		var devices []Device
		if json.Unmarshal(raw, &devices) != nil {
			return
		}
		mapping := api.OwnMapping()
		if !own {
			mapping.Driver = "gpu.example.com"
			mapping.Attributes.NVLinkDomain = string(api.AttrNVLinkDomain)
		}
		got, err := Decode("fuzz", devices, mapping)
		slices.Reverse(devices)
		reversed, reversedErr := Decode("fuzz", devices, mapping)
		if err != nil {
			if reversedErr == nil || err.Error() != reversedErr.Error() {
				t.Fatalf("error depends on the order: %v, %v", err, reversedErr)
			}
			return
		}
		slices.Reverse(reversed.Positions)
		if diff := cmp.Diff(got, reversed); diff != "" {
			t.Fatalf("result depends on the order: %s", diff)
		}
		encoded, err := Encode(got.Machine)
		if err != nil {
			t.Fatal(err)
		}
		again := make([]Device, len(encoded))
		for i := range encoded {
			again[i] = Device{Name: string(rune('a' + i)), Attributes: encoded[i]}
		}
		decoded, err := Decode("fuzz", again, api.OwnMapping())
		if err != nil {
			t.Fatal(err)
		}
		want := got.Machine.Clone()
		// A machine without links has nobody to say that it is switched, and long names are dropped.
		want.Switched = decoded.Machine.Switched
		if diff := cmp.Diff(want, decoded.Machine); diff != "" {
			t.Fatalf("round trip: %s", diff)
		}
	})
}
