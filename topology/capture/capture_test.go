// SPDX-License-Identifier: Apache-2.0

package capture_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/quality"
	"github.com/topodra/topodra/topology/topotest"
)

// TestRecordedMachines pins what is read from recordings whose columns are odd.
func TestRecordedMachines(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(r *capture.Recorded) bool{
		"polaris_4xa100_nv4": func(r *capture.Recorded) bool { // NUMA nodes run backwards
			return r.Machine.GPUs[0].NUMA == 3 && r.Machine.GPUs[3].NUMA == 0 && r.Machine.PCIe[0][1] == topology.SYS && !r.Machine.Switched
		},
		"gb_nvl72_4x_8nic_cdmm_numa": func(r *capture.Recorded) bool { // lists of nodes
			return r.NVL72 && r.Machine.GPUs[0].NUMA == 0 && r.Machine.GPUs[2].NUMA == 1 &&
				r.GPUs[1].NUMAText == "0,3-9,11-17" && r.GPUs[1].GPUNUMAID == 10 && r.Machine.Switched
		},
		"dgx1v_8xv100": func(r *capture.Recorded) bool { // NUMA is null, CPUs tell the sockets
			m := r.Machine
			return m.GPUs[0].NUMA == topology.NoNUMA && m.PCIe[0][3] == topology.NODE && m.PCIe[0][4] == topology.SYS &&
				m.GPUs[2].NearestNIC == "mlx5_1" && m.GPUs[0].NVLinkMBps == 25_781 && m.GPUs[0].PCIeGen == 3
		},
		"derived_dgx1p_8xp100": func(r *capture.Recorded) bool { // PCIe classes are recorded
			m := r.Machine
			return m.PCIe[0][2] == topology.PIX && m.NVLinks[0][2] == 1 && m.GPUs[5].NVLinkMBps == 20_000
		},
		"traverse_ac922_4xv100_nv3": func(r *capture.Recorded) bool { return r.Machine.GPUs[3].NUMA == 8 && !r.Machine.Switched },
		"b200_8x_degraded_gpu2": func(r *capture.Recorded) bool { // one GPU off the switch, cells of NICs cut off
			m := r.Machine
			return m.Switched && m.NVLinks[2][3] == 0 && m.Domains()[2] == -1 && r.NICs[0].ToGPU[7] == ""
		},
		"h100_8x_9nic_reversed_rail": func(r *capture.Recorded) bool {
			return r.Machine.GPUs[0].NearestNIC == "NIC8" && len(r.NICs) == 9
		},
		"dgxa100_8xa100": func(r *capture.Recorded) bool { // two cards are equally near, the first counts
			return r.Machine.GPUs[0].NearestNIC == "NIC0" && r.Machine.GPUs[1].NearestNIC == "NIC0"
		},
		"derived_dgx2_16xv100":   func(r *capture.Recorded) bool { return r.Machine.N() == 16 && r.Machine.Switched },
		"della_4xa100_sxm_nv4":   func(r *capture.Recorded) bool { return !r.Machine.Switched }, // a mesh of cables
		"a6000_3x_pair_plus_one": func(r *capture.Recorded) bool { return r.Machine.GPUs[0].NVLinkMBps == 14_062 },
	} {
		r, err := topotest.Load(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !check(r) || len(r.Warnings) > 0 || r.Machine.Name != name || len(r.GPUs) != r.Machine.N() {
			t.Errorf("%s: warnings %v, machine %+v\n%s", name, r.Warnings, r.Machine, r.Machine.Matrix())
		}
	}
}

// base is a small recording that the cases below break.
const base = `{"name":"m","hardware":"2x A100","gpus":[{"index":0,"numa":0},{"index":1,"numa":"1,3-4"}],
"links":[["X","NV4"],["NV4","X"]],"nics":[{"name":"n0","toGPU":["PIX",null],"toNIC":["X"]}],"new field":{"a":[1]}}`

func TestJSONShapes(t *testing.T) {
	t.Parallel()
	if _, err := capture.Parse([]byte(base), "x"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ old, new, want string }{
		{base, "", "empty"},
		{base, "{", "decoding JSON"},
		{base, "{}", "gpus: 0 entries"},
		{`"index":1`, `"index":2`, "entry 1 has index 2"},
		{`"numa":0`, `"numa":-1`, "entry 0: numa"},
		{`"numa":0`, `"numa":[0]`, "not a NUMA node"},
		{`"numa":0`, `"numa":1.5`, "not a NUMA node"},
		{`"1,3-4"`, `"one"`, `entry 1: numa "one"`},
		{`"1,3-4"`, `"1","gpuNumaId":"x"`, `gpuNumaId "x"`},
		{`,["NV4","X"]]`, `]`, "links: 1 rows for 2 GPUs"},
		{`["NV4","X"]]`, `["NV4"]]`, "links: row 1 has 1 columns"},
		{`["X","NV4"]`, `["X",null]`, "row 0, column 1: null"},
		{`["X","NV4"]`, `["X","NVX"]`, `links: row 0, column 1: "NVX"`},
		{`["X","NV4"]`, `["X","NV99"]`, `links: row 0, column 1: "NV99"`},
		{`["X","NV4"]`, `["X","X"]`, "links: row 0, column 1"},
		{`["NV4","X"]`, `["NV4","SYS"]`, "links: row 1, column 1"},
		{`"links"`, `"pcieClass":[["X","NV1"],["SYS","X"]],"links"`, "pcieClass: row 0, column 1"},
		{`"links"`, `"pcieClass":[["X"],["SYS","X"]],"links"`, "pcieClass: row 0 has 1 columns"},
		{`"toGPU":["PIX",null]`, `"toGPU":["PIX"]`, `nics: "n0" has 1 columns`},
		{`"toGPU":["PIX",null]`, `"toGPU":["PIX","NV1"]`, `nics: row "n0", column 1`},
		{`"toGPU":["PIX",null]`, `"toGPU":["PIX","X"]`, `nics: row "n0", column 1`},
		{`"toNIC":["X"]`, `"toNIC":["X","SYS"]`, "toNIC for 1 NICs"},
		{`"toNIC":["X"]`, `"toNIC":["Y"]`, "NIC column 0"},
		{`"name":"n0"`, `"name":""`, "entry 0 has no name"},
		{`"links"`, `"nvlink_gbps_per_link":-1,"links"`, "nvlink_gbps_per_link"},
		{`"links"`, `"nvlink_gbps_per_link":1e9,"links"`, "nvlink_gbps_per_link"},
		{`"links"`, `"nvlink_gbps_per_link":1e999,"links"`, "nvlink_gbps_per_link: +Inf is out of range: it must be 0.001 to 2857 GB/s"},
		{`"links"`, `"nvlink_gbps_per_link":1e-9,"links"`, "nvlink_gbps_per_link: 1e-09 is out of range"},
		{`"links"`, `"nvlink_gbps_per_link":"25","links"`, "nvlink_gbps_per_link: a string where a number is expected"},
		{base, "null", "it is null, it must be an object"},
		{base, "[1, 2]", "it is a list, it must be an object in braces, such as {\"gpus\": …}"},
		{base, `"GPU0"`, "it is a string, it must be an object"},
		{base, "{\n\"gpus\": [,]}", "line 2, column 10"},
		{base, "\xff\xfe{\x00}\x00", "it is UTF-16: convert it to UTF-8"},
		{base, "{\x00}\x00", "iconv -f UTF-16LE"},
		{base, "{\"name\":\"\xff\"}", "not valid UTF-8"},
		{base, "\ufeff ", "empty"},
		{`"name":"m"`, `"name":7`, "name: a number where a string is expected"},
		{`"name":"m"`, `"name":"` + strings.Repeat("m", 254) + `"`, "name: 254 bytes, the limit is 253"},
		{`"name":"m"`, `"name":"m","nvl72":1`, "nvl72: a number where true or false is expected"},
		{`"name":"m"`, `"name":"m","name":"n"`, `key "name" appears twice`},
		{`"name":"m"`, `"Name":"m"`, `key "Name": write it as "name"`},
		{`"index":1,`, `"index":1,"Numa":1,`, `gpus: entry 1: key "Numa": write it as "numa"`},
		{`"index":1,`, `"index":1,"numa":1,`, `gpus: entry 1: key "numa" appears twice`},
		{`"index":1`, `"index":"1"`, "gpus: entry 1: index: a string where a number is expected"},
		{`{"index":0,"numa":0}`, `null`, "gpus: entry 0: null where an object"},
		{`"gpus":[`, `"gpus":"2","other":[`, "gpus: a string where a list is expected"},
		{`"1,3-4"`, `"3-1"`, `entry 1: numa "3-1"`},
		{`"numa":0`, `"numa":true`, `numa "true" is not a NUMA node`},
		{`"numa":0`, `"cpuAffinity":"0-7,1 6"`, `entry 0: cpuAffinity "0-7,1 6" is not a list of CPUs`},
		{`"numa":0`, `"cpuAffinity":["0"]`, `gpus: entry 0: cpuAffinity: a list where a string such as "0-31,64-95" is expected`},
		{`["X","NV4"]`, `["X",4]`, `links: row 0, column 1: a number where a string such as "NV4" or "SYS" is expected`},
		{`["X","NV4"]`, `"X NV4"`, "links: row 0: a string where a list is expected"},
		{`["X","NV4"]`, `["X","` + strings.Repeat("z", 1000) + `"]`, `"` + strings.Repeat("z", 40) + `"… is not a link`},
		{`"nics":[`, `"nics":[{"name":"n0","toGPU":["PIX",null]},`, `two are called "n0"`},
		{`"name":"n0"`, `"name":"n 0"`, `the name "n 0" is not a word`},
		{`"name":"n0"`, `"name":"` + strings.Repeat("n", 65) + `"`, "has 65 bytes"},
		{`"toGPU":["PIX",null]`, `"toGPU":[1,null]`, `nics: entry 0: toGPU, column 0: a number where`},
		{`"nics":[`, `"nics":[` + strings.Repeat(`{"name":"n","toGPU":[]},`, 256), "nics: 257 entries, the limit is 256"},
	} {
		data := strings.Replace(base, tc.old, tc.new, 1)
		if _, err := capture.Parse([]byte(data), "x"); err == nil || !strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s instead of %s: error %v, want one with %q", tc.new, tc.old, err, tc.want)
		}
	}
	for _, odd := range []string{"\ufeff" + base, strings.ReplaceAll(base, "\n", "\r\n"), strings.Replace(base, `"numa":0`, `"numa":null,"cpuAffinity":"N/A"`, 1)} {
		if r, err := capture.Parse([]byte(odd), "x"); err != nil || r.Machine.NVLinks[0][1] != 4 {
			t.Errorf("%q: %v", odd[:10], err)
		}
	}
	if _, err := capture.Parse(make([]byte, capture.MaxBytes+1), "x"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("huge input: %v", err)
	}
	if _, err := topotest.Load("nothing"); err == nil {
		t.Error("an unknown machine was found")
	}
}

