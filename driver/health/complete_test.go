// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// TestComplete: a GPU that is missing stays at its position with all that was known
// but links, and what is there is untouched, for every GPU and pair of GPUs; back
// again, everything is as before.
func TestComplete(t *testing.T) {
	t.Parallel()
	whole := snapshotOf(5)
	for first := range 5 {
		for second := range 5 {
			l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
			if full, missing := l.complete(whole, true); full != whole || missing != nil {
				t.Fatalf("nothing is missing: got %v", missing)
			}
			rest := without(whole, first, second)
			full, missing := l.complete(rest, true)
			want := *whole
			want.Machine = whole.Machine.Clone()
			gone := topology.MaskOf(first, second)
			for i := range gone.All() {
				for k := range 5 {
					want.Machine.NVLinks[i][k], want.Machine.NVLinks[k][i] = 0, 0
				}
			}
			if diff := cmp.Diff(&want, full); diff != "" || len(missing) != gone.Count() {
				t.Fatalf("without %s: missing %v: %s", gone, missing, diff)
			}
			if again, _ := l.complete(rest, true); !cmp.Equal(again, full) {
				t.Errorf("without %s: another answer the second time", gone)
			}
			if full, missing = l.complete(whole, true); !cmp.Equal(full, whole) || missing != nil {
				t.Errorf("back: got %v missing", missing)
			}
		}
	}
}

// TestCompleteAfterRestart: what was remembered on disk is as good as what was seen,
// and with another boot nothing is missing.
func TestCompleteAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	load := func(boot string) *Ledger {
		t.Helper()
		store := NewStore(dir, "n")
		document, problem, err := store.Load(boot, newClock().now)
		if err != nil || problem != nil {
			t.Fatal(err, problem)
		}
		return NewLedger(Policy{}, document, store, nil)
	}
	whole := snapshotOf(4)
	whole.GPUs[2].MIGEnabled, whole.GPUs[2].MIGDevices = true, []device.MIGDevice{{UUID: "MIG-a", Profile: "3g.40gb"}}
	l := load("boot-1")
	l.complete(whole, true)
	l.Raise("p", "MIG-a", finding(KindXID, "94", Degraded))
	before, _ := l.complete(without(whole, 2), true)
	after, missing := load("boot-1").complete(without(whole, 2), true)
	if diff := cmp.Diff(before, after); diff != "" || len(missing) != 1 || after.GPUs[2].MIGDevices[0].UUID != "MIG-a" {
		t.Errorf("missing %v: %s", missing, diff)
	}
	if got := keys(load("boot-1").Taints("MIG-a", "GPU-2")); len(got) != 1 {
		t.Errorf("got taints %q", got)
	}
	rebooted := load("boot-2")
	if full, missing := rebooted.complete(without(whole, 2), true); len(full.GPUs) != 3 || missing != nil {
		t.Errorf("after a reboot: missing %v", missing)
	}
	if left := rebooted.Conditions(); len(left) != 0 {
		t.Errorf("conditions of what is not there: %+v", left)
	}
}

// TestReplaced: a GPU whose place another one has is gone, with its taints; so is
// one that is known nowhere.
func TestReplaced(t *testing.T) {
	t.Parallel()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	l.complete(snapshotOf(2), true)
	l.Raise("p", "GPU-1", finding(KindXID, "79", Fatal))
	other := snapshotOf(2)
	other.GPUs[1].UUID = "GPU-new"
	full, missing := l.complete(other, true)
	if full != other || missing != nil || len(l.Conditions()) != 0 || !cmp.Equal(l.known(), []device.UUID{"GPU-0", "GPU-new"}) {
		t.Errorf("missing %v, conditions %+v, known %v", missing, l.Conditions(), l.known())
	}
	// A MIG device that is now part of another GPU keeps its old one from staying.
	l = NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	moved := snapshotOf(2)
	moved.GPUs[1].MIGDevices = []device.MIGDevice{{UUID: "MIG-a"}}
	l.complete(moved, true)
	rest := without(snapshotOf(2), 1)
	rest.GPUs[0].MIGDevices = []device.MIGDevice{{UUID: "MIG-a"}}
	if full, missing := l.complete(rest, true); full != rest || missing != nil {
		t.Errorf("moved: missing %v", missing)
	}
}

// TestAllGone: when every GPU is missing, all stay.
func TestAllGone(t *testing.T) {
	t.Parallel()
	l := NewLedger(Policy{}, NewDocument("n", ""), nil, nil)
	l.complete(snapshotOf(3), true)
	full, missing := l.complete(&device.Snapshot{}, true)
	if err := full.Validate(); err != nil || len(full.GPUs) != 3 || len(missing) != 3 {
		t.Errorf("got %d GPUs, %v, %v", len(full.GPUs), missing, err)
	}
	if full.Machine.PCIe[0][1] != snapshotOf(3).Machine.PCIe[0][1] {
		t.Error("distances are forgotten")
	}
}
