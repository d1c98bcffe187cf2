// SPDX-License-Identifier: Apache-2.0

package quality_test

// oracle holds, for every recorded machine, how many sets of two, three and four
// GPUs have which best-ring bottleneck, computed by hand-checked enumeration
// outside this repository: the number of links for pairs and the common count of
// links on the best ring for larger sets where NVLinks carry it, else the PCIe
// class.
var oracle = map[string]map[int]map[string]int{
	"a100_4x_one_pair":          {2: {"NV12": 1, "NODE": 1, "SYS": 4}, 3: {"SYS": 4}, 4: {"SYS": 1}},
	"a100_8x_interleaved_pairs": {2: {"NV12": 4, "SYS": 24}, 3: {"SYS": 56}, 4: {"SYS": 70}},
	"a30_4x_pairs":              {2: {"NV4": 2, "SYS": 4}, 3: {"SYS": 4}, 4: {"SYS": 1}},
	"a6000_3x_pair_plus_one":    {2: {"NV4": 1, "NODE": 2}, 3: {"NODE": 1}},
	"azure_nc96ads_a100v4":      {2: {"NV12": 2, "SYS": 4}, 3: {"SYS": 4}, 4: {"SYS": 1}},
	"b200_8x_degraded_gpu2": {
		2: {"NV18": 21, "NODE": 3, "SYS": 4},
		3: {"NV18": 35, "NODE": 3, "SYS": 18},
		4: {"NV18": 35, "NODE": 13, "SYS": 22},
	},
	"della_4xa100_sxm_nv4": {2: {"NV4": 6}, 3: {"NV4": 4}, 4: {"NV4": 1}},
	"derived_aws_g5_48xl_8xa10g": {
		2: {"PHB": 12, "SYS": 16}, 3: {"PHB": 8, "SYS": 48}, 4: {"PHB": 2, "SYS": 68},
	},
	"derived_aws_p4d_8xa100":     {2: {"NV12": 28}, 3: {"NV12": 56}, 4: {"NV12": 70}},
	"derived_azure_ndv5_8xh100":  {2: {"NV18": 28}, 3: {"NV18": 56}, 4: {"NV18": 70}},
	"derived_dgx1p_8xp100":       {2: {"NV1": 16, "SYS": 12}, 3: {"NV1": 8, "SYS": 48}, 4: {"NV1": 8, "SYS": 62}},
	"derived_dgx2_16xv100":       {2: {"NV6": 120}, 3: {"NV6": 560}, 4: {"NV6": 1820}},
	"dgx1v_8xv100":               {2: {"NV2": 8, "NV1": 8, "SYS": 12}, 3: {"NV1": 8, "SYS": 48}, 4: {"NV1": 8, "SYS": 62}},
	"dgxa100_8xa100":             {2: {"NV12": 28}, 3: {"NV12": 56}, 4: {"NV12": 70}},
	"gb200_4x":                   {2: {"NV18": 6}, 3: {"NV18": 4}, 4: {"NV18": 1}},
	"gb_nvl72_4x_8nic_cdmm_numa": {2: {"NV18": 6}, 3: {"NV18": 4}, 4: {"NV18": 1}},
	"h100_8x_9nic_reversed_rail": {2: {"NV18": 28}, 3: {"NV18": 56}, 4: {"NV18": 70}},
	"h100nvl_8x_pairs": {
		2: {"NV12": 4, "NODE": 8, "SYS": 16}, 3: {"NODE": 8, "SYS": 48}, 4: {"NODE": 2, "SYS": 68},
	},
	"hgxa100_8x_numa2":       {2: {"NV12": 28}, 3: {"NV12": 56}, 4: {"NV12": 70}},
	"hgxh100_8x_numa2":       {2: {"NV18": 28}, 3: {"NV18": 56}, 4: {"NV18": 70}},
	"mixed_a100_sxm_pcie_4x": {2: {"NV12": 1, "PIX": 1, "SYS": 4}, 3: {"SYS": 4}, 4: {"SYS": 1}},
	"pcie_8x_pix_node_sys": {
		2: {"PIX": 4, "NODE": 8, "SYS": 16}, 3: {"NODE": 8, "SYS": 48}, 4: {"NODE": 2, "SYS": 68},
	},
	"pcie_8x_pix_phb_sys": {
		2: {"PIX": 4, "PHB": 8, "SYS": 16}, 3: {"PHB": 8, "SYS": 48}, 4: {"PHB": 2, "SYS": 68},
	},
	"polaris_4xa100_nv4":        {2: {"NV4": 6}, 3: {"NV4": 4}, 4: {"NV4": 1}},
	"rtx4090_8x_all_sys":        {2: {"SYS": 28}, 3: {"SYS": 56}, 4: {"SYS": 70}},
	"traverse_ac922_4xv100_nv3": {2: {"NV3": 2, "SYS": 4}, 3: {"SYS": 4}, 4: {"SYS": 1}},
	"unige_8xa6000_pairs": {
		2: {"NV4": 4, "NODE": 8, "SYS": 16}, 3: {"NODE": 8, "SYS": 48}, 4: {"NODE": 2, "SYS": 68},
	},
	"vast_8xv100_sxm2_32g": {2: {"NV2": 8, "NV1": 8, "SYS": 12}, 3: {"NV1": 8, "SYS": 48}, 4: {"NV1": 8, "SYS": 62}},
	"workstation_5x_mixed": {2: {"PHB": 2, "NODE": 4, "SYS": 4}, 3: {"NODE": 4, "SYS": 6}, 4: {"NODE": 1, "SYS": 4}},
}
