// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strings"
	"testing"
)

// TestAssess: each fault alone gives exactly its finding, and what is well gives none.
func TestAssess(t *testing.T) {
	t.Parallel()
	good := func() *Observation {
		return &Observation{UUID: "GPU-a", UncorrectedErrors: new(uint64(5)), Remap: &Remap{}, ActiveLinks: new(12), Fabric: FabricGood}
	}
	base := Baseline{UncorrectedErrors: 5, ActiveLinks: 12}
	for name, tc := range map[string]struct {
		change func(*Observation)
		want   string
		next   Baseline
	}{
		"good":            {func(*Observation) {}, "", base},
		"nothing known":   {func(o *Observation) { *o = Observation{UUID: "GPU-a"} }, "", base},
		"lost":            {func(o *Observation) { o.Lost, o.Remap.Failed = "it is", true }, "lost=lost fatal Unhealthy", base},
		"hangs":           {func(o *Observation) { o.Hangs = "GetName" }, "not-responding=hangs fatal Unhealthy", base},
		"new errors":      {func(o *Observation) { *o.UncorrectedErrors = 7 }, "ecc=uncorrectable fatal Unhealthy", Baseline{7, 12}},
		"errors reset":    {func(o *Observation) { *o.UncorrectedErrors = 0 }, "", Baseline{0, 12}},
		"pending":         {func(o *Observation) { o.Remap.Pending = true }, "row-remap=pending degraded Unhealthy", base},
		"failed":          {func(o *Observation) { o.Remap.Pending, o.Remap.Failed = true, true }, "row-remap=failed fatal Unhealthy", base},
		"link down":       {func(o *Observation) { *o.ActiveLinks = 11 }, "nvlink=links-down info ", base},
		"link up":         {func(o *Observation) { *o.ActiveLinks = 18 }, "", Baseline{5, 18}},
		"not joined":      {func(o *Observation) { o.Fabric = FabricNotCompleted }, "fabric=not-completed fatal Unhealthy", base},
		"cannot join":     {func(o *Observation) { o.Fabric = FabricFailed }, "fabric=failed fatal Unhealthy", base},
		"fabric ill":      {func(o *Observation) { o.Fabric = FabricUnhealthy }, "fabric=unhealthy degraded Unhealthy", base},
		"fabric slow":     {func(o *Observation) { o.Fabric = FabricLimited }, "fabric=limited info ", base},
		"reset":           {func(o *Observation) { o.Recovery = RecoveryReset }, "recovery-action=reset fatal Unhealthy", base},
		"reboot":          {func(o *Observation) { o.Recovery = RecoveryReboot }, "recovery-action=reboot fatal Unhealthy", base},
		"drain":           {func(o *Observation) { o.Recovery = RecoveryDrainP2P }, "recovery-action=drain-p2p degraded Unhealthy", base},
		"drain and reset": {func(o *Observation) { o.Recovery = RecoveryDrainAndReset }, "recovery-action=drain-and-reset degraded Unhealthy", base},
		"unknown wish":    {func(o *Observation) { o.Recovery = RecoveryOther }, "recovery-action=other degraded Unhealthy", base},
		"two at once": {func(o *Observation) { *o.UncorrectedErrors, o.Remap.Pending = 6, true },
			"ecc=uncorrectable fatal Unhealthy, row-remap=pending degraded Unhealthy", Baseline{6, 12}},
	} {
		o := good()
		tc.change(o)
		findings, next := Assess(o, base)
		var got []string
		for _, f := range findings {
			got = append(got, fmt.Sprintf("%s=%s %s %s", f.Kind, f.Value, f.Severity, f.State))
			if c := (Condition{Target: "GPU-a", Finding: f}); c.check() != nil || f.Message == "" || f.Advice == "" {
				t.Errorf("%s: %+v, %v", name, f, c.check())
			}
		}
		if strings.Join(got, ", ") != tc.want || next != tc.next {
			t.Errorf("%s: got %q, %+v, want %q, %+v", name, got, next, tc.want, tc.next)
		}
	}
	if o := good(); !o.Complete() {
		t.Error("a complete look is none")
	}
	for _, o := range []*Observation{{Lost: "x"}, {Hangs: "x"}, {Partial: true}} {
		if o.Complete() {
			t.Errorf("%+v is a complete look", o)
		}
	}
}
