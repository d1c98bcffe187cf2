// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Product is what the name of a GPU model tells about its links.
type Product struct {
	// Name is the token that was recognised, such as "A100".
	Name string
	// NVLinkMBps is the rate of one NVLink per direction as `nvidia-smi nvlink -s`
	// prints it; 0 for models without NVLink.
	NVLinkMBps MBps
	// NVLinkPorts is how many NVLinks a GPU of this model has at most.
	NVLinkPorts int
	// PCIeGen is the PCIe generation of the model.
	PCIeGen int
}

// Rates per link and direction that nvidia-smi prints on real hardware.
const (
	rateNVLink1 MBps = 20_000 // P100
	rateNVLink2 MBps = 25_781 // V100, and A100 with NVLink 3
	rateAmpere  MBps = 14_062 // the bridge of RTX 3090, A6000 and their kin
	rateNVLink4 MBps = 26_562 // H100
	rateNVLink5 MBps = 53_125 // B200
)

var products = buildProducts()

func buildProducts() map[string]Product {
	rows := []struct {
		names string
		rate  MBps
		ports int
		gen   int
	}{
		{"P100", rateNVLink1, 4, 3},
		{"V100 V100S", rateNVLink2, 6, 3},
		{"RTX8000 RTX6000 TITANRTX 2080TI RTX2080TI", rateNVLink2, 2, 3},
		{"P4 P40 T4", 0, 0, 3},
		{"A100 A100X A800", rateNVLink2, 12, 4},
		{"A30 A30X", rateNVLink2, 4, 4},
		{"A40 A4500 A5000 A5500 A6000 RTXA4500 RTXA5000 RTXA5500 RTXA6000 3090 3090TI RTX3090 RTX3090TI", rateAmpere, 4, 4},
		{"A2 A10 A10G A10M A16 A4000 RTXA4000", 0, 0, 4},
		{"L4 L20 L40 L40S L40G 4080 4090 RTX4090 RTX6000ADA", 0, 0, 4},
		{"H100 H200 H800 H20 GH200", rateNVLink4, 18, 5},
		{"B100 B200 GB200", rateNVLink5, 18, 5},
		{"B300 GB300", rateNVLink5, 18, 6},
		{"5080 5090 RTX5090 RTXPRO6000", 0, 0, 5},
	}
	out := make(map[string]Product)
	for _, row := range rows {
		for name := range strings.FieldsSeq(row.names) {
			out[name] = Product{Name: name, NVLinkMBps: row.rate, NVLinkPorts: row.ports, PCIeGen: row.gen}
		}
	}
	return out
}

// Models returns the names of all models that [FindProduct] knows, in order. Some
// models have two.
func Models() []string { return slices.Sorted(maps.Keys(products)) }

// architectures stand for the data-centre model of a generation in texts that name
// no model.
var architectures = map[string]string{"PASCAL": "P100", "VOLTA": "V100", "HOPPER": "H100", "BLACKWELL": "B200"}

// FindProduct looks for the names of GPU models in a text such as "8x A100 SXM
// HGX" or "NVIDIA A100-SXM4-80GB". When the text names several models, the
// slowest rate that is not zero, the most ports and the oldest PCIe generation
// count, because the text does not say which GPU is which. Names of two characters
// are names of much else, such as the instances "p4" of a cloud: they count in
// capital letters and where no longer name is found. A text without a model
// may name an architecture, which stands for its data-centre model. ok is false when
// nothing is recognised.
func FindProduct(text string) (p Product, ok bool) {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	var short []Product
	for i := range words {
		words[i] = dropCount(words[i])
		if found, known := products[words[i]]; known && len(words[i]) == 2 {
			short = append(short, found)
		}
		words[i] = strings.ToUpper(words[i])
	}
	for i := 0; i < len(words); {
		found, used := longestProduct(words[i:])
		if used == 0 {
			i++
			continue
		}
		i += used
		p, ok = mergeProduct(p, found, ok), true
	}
	if !ok {
		for _, found := range short {
			p, ok = mergeProduct(p, found, ok), true
		}
	}
	if ok {
		return p, true
	}
	for _, word := range words {
		if model, found := architectures[word]; found {
			return products[model], true
		}
	}
	return Product{}, false
}

// longestProduct matches up to three words that start the list, joined, so that
// "RTX PRO 6000" and "RTX 6000 Ada" are found before "RTX 6000". Names of two characters are not for it.
func longestProduct(words []string) (Product, int) {
	for used := min(3, len(words)); used > 0; used-- {
		name := strings.Join(words[:used], "")
		if p, ok := products[name]; ok && len(name) > 2 {
			return p, used
		}
	}
	return Product{}, 0
}

func mergeProduct(a, b Product, haveA bool) Product {
	if !haveA {
		return b
	}
	if b.NVLinkMBps > 0 && (a.NVLinkMBps == 0 || b.NVLinkMBps < a.NVLinkMBps) {
		a.NVLinkMBps = b.NVLinkMBps
	}
	a.NVLinkPorts = max(a.NVLinkPorts, b.NVLinkPorts)
	a.PCIeGen = min(a.PCIeGen, b.PCIeGen)
	return a
}

// dropCount turns "8xA100" and "A100x8" into "A100".
func dropCount(word string) string {
	const digits = "0123456789"
	if rest := strings.TrimLeft(word, digits); rest != word && len(rest) > 1 && strings.ContainsRune("xX", rune(rest[0])) {
		return rest[1:]
	}
	rest := strings.TrimRight(word, digits)
	if name, counted := strings.CutSuffix(strings.ToUpper(rest), "X"); counted && rest != word && strings.ContainsAny(name, digits) {
		return rest[:len(name)]
	}
	return word // such as "RTX4090"
}