// TestAsymmetry: the worse direction counts, and a warning names both cells.
func TestAsymmetry(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b, links string
		class       topology.PCIe
		warning     string
	}{
		{"NV4", "NV2", "NV2", topology.SYS, "row 1, column 0 says NV2, but row 0, column 1 says NV4: using NV2"},
		{"NV4", "PIX", "PIX", topology.PIX, "using PIX"},
		{"NODE", "NV1", "NODE", topology.NODE, "using NODE"},
		{"PHB", "SYS", "SYS", topology.SYS, "using SYS"},
	} {
		data := strings.Replace(base, `"NV4"],["NV4"`, `"`+tc.a+`"],["`+tc.b+`"`, 1)
		r, err := capture.ParseJSON([]byte(data), "x")
		if err != nil {
			t.Errorf("%s/%s: %v", tc.a, tc.b, err)
			continue
		}
		if r.Machine.LinkName(0, 1) != tc.links || r.Machine.PCIe[0][1] != tc.class ||
			len(r.Warnings) != 1 || !strings.Contains(string(r.Warnings[0]), tc.warning) {
			t.Errorf("%s/%s: %s over %s, warnings %v", tc.a, tc.b, r.Machine.LinkName(0, 1), r.Machine.PCIe[0][1], r.Warnings)
		}
	}
}

func TestLoadAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.json")
	if err := os.WriteFile(path, []byte(strings.Replace(base, `"name":"m",`, "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := capture.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if r.Machine.Name != "box" || r.Product.Name != "A100" {
		t.Errorf("named %q, product %q", r.Machine.Name, r.Product.Name)
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := capture.Load(broken); err == nil || !strings.Contains(err.Error(), strconv.Quote(broken)) {
		t.Errorf("error %v, want one that names %s", err, broken)
	}
	if _, err := capture.Load(path + "x"); err == nil {
		t.Error("a file that is not there was read")
	}
	if _, err := capture.Read(strings.NewReader(""), "nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("empty input: %v", err)
	}
}

// FuzzParseJSON: whatever the input, no panic, and what is accepted is valid and
// survives being written and read again.
func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(base))
	for _, name := range topotest.Names() {
		data, err := topotest.Bytes(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := capture.Parse(data, "fuzz")
		if err != nil {
			return
		}
		if err := r.Machine.Validate(); err != nil {
			t.Fatalf("accepted an invalid machine: %v", err)
		}
		text := smiText(r, style{separator: "\t", legend: true, numbered: true})
		again, err := capture.ParseSMI([]byte(text), "fuzz")
		if err != nil {
			t.Fatalf("reading what was written: %v\n%s", err, text)
		}
		if diff := cmp.Diff(r.Machine.NVLinks, again.Machine.NVLinks); diff != "" {
			t.Fatalf("links (-JSON +text):\n%s", diff)
		}
		for i, nic := range r.NICs {
			if nic.Name != again.NICs[i].Name {
				t.Fatalf("network card %d: %q (JSON), %q (text)", i, nic.Name, again.NICs[i].Name)
			}
		}
	})
}

