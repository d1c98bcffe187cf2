// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
)

func share(uuid, pci string, memory, cores int64) checkpoint.Device {
	return checkpoint.Device{UUID: uuid, Type: "gpu", PCIAddress: pci, MemoryMiB: 81920,
		Limit: &checkpoint.Limit{MemoryMiB: memory, CoresPercent: cores}}
}

func whole(uuid, pci string) checkpoint.Device {
	return checkpoint.Device{UUID: uuid, Type: "gpu", PCIAddress: pci, MemoryMiB: 81920}
}

// TestD01_NumbersFollowPCIOrder: whatever the order in which claims list their
// devices, the container's numbers follow the PCI address.
func TestD01_NumbersFollowPCIOrder(t *testing.T) {
	t.Parallel()
	devices := []checkpoint.Device{
		share("GPU-d", "0000:0a:00.0", 4, 40), share("GPU-a", "0000:9:00.0", 1, 10), whole("GPU-e", "0001:00:00.0"),
		share("GPU-c", "00000000:09:00.1", 3, 30), share("GPU-b", "0000:09:00.0", 2, 20),
	}
	want := []GPU{
		{UUID: "GPU-a", PCIAddress: "0000:9:00.0", MemoryMiB: 81920, Limit: &checkpoint.Limit{MemoryMiB: 1, CoresPercent: 10}},
		{UUID: "GPU-b", PCIAddress: "0000:09:00.0", MemoryMiB: 81920, Limit: &checkpoint.Limit{MemoryMiB: 2, CoresPercent: 20}},
		{UUID: "GPU-c", PCIAddress: "00000000:09:00.1", MemoryMiB: 81920, Limit: &checkpoint.Limit{MemoryMiB: 3, CoresPercent: 30}},
		{UUID: "GPU-d", PCIAddress: "0000:0a:00.0", MemoryMiB: 81920, Limit: &checkpoint.Limit{MemoryMiB: 4, CoresPercent: 40}},
		{UUID: "GPU-e", PCIAddress: "0001:00:00.0", MemoryMiB: 81920},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		random.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
		got, err := NewContainer(devices, "/r")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.GPUs); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestV04_TwoSharesOfOneGPU: they add up and do not overwrite each other.
func TestV04_TwoSharesOfOneGPU(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		devices []checkpoint.Device
		want    *checkpoint.Limit
	}{
		"sum":                {[]checkpoint.Device{share("g", "0:0:0.0", 10, 20), share("g", "0:0:0.0", 5, 30)}, &checkpoint.Limit{MemoryMiB: 15, CoresPercent: 50}},
		"at most all":        {[]checkpoint.Device{share("g", "0:0:0.0", 10, 70), share("g", "0:0:0.0", 5, 60)}, &checkpoint.Limit{MemoryMiB: 15, CoresPercent: 100}},
		"best effort":        {[]checkpoint.Device{share("g", "0:0:0.0", 10, 70), share("g", "0:0:0.0", 5, 0)}, &checkpoint.Limit{MemoryMiB: 15}},
		"admin access lifts": {[]checkpoint.Device{share("g", "0:0:0.0", 10, 70), whole("g", "0:0:0.0")}, nil},
		"in either order":    {[]checkpoint.Device{whole("g", "0:0:0.0"), share("g", "0:0:0.0", 10, 70)}, nil},
	} {
		before := slices.Clone(test.devices)
		got, err := NewContainer(test.devices, "/r")
		if err != nil || len(got.GPUs) != 1 {
			t.Errorf("%s: got %+v, %v", name, got, err)
			continue
		}
		if diff := cmp.Diff(test.want, got.GPUs[0].Limit); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(before, test.devices); diff != "" {
			t.Errorf("%s: the input was changed: %s", name, diff)
		}
		if got.Limited() != (test.want != nil) {
			t.Errorf("%s: Limited is %t", name, got.Limited())
		}
	}
}

