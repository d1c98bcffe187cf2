// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/topodra/topodra/topology"
)

func TestNumbers(t *testing.T) {
	t.Parallel()
	n := Numbers{0, 2, 3, 4, 10, 4000}
	for text, want := range map[string]topology.Mask{
		"": 0, "{}": 0, "0": topology.MaskOf(0), "{ 2, 10 }": topology.MaskOf(1, 4), "0-3": topology.MaskOf(0, 1, 2),
		"2-4,4000": topology.MaskOf(1, 2, 3, 5), " 3 - 10 ": topology.MaskOf(2, 3, 4),
	} {
		if got, err := n.Parse(text); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"1": "GPU 1 is not on this machine, which has the GPUs 0,2-4,10,4000", "0-1": "GPU 1 is not", "4-2": "runs backwards",
		"{0": "no closing brace", "0}": `"0}" is not the number`, "0,,2": `"" is not`, "-1": `"" is not`, "70000": `"70000" is not`,
	} {
		if _, err := n.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	for set, want := range map[topology.Mask]string{
		0: "", topology.FullMask(6): "0,2-4,10,4000", topology.MaskOf(0, 1, 2): "0,2,3", topology.MaskOf(4, 5): "10,4000",
	} {
		if got := n.List(set); got != want {
			t.Errorf("%s: %q, want %q", set, got, want)
		}
	}
	// Without gaps the lists are those of masks.
	for set := range topology.FullMask(8) {
		if got, want := (Numbers)(nil).List(set), strings.Trim(set.String(), "{}"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
