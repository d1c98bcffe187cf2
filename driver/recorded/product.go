// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/topodra/topodra/driver/device"
)

// product is what the table knows about a model.
type product struct {
	name, brand, architecture string
	capability                device.Version
	memory                    device.Bytes
}

// model is a row of the table. Names follow the tokens that topology.FindProduct
// finds, without a leading RTX. Memory is what nvidia-smi shows as the total in
// MiB for each size that is sold, in GB; the first is assumed unless the
// recording names another.
type model struct {
	tokens                    string
	name, brand, architecture string
	major, minor              int
	memory                    []size
}

// size is one memory option of a model.
type size struct{ gb, mib int }

var models = []model{
	{"P100", "Tesla P100-SXM2-16GB", "Tesla", "Pascal", 6, 0, []size{{16, 16280}}},
	{"P4", "Tesla P4", "Tesla", "Pascal", 6, 1, []size{{8, 7680}}},
	{"P40", "Tesla P40", "Tesla", "Pascal", 6, 1, []size{{24, 23040}}},
	{"V100 V100S", "Tesla V100-SXM2-16GB", "Tesla", "Volta", 7, 0, []size{{16, 16384}, {32, 32768}}},
	{"T4", "Tesla T4", "Tesla", "Turing", 7, 5, []size{{16, 15360}}},
	{"8000", "Quadro RTX 8000", "QuadroRTX", "Turing", 7, 5, []size{{48, 49152}}},
	{"6000", "Quadro RTX 6000", "QuadroRTX", "Turing", 7, 5, []size{{24, 24576}}},
	{"TITANRTX", "NVIDIA TITAN RTX", "TitanRTX", "Turing", 7, 5, []size{{24, 24576}}},
	{"2080TI", "NVIDIA GeForce RTX 2080 Ti", "GeForceRTX", "Turing", 7, 5, []size{{11, 11264}}},
	{"A100 A100X A800", "NVIDIA A100-SXM4-40GB", "Nvidia", "Ampere", 8, 0, []size{{40, 40960}, {80, 81920}}},
	{"A30 A30X", "NVIDIA A30", "Nvidia", "Ampere", 8, 0, []size{{24, 24576}}},
	{"A40", "NVIDIA A40", "Nvidia", "Ampere", 8, 6, []size{{48, 46068}}},
	{"A10 A10M", "NVIDIA A10", "Nvidia", "Ampere", 8, 6, []size{{24, 23028}}},
	{"A10G", "NVIDIA A10G", "Nvidia", "Ampere", 8, 6, []size{{24, 23028}}},
	{"A16 A2", "NVIDIA A16", "Nvidia", "Ampere", 8, 6, []size{{16, 15356}}},
	{"A6000", "NVIDIA RTX A6000", "NvidiaRTX", "Ampere", 8, 6, []size{{48, 49140}}},
	{"A5000 A5500", "NVIDIA RTX A5000", "NvidiaRTX", "Ampere", 8, 6, []size{{24, 24564}}},
	{"A4500 A4000", "NVIDIA RTX A4500", "NvidiaRTX", "Ampere", 8, 6, []size{{20, 20470}}},
	{"3090 3090TI", "NVIDIA GeForce RTX 3090", "GeForceRTX", "Ampere", 8, 6, []size{{24, 24576}}},
	{"L4", "NVIDIA L4", "Nvidia", "Ada Lovelace", 8, 9, []size{{24, 23034}}},
	{"L40 L40S L40G L20", "NVIDIA L40S", "Nvidia", "Ada Lovelace", 8, 9, []size{{48, 46068}}},
	{"6000ADA", "NVIDIA RTX 6000 Ada Generation", "NvidiaRTX", "Ada Lovelace", 8, 9, []size{{48, 49140}}},
	{"4090", "NVIDIA GeForce RTX 4090", "GeForceRTX", "Ada Lovelace", 8, 9, []size{{24, 24564}}},
	{"4080", "NVIDIA GeForce RTX 4080", "GeForceRTX", "Ada Lovelace", 8, 9, []size{{16, 16376}}},
	{"H100 H800 HOPPER", "NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", 9, 0, []size{{80, 81559}, {94, 95830}, {96, 97871}}},
	{"H200", "NVIDIA H200", "Nvidia", "Hopper", 9, 0, []size{{141, 143771}}},
	{"H20", "NVIDIA H20", "Nvidia", "Hopper", 9, 0, []size{{96, 97871}}},
	{"GH200", "NVIDIA GH200 480GB", "Nvidia", "Hopper", 9, 0, []size{{96, 97871}, {144, 147456}}},
	{"B200 B100 BLACKWELL", "NVIDIA B200", "Nvidia", "Blackwell", 10, 0, []size{{180, 183359}}},
	{"GB200", "NVIDIA GB200", "Nvidia", "Blackwell", 10, 0, []size{{186, 189471}}},
	{"B300", "NVIDIA B300", "Nvidia", "Blackwell", 10, 3, []size{{270, 275040}}},
	{"GB300", "NVIDIA GB300", "Nvidia", "Blackwell", 10, 3, []size{{277, 284208}}},
	{"5090", "NVIDIA GeForce RTX 5090", "GeForceRTX", "Blackwell", 12, 0, []size{{32, 32607}}},
	{"5080", "NVIDIA GeForce RTX 5080", "GeForceRTX", "Blackwell", 12, 0, []size{{16, 16303}}},
	{"PRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NvidiaRTX", "Blackwell", 12, 0, []size{{96, 97887}}},
}

// unknownProduct stands for everything that is not in the table. Its compute
// capability is the lowest that current CUDA versions support.
var unknownProduct = product{
	name: "Simulated GPU", brand: "Unknown", architecture: "Unknown",
	capability: device.Version{Major: 7, Minor: 5}, memory: 16 * 1024 * device.MiB,
}

// gigabytes finds memory sizes such as "80GB", "32 GB" or "32g".
var gigabytes = regexp.MustCompile(`(?i)(?:^|[^0-9])([0-9]{1,3})\s?gb?(?:[^a-z0-9]|$)`)

// findProduct looks a token of topology.FindProduct up. text may name the memory
// size.
func findProduct(token, text string) product {
	token = strings.TrimPrefix(token, "RTX")
	for _, m := range models {
		for candidate := range strings.FieldsSeq(m.tokens) {
			if candidate == token {
				return m.withMemory(text)
			}
		}
	}
	return unknownProduct
}

// withMemory chooses the first memory size of the model that the text names.
func (m *model) withMemory(text string) product {
	chosen := m.memory[0]
	for _, match := range gigabytes.FindAllStringSubmatch(text, -1) {
		gb, err := strconv.Atoi(match[1])
		if err != nil {
			continue
		}
		for _, option := range m.memory {
			if option.gb == gb {
				chosen = option
			}
		}
	}
	return product{
		name:         strings.Replace(m.name, strconv.Itoa(m.memory[0].gb)+"GB", strconv.Itoa(chosen.gb)+"GB", 1),
		brand:        m.brand,
		architecture: m.architecture,
		capability:   device.Version{Major: m.major, Minor: m.minor},
		memory:       device.Bytes(chosen.mib) * device.MiB,
	}
}
