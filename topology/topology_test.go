// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/topotest"
)

func TestMask(t *testing.T) {
	t.Parallel()
	m := topology.MaskOf(0, 1, 4, 5, 6, 7, -1, 64)
	if got := m.String(); got != "{0,1,4-7}" {
		t.Errorf("String: %s", got)
	}
	if diff := cmp.Diff([]int{0, 1, 4, 5, 6, 7}, slices.Collect(m.All())); diff != "" {
		t.Errorf("All (-want +got):\n%s", diff)
	}
	for range m.All() {
		break // stopping early must be possible
	}
	if diff := cmp.Diff([]int{0, 1, 4, 5, 6, 7}, m.Positions()); diff != "" {
		t.Errorf("Positions (-want +got):\n%s", diff)
	}
	if m.Count() != 6 || m.Lowest() != 0 || m.Highest() != 7 || !m.Has(4) || m.Has(2) || m.Has(-1) || m.Has(64) {
		t.Errorf("%s: count %d, lowest %d, highest %d", m, m.Count(), m.Lowest(), m.Highest())
	}
	if empty := topology.Mask(0); empty.Lowest() != -1 || empty.Highest() != -1 || empty.String() != "{}" {
		t.Errorf("empty: %d %d %s", empty.Lowest(), empty.Highest(), empty)
	}
	if m.Without(0).With(2) != topology.MaskOf(1, 2, 4, 5, 6, 7) || m.Without(70) != m {
		t.Errorf("With and Without: %s", m.Without(0).With(2))
	}
	if !topology.MaskOf(4).SubsetOf(m) || m.SubsetOf(topology.MaskOf(4)) {
		t.Error("SubsetOf")
	}
	if topology.FullMask(-1) != 0 || topology.FullMask(3) != 7 || topology.FullMask(64).Count() != 64 || topology.FullMask(99).Count() != 64 {
		t.Error("FullMask")
	}
	if got := topology.FullMask(64).String(); got != "{0-63}" {
		t.Errorf("all: %s", got)
	}
}

func TestParseMask(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0,1,4-7": "{0,1,4-7}", "{0,1,4-7}": "{0,1,4-7}", " 3 , 1 - 2 ": "{1-3}", "": "{}", "{}": "{}", "5,5,5": "{5}", "7": "{7}",
	} {
		m, err := topology.ParseMask(text, 8)
		if err != nil || m.String() != want {
			t.Errorf("%q: %s, %v, want %s", text, m, err, want)
		}
	}
	for text, want := range map[string]string{
		"8": "which has 8 GPUs", "a": `"a" is not`, "1-": `"" is not`, "3-1": "runs backwards", "-1": `"" is not`, "{1": "braces",
		"1,,2": `"" is not`, "99999999999": "is not", "+1": "is not", "0-64": "position 64",
	} {
		if _, err := topology.ParseMask(text, 8); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	if _, err := topology.ParseMask("", 65); err == nil {
		t.Error("a machine of 65 GPUs was accepted")
	}
}

func FuzzParseMask(f *testing.F) {
	f.Add("0,1,4-7")
	f.Add("{63}")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := topology.ParseMask(text, 64)
		if err != nil {
			return
		}
		if again, err := topology.ParseMask(m.String(), 64); err != nil || again != m {
			t.Errorf("%q is %s, which reads as %s, %v", text, m, again, err)
		}
	})
}

func TestPCIe(t *testing.T) {
	t.Parallel()
	for class := topology.PCIeSelf; class <= topology.SYS; class++ {
		byName, err := topology.ParsePCIe(class.String())
		byLetter, errLetter := topology.PCIeFromLetter(class.Letter())
		if err != nil || errLetter != nil || byName != class || byLetter != class {
			t.Errorf("%s, %c: %v %v %v %v", class, class.Letter(), byName, err, byLetter, errLetter)
		}
	}
	for _, name := range []string{"", "pix", "NV1", "N/A"} {
		if _, err := topology.ParsePCIe(name); err == nil {
			t.Errorf("%q is a class", name)
		}
	}
	if _, err := topology.PCIeFromLetter('z'); err == nil {
		t.Error("z is a class")
	}
	if p := topology.PCIe(9); p.Valid() || p.String() != "PCIe(9)" || p.Letter() != '?' {
		t.Errorf("invalid class: %s %c", p, p.Letter())
	}
	if p, err := topology.ParsePCIe("SOC"); err != nil || p != topology.SYS {
		t.Errorf("SOC: %s, %v", p, err)
	}
}

// TestWeightsKeepClassesApart: neighbouring classes differ by more than a tier.
func TestWeightsKeepClassesApart(t *testing.T) {
	t.Parallel()
	w := topology.DefaultWeights()
	if err := w.Validate(); err != nil {
		t.Fatal(err)
	}
	for gen := range w {
		for class := topology.PXB; class <= topology.SYS; class++ {
			if near, far := w[gen][class-1], w[gen][class]; far*100 >= near*90 {
				t.Errorf("generation %d: %s %d and %s %d are within 10 %%", gen, class-1, near, class, far)
			}
		}
	}
	if w[3][topology.PIX] != 12_000 || w[4][topology.PIX] != 24_000 || w[5][topology.PIX] != 48_000 || w[0] != w[3] || w[1][topology.PIX] != 3_000 {
		t.Errorf("PIX by generation: %v", w)
	}
	bad := w
	bad[4][topology.NODE] = bad[4][topology.PHB]
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "generation 4: NODE") {
		t.Errorf("equal classes: %v", err)
	}
}

