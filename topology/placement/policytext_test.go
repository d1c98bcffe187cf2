// SPDX-License-Identifier: Apache-2.0

package placement

import "testing"

func TestLinks(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Policy{
		"":                            {},
		" over NVLink":                {Level: LevelNVLink},
		" below one PCIe host bridge": {Level: LevelPCIe},
		" within one NUMA node":       {Level: LevelNUMA},
		" at 50 GB/s":                 {MinMBps: 50_000},
		" over NVLink at 50 GB/s":     {Level: LevelNVLink, MinMBps: 50_000},
	} {
		if got := p.Links(); got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
}
