// SPDX-License-Identifier: Apache-2.0

package device

import (
	"strings"
	"testing"

	"github.com/topodra/topodra/topology"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"550.54.15": "550.54.15", "535.104.05": "535.104.5", "12.4": "12.4.0", "8": "8.0.0", "000": "0.0.0", "1000000000.1": "1000000000.1.0",
	} {
		got, err := ParseVersion(text)
		if err != nil || got.String() != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": `"" is not a number`, "550.": `"" is not a number`, "550.x": `"x" is not a number`, "-1": `"-1" is not a number`,
		"1.2.3.4": "it has 4 parts", "1000000001": "is not a number up to 1000000000", "99999999999": "is not a number",
	} {
		got, err := ParseVersion(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %s, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestFabricString(t *testing.T) {
	t.Parallel()
	fabric := Fabric{ClusterUUID: [16]byte{0x31, 0x83, 0x41, 0x9e, 4: 1, 15: 0xff}, CliqueID: 4294967295}
	if got, want := fabric.String(), "3183419e-0100-0000-0000-0000000000ff.4294967295"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSnapshotValidate(t *testing.T) {
	t.Parallel()
	good := func() *Snapshot {
		return &Snapshot{Machine: topology.New("two", 2), GPUs: []GPU{
			{UUID: "GPU-a", PCIAddress: "0000:07:00.0", MIGDevices: []MIGDevice{{UUID: "MIG-a"}}},
			{UUID: "GPU-b", PCIAddress: "0000:0a:00.0"},
		}}
	}
	for name, tc := range map[string]struct {
		change func(*Snapshot)
		want   string
	}{
		"good":            {func(*Snapshot) {}, ""},
		"empty":           {func(s *Snapshot) { *s = Snapshot{} }, ""},
		"no machine":      {func(s *Snapshot) { s.Machine = nil }, "2 GPUs without a machine"},
		"no GPUs":         {func(s *Snapshot) { s.GPUs, s.Machine = nil, topology.New("none", 0) }, "a machine without GPUs"},
		"other machine":   {func(s *Snapshot) { s.Machine = topology.New("three", 3) }, "2 GPUs, but the machine has 3"},
		"broken machine":  {func(s *Snapshot) { s.Machine.NVLinks[0][1] = 1 }, "row 0, column 1"},
		"order":           {func(s *Snapshot) { s.GPUs[1].PCIAddress = "0000:04:00.0" }, `GPU 1 at "0000:04:00.0" comes after "0000:07:00.0"`},
		"no UUID":         {func(s *Snapshot) { s.GPUs[1].UUID = "" }, "GPU 1 has no UUID"},
		"same UUID":       {func(s *Snapshot) { s.GPUs[1].UUID = "GPU-a" }, `GPU 1 has the same UUID "GPU-a" as GPU 0`},
		"UUID of MIG":     {func(s *Snapshot) { s.GPUs[1].UUID = "MIG-a" }, `GPU 1 has the same UUID "MIG-a" as GPU 0, MIG device 0`},
		"MIG without one": {func(s *Snapshot) { s.GPUs[0].MIGDevices[0].UUID = "" }, "GPU 0, MIG device 0 has no UUID"},
	} {
		snapshot := good()
		tc.change(snapshot)
		err := snapshot.Validate()
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got error %v, want %q", name, err, tc.want)
		}
	}
}