func TestWeightMBps(t *testing.T) {
	t.Parallel()
	m := topology.New("w", 3)
	m.GPUs[0].NVLinkMBps, m.GPUs[1].NVLinkMBps = 20_000, 30_000
	m.GPUs[1].PCIeGen, m.GPUs[2].PCIeGen = 5, 4
	m.NVLinks[0][1], m.NVLinks[1][0] = 3, 3
	m.NVLinks[0][2], m.NVLinks[2][0] = 1, 1
	for _, tc := range []struct {
		i, j int
		want topology.MBps
	}{{0, 1, 60_000}, {1, 0, 60_000}, {0, 2, 20_000}, {1, 2, 12_000}, {1, 1, 0}} {
		if got := m.WeightMBps(tc.i, tc.j); got != tc.want {
			t.Errorf("%d-%d: %d, want %d", tc.i, tc.j, got, tc.want)
		}
	}
	m.GPUs[2].NVLinkMBps = topology.MaxWeightMBps
	m.GPUs[0].NVLinkMBps = topology.MaxWeightMBps
	m.NVLinks[0][2], m.NVLinks[2][0] = 35, 35
	if got := m.WeightMBps(0, 2); got != topology.MaxWeightMBps {
		t.Errorf("absurd rate: %d", got)
	}
	if topology.New("", 1).LinkRate(0) != topology.DefaultNVLinkMBps {
		t.Error("unknown rate")
	}
}

