// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

// TestRecordedMachines: every recorded machine comes back exactly, and keeps its
// class.
func TestRecordedMachines(t *testing.T) {
	t.Parallel()
	for _, name := range topotest.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded, err := topotest.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			devices := devicesOf(t, recorded.Machine)
			slices.Reverse(devices)
			got, err := Decode(recorded.Machine.Name, devices, api.OwnMapping())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(recorded.Machine, got.Machine); diff != "" {
				t.Error(diff)
			}
			if got.Machine.ClassID() != recorded.Machine.ClassID() || got.Present != topology.FullMask(recorded.Machine.N()) || got.Warnings != nil {
				t.Errorf("class %s, present %s, warnings %q", got.Machine.ClassID(), got.Present, got.Warnings)
			}
		})
	}
}
