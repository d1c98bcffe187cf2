// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"strings"
	"testing"

	"github.com/topodra/topodra/sim/fleet"
	"github.com/topodra/topodra/sim/model"
)

const machines = "../../topology/topotest/machines"

func TestParse(t *testing.T) {
	t.Parallel()
	l := fleet.NewLoader(machines)
	specs, err := l.Parse("2*dgx1v_8xv100, 1*a30_4x_pairs")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "dgx1v_8xv100-0000 dgx1v_8xv100-0001 a30_4x_pairs-0000" {
		t.Errorf("nodes: %s", got)
	}
	if specs[0].Class != specs[1].Class || specs[2].Class.N() != 4 {
		t.Error("equal machines do not share a class")
	}
	for _, text := range []string{"", "dgx1v_8xv100", "0*dgx1v_8xv100", "100001*dgx1v_8xv100", "1*nothing", "1*../machines/dgx1v_8xv100", "1*", "x*dgx1v_8xv100"} {
		if _, err := l.Parse(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestOpenb(t *testing.T) {
	t.Parallel()
	specs, err := fleet.NewLoader(machines).Parse(fleet.OpenbName)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := model.NewCluster(specs)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 1213 || cluster.GPUs() != 6212 {
		t.Errorf("%d nodes with %d GPUs, want 1213 with 6212", len(specs), cluster.GPUs())
	}
	best := model.NewBest()
	for _, s := range specs {
		q := best.Of(s.Class, 2)
		linked := strings.HasPrefix(s.Model, "V100") || s.Model == "G3"
		if s.Class.N() > 1 && q.HasNVLink() != linked {
			t.Fatalf("node %q of model %q: the best pair has %v", s.Name, s.Model, q)
		}
		if s.CPUMilli == 0 || s.HostMiB == 0 {
			t.Fatalf("node %q has no limits", s.Name)
		}
	}
}