func TestValidateNamesTheCell(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(m *topology.Machine){
		"no GPUs":                                  func(m *topology.Machine) { m.GPUs = nil },
		"2 rows of NVLinks":                        func(m *topology.Machine) { m.NVLinks = m.NVLinks[:2] },
		"row 1: 3 GPUs, but 2":                     func(m *topology.Machine) { m.NVLinks[1] = m.NVLinks[1][:2] },
		"GPU 2: NUMA node -2":                      func(m *topology.Machine) { m.GPUs[2].NUMA = -2 },
		"row 0, column 2: 3 NVLinks, but 0":        func(m *topology.Machine) { m.NVLinks[0][2] = 3 },
		"row 0, column 2: 36 NVLinks, the limit":   func(m *topology.Machine) { m.NVLinks[0][2] = 36 },
		"row 1, column 1: 1 NVLinks from a GPU":    func(m *topology.Machine) { m.NVLinks[1][1] = 1 },
		"row 0, column 1: PCIe class PIX, but SYS": func(m *topology.Machine) { m.PCIe[0][1] = topology.PIX },
		"row 2, column 2: PCIe class PIX: only":    func(m *topology.Machine) { m.PCIe[2][2] = topology.PIX },
		"row 0, column 1: PCIe class X: only":      func(m *topology.Machine) { m.PCIe[0][1] = topology.PCIeSelf },
		"row 0, column 1: 77 is not":               func(m *topology.Machine) { m.PCIe[0][1] = 77 },
	} {
		m := topology.New("bad", 3)
		change(m)
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"bad"`) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := (*topology.Machine)(nil).Validate(); err == nil {
		t.Error("no machine is valid")
	}
	if err := topology.New("big", 65).Validate(); err == nil {
		t.Error("65 GPUs are valid")
	}
}

func TestClassID(t *testing.T) {
	t.Parallel()
	base := topotest.Random(topotest.Quads, 6, 1)
	for i := range base.GPUs {
		base.GPUs[i].NUMA = i / 3
	}
	id := base.ClassID()
	same := base.Clone()
	same.Name = "other"
	for i := range same.GPUs {
		same.GPUs[i].NUMA += 8 // only who shares a node counts
		if same.GPUs[i].NearestNIC != "" {
			same.GPUs[i].NearestNIC += "'"
		}
	}
	if same.ClassID() != id {
		t.Error("names of the machine, the NUMA nodes or the cards change the class")
	}
	if len(id.String()) != 12 {
		t.Errorf("printed as %s", id)
	}
	for name, change := range map[string]func(m *topology.Machine){
		"links":    func(m *topology.Machine) { m.NVLinks[0][1]++; m.NVLinks[1][0]++ },
		"class":    func(m *topology.Machine) { m.PCIe[0][1], m.PCIe[1][0] = topology.PHB, topology.PHB },
		"rate":     func(m *topology.Machine) { m.GPUs[0].NVLinkMBps = 1 },
		"gen":      func(m *topology.Machine) { m.GPUs[0].PCIeGen = 7 },
		"numa":     func(m *topology.Machine) { m.GPUs[0].NUMA = 99 },
		"nic":      func(m *topology.Machine) { m.GPUs[0].NearestNIC = "new" },
		"switched": func(m *topology.Machine) { m.Switched = !m.Switched },
		"size":     func(m *topology.Machine) { *m = *m.Sub(31) },
	} {
		m := base.Clone()
		change(m)
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		if m.ClassID() == id {
			t.Errorf("%s: same class", name)
		}
	}
}

func TestDomains(t *testing.T) {
	t.Parallel()
	m := topology.New("d", 7)
	link := func(i, j int) { m.NVLinks[i][j], m.NVLinks[j][i] = 1, 1 }
	link(1, 5)
	link(5, 2)
	link(3, 6)
	if diff := cmp.Diff([]int{-1, 0, 0, 1, -1, 0, 1}, m.Domains()); diff != "" {
		t.Errorf("domains (-want +got):\n%s", diff)
	}
}

func TestMatrixAndSub(t *testing.T) {
	t.Parallel()
	r, err := topotest.Load("mixed_a100_sxm_pcie_4x")
	if err != nil {
		t.Fatal(err)
	}
	want := "\tGPU0\tGPU1\tNUMA Affinity\n" +
		"GPU0\tX\tPIX\t1\n" +
		"GPU1\tPIX\tX\t1\n"
	if diff := cmp.Diff(want, r.Machine.Sub(topology.MaskOf(2, 3)).Matrix()); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
	want = "\tGPU0\tGPU1\tGPU2\tNUMA Affinity\n" +
		"GPU0\tX\tSYS\tNV12\tN/A\n" +
		"GPU1\tSYS\tX\tSYS\t1\n" +
		"GPU2\tNV12\tSYS\tX\t0\n"
	m := r.Machine.Sub(topology.MaskOf(0, 1, 3)).Permute([]int{0, 2, 1})
	m.GPUs[0].NUMA = topology.NoNUMA
	if diff := cmp.Diff(want, m.Matrix()); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
}

func TestFindProduct(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]topology.Product{
		"NVIDIA A100-SXM4-80GB":                {Name: "A100", NVLinkMBps: 25_781, NVLinkPorts: 12, PCIeGen: 4},
		"8x H100 SXM (NV18) VM":                {Name: "H100", NVLinkMBps: 26_562, NVLinkPorts: 18, PCIeGen: 5},
		"dgx1v_8xv100":                         {Name: "V100", NVLinkMBps: 25_781, NVLinkPorts: 6, PCIeGen: 3},
		"Tesla P100-SXM2-16GB":                 {Name: "P100", NVLinkMBps: 20_000, NVLinkPorts: 4, PCIeGen: 3},
		"NVIDIA GB200":                         {Name: "GB200", NVLinkMBps: 53_125, NVLinkPorts: 18, PCIeGen: 5},
		"NVIDIA GB300":                         {Name: "GB300", NVLinkMBps: 53_125, NVLinkPorts: 18, PCIeGen: 6},
		"NVIDIA GeForce RTX 3090":              {Name: "RTX3090", NVLinkMBps: 14_062, NVLinkPorts: 4, PCIeGen: 4},
		"NVIDIA RTX PRO 6000 Blackwell Server": {Name: "RTXPRO6000", PCIeGen: 5},
		"NVIDIA RTX 6000 Ada Generation":       {Name: "RTX6000ADA", PCIeGen: 4},
		"Quadro RTX 8000":                      {Name: "RTX8000", NVLinkMBps: 25_781, NVLinkPorts: 2, PCIeGen: 3},
		"2x RTX 5090 + 3x RTX 4090":            {Name: "RTX5090", PCIeGen: 4},
		"one A100 beside two A6000":            {Name: "A100", NVLinkMBps: 14_062, NVLinkPorts: 12, PCIeGen: 4},
		"NVIDIA L40S":                          {Name: "L40S", PCIeGen: 4},
		"aws p4 8x A100":                       {Name: "A100", NVLinkMBps: 25_781, NVLinkPorts: 12, PCIeGen: 4},
		"AWS P4, A100x8":                       {Name: "A100", NVLinkMBps: 25_781, NVLinkPorts: 12, PCIeGen: 4},
		"8xa100":                               {Name: "A100", NVLinkMBps: 25_781, NVLinkPorts: 12, PCIeGen: 4},
		"A100Xx2":                              {Name: "A100X", NVLinkMBps: 25_781, NVLinkPorts: 12, PCIeGen: 4},
		"Tesla P4":                             {Name: "P4", PCIeGen: 3},
		"8xRTX4090":                            {Name: "RTX4090", PCIeGen: 4},
		"4xL4":                                 {Name: "L4", PCIeGen: 4},
		"Grace-Blackwell NVL72 tray":           {Name: "B200", NVLinkMBps: 53_125, NVLinkPorts: 18, PCIeGen: 5},
	} {
		if got, ok := topology.FindProduct(text); !ok || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "8 GPU PCIe-only dual socket", "IBM AC922", "8x", "p4d.24xlarge", "aws p4", "x8", "Xeon L44", "10x10"} {
		if got, ok := topology.FindProduct(text); ok {
			t.Errorf("%q: found %+v", text, got)
		}
	}
}