func TestNewContainerRefuses(t *testing.T) {
	t.Parallel()
	mig := checkpoint.Device{UUID: "MIG-1", Type: "mig", PCIAddress: "0:1:0.0"}
	if _, err := NewContainer([]checkpoint.Device{share("g", "0:0:0.0", 1, 0), mig}, ""); err == nil || !strings.Contains(err.Error(), `MIG device "MIG-1" together with a share`) {
		t.Errorf("MIG and share: got error %v", err)
	}
	if _, err := NewContainer([]checkpoint.Device{mig, whole("g", "0:0:0.0")}, ""); err != nil {
		t.Errorf("MIG without limits: %v", err)
	}
	if _, err := NewContainer([]checkpoint.Device{share("g", "", 1, 0)}, ""); err != nil {
		t.Errorf("a single GPU is number 0 wherever it is: %v", err)
	}
	if _, err := NewContainer([]checkpoint.Device{share("g", "", 1, 0), whole("h", "0:1:0.0")}, ""); err == nil || !strings.Contains(err.Error(), `PCI address of GPU "g" is unknown`) {
		t.Errorf("no address: got error %v", err)
	}
	if got, err := NewContainer(nil, ""); err != nil || got.Limited() {
		t.Errorf("nothing: got %+v, %v", got, err)
	}
}

func TestSettingsOfAContainer(t *testing.T) {
	t.Parallel()
	with := func(priority, policy, level string, limited bool) checkpoint.Device {
		device := whole("GPU-"+priority+policy+level, "0:0:0.0")
		device.Settings = checkpoint.Settings{TaskPriority: priority, CorePolicy: policy, LogLevel: level}
		if limited {
			device.Limit = &checkpoint.Limit{MemoryMiB: 1}
		}
		return device
	}
	for name, test := range map[string]struct {
		devices []checkpoint.Device
		want    api.SharingConfig
	}{
		"none": {nil, api.SharingConfig{TaskPriority: "Low", CorePolicy: "Default", LogLevel: "Warning", Enforcement: "Enforced"}},
		"one":  {[]checkpoint.Device{with("High", "Disable", "Off", true)}, api.SharingConfig{TaskPriority: "High", CorePolicy: "Disable", LogLevel: "Off", Enforcement: "Enforced"}},
		"strictest": {[]checkpoint.Device{with("High", "Disable", "Off", true), with("Low", "Default", "Info", true)},
			api.SharingConfig{TaskPriority: "Low", CorePolicy: "Default", LogLevel: "Info", Enforcement: "Enforced"}},
		"force": {[]checkpoint.Device{with("High", "Force", "Error", true), with("High", "Default", "Off", true)},
			api.SharingConfig{TaskPriority: "High", CorePolicy: "Force", LogLevel: "Error", Enforcement: "Enforced"}},
		"whole GPUs have no say": {[]checkpoint.Device{with("High", "Disable", "Error", true), with("Low", "Force", "Debug", false)},
			api.SharingConfig{TaskPriority: "High", CorePolicy: "Disable", LogLevel: "Error", Enforcement: "Enforced"}},
	} {
		got, err := NewContainer(test.devices, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(test.want, got.Settings); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestComparePCI(t *testing.T) {
	t.Parallel()
	ordered := []string{"0000:01:00.0", "0000:02:00.0", "0000:0a:00.0", "0000:10:00.0", "0000:10:00.1", "0000:10:1f.0", "0001:00:00.0", "", "0000:00:00", "zz"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := ComparePCI(a, b), min(1, max(-1, i-j)); got != want {
				t.Errorf("%q, %q: got %d, want %d", a, b, got, want)
			}
		}
	}
	if ComparePCI("00000000:0A:00.0", "0000:0a:00.0") != 0 {
		t.Error("the same address in the vendor's form is another one")
	}
}

func FuzzComparePCI(f *testing.F) {
	f.Add("0000:01:00.0", "0000:02:00.0", "x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if ComparePCI(a, b) != -ComparePCI(b, a) {
			t.Errorf("%q, %q: not antisymmetric", a, b)
		}
		if ComparePCI(a, b) <= 0 && ComparePCI(b, c) <= 0 && ComparePCI(a, c) > 0 {
			t.Errorf("%q, %q, %q: not transitive", a, b, c)
		}
	})
}