// TestJSONNumbers: rates are rounded to MBps.
func TestJSONNumbers(t *testing.T) {
	t.Parallel()
	data := strings.Replace(base, `"links"`, `"nvlink_gbps_per_link":14.0625,"links"`, 1)
	r, err := capture.ParseJSON([]byte(data), "x")
	if err != nil {
		t.Fatal(err)
	}
	if r.Machine.GPUs[1].NVLinkMBps != 14_063 {
		t.Errorf("rate %d", r.Machine.GPUs[1].NVLinkMBps)
	}
	if !json.Valid([]byte(data)) {
		t.Error("the case is not JSON")
	}
}

// TestNameSaysNothing: what a file or a machine is called changes no number.
func TestNameSaysNothing(t *testing.T) {
	t.Parallel()
	data := strings.Replace(base, `"name":"m","hardware":"2x A100",`, "", 1)
	for _, name := range []string{"box", "h100", "8xV100"} {
		named := strings.Replace(data, "{", `{"name":"`+name+`",`, 1)
		for _, text := range []string{data, named, smiBase} {
			r, err := capture.Parse([]byte(text), name)
			if err != nil {
				t.Fatal(err)
			}
			if g := r.Machine.GPUs[0]; g.NVLinkMBps != 0 || g.PCIeGen != 0 || r.Product.Name != "" || r.Machine.Name != name {
				t.Errorf("%s: %+v, product %q", name, g, r.Product.Name)
			}
		}
	}
}

// TestSwitched: a GPU with more links than ports shows that there is a switch, also
// where one GPU has lost a link and where domains differ.
func TestSwitched(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hardware string
		links    func(i, j int) int
		switched bool
		mbps     topology.MBps // of all GPUs of the first four
	}{
		"whole":               {"8x H100", func(_, _ int) int { return 18 }, true, 18 * 26_562},
		"one lost a link":     {"8x H100", func(i, j int) int { return 18 - btoi(i == 2 || j == 2) }, true, 17 * 26_562},
		"one lost, no model":  {"", func(i, j int) int { return 18 - btoi(i == 7 || j == 7) }, true, 18 * 25_000},
		"two domains":         {"8x H100", func(i, j int) int { return btoi(i/4 == j/4) * (18 - 6*btoi(i >= 4)) }, true, 18 * 26_562},
		"one off the switch":  {"8x H100", func(i, j int) int { return 18 * btoi(i != 5 && j != 5) }, true, 18 * 26_562},
		"mesh of cables":      {"8x A100", func(i, j int) int { return 4 * btoi(i/4 == j/4) }, false, 6 * 25_781},
		"mesh, one lost link": {"8x A100", func(i, j int) int { return btoi(i/4 == j/4) * (4 - btoi(i+j == 1)) }, false, 5 * 25_781},
	} {
		m := topology.New(name, 8)
		for i := range m.NVLinks {
			for j := range m.NVLinks {
				if i != j {
					m.NVLinks[i][j] = uint8(tc.links(i, j))
				}
			}
		}
		rows, err := json.Marshal(matrixOf(m))
		if err != nil {
			t.Fatal(err)
		}
		data := fmt.Sprintf(`{"hardware":%q,"gpus":[{},{},{},{},{},{},{},{}],"links":%s}`, tc.hardware, rows)
		r, err := capture.Parse([]byte(data), name)
		if err != nil {
			t.Fatal(err)
		}
		class, err := quality.NewClass(r.Machine, quality.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if q := class.Of(topology.FullMask(4)); r.Machine.Switched != tc.switched || q.MBps != tc.mbps {
			t.Errorf("%s: switched %v, %s, want %v and %d MB/s", name, r.Machine.Switched, q, tc.switched, tc.mbps)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// matrixOf returns the cells of the machine's link matrix.
func matrixOf(m *topology.Machine) [][]string {
	out := make([][]string, m.N())
	for i := range out {
		for j := range m.N() {
			out[i] = append(out[i], m.LinkName(i, j))
		}
	}
	return out
}
