// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/driver/device"
)

// architectures are the names that other drivers publish as well.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER:    "Kepler",
	nvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
	nvml.DEVICE_ARCH_PASCAL:    "Pascal",
	nvml.DEVICE_ARCH_VOLTA:     "Volta",
	nvml.DEVICE_ARCH_TURING:    "Turing",
	nvml.DEVICE_ARCH_AMPERE:    "Ampere",
	nvml.DEVICE_ARCH_ADA:       "Ada Lovelace",
	nvml.DEVICE_ARCH_HOPPER:    "Hopper",
	nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	nvml.DEVICE_ARCH_RUBIN:     "Rubin",
	nvml.DEVICE_ARCH_UNKNOWN:   "Unknown",
}

// architectureName never fails: a GPU newer than this program still gets a name.
func architectureName(architecture nvml.DeviceArchitecture) string {
	if name, ok := architectures[architecture]; ok {
		return name
	}
	return fmt.Sprintf("Unknown (%d)", architecture)
}

// brands are the names that other drivers publish as well.
var brands = map[nvml.BrandType]string{
	nvml.BRAND_UNKNOWN:             "Unknown",
	nvml.BRAND_QUADRO:              "Quadro",
	nvml.BRAND_TESLA:               "Tesla",
	nvml.BRAND_NVS:                 "NVS",
	nvml.BRAND_GRID:                "Grid",
	nvml.BRAND_GEFORCE:             "GeForce",
	nvml.BRAND_TITAN:               "Titan",
	nvml.BRAND_NVIDIA_VAPPS:        "NvidiaVApps",
	nvml.BRAND_NVIDIA_VPC:          "NvidiaVPC",
	nvml.BRAND_NVIDIA_VCS:          "NvidiaVCS",
	nvml.BRAND_NVIDIA_VWS:          "NvidiaVWS",
	nvml.BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
	nvml.BRAND_QUADRO_RTX:          "QuadroRTX",
	nvml.BRAND_NVIDIA_RTX:          "NvidiaRTX",
	nvml.BRAND_NVIDIA:              "Nvidia",
	nvml.BRAND_GEFORCE_RTX:         "GeForceRTX",
	nvml.BRAND_TITAN_RTX:           "TitanRTX",
}

// brandName never fails.
func brandName(brand nvml.BrandType) string {
	if name, ok := brands[brand]; ok {
		return name
	}
	return fmt.Sprintf("Unknown (%d)", brand)
}

// busID is what NVML writes: a domain of four or eight digits, bus, device and
// function.
var busID = regexp.MustCompile(`^([0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$`)

// addressOf returns the PCI address in Linux's form. Domains above ffff do not
// occur on Linux: there the address is not a real one.
func addressOf(pci *nvml.PciInfo) (device.PCIAddress, bool) {
	for _, text := range []string{textOf(pci.BusId[:]), textOf(pci.BusIdLegacy[:])} {
		match := busID.FindStringSubmatch(strings.ToLower(text))
		if match == nil || match[1] != "" && match[1] != "0000" {
			continue
		}
		return device.PCIAddress(fmt.Sprintf("%s:%s:%s.%s", match[2], match[3], match[4], match[5])), true
	}
	return "", false
}

// textOf reads a C string out of an array.
func textOf(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
