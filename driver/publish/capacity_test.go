// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// TestCapacityRules: whatever the numbers are, the API server's rules hold, and a
// claim that asks for nothing gets all memory.
func TestCapacityRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(0, 8<<20), rapid.Int64Range(0, 1<<41))
		gpu := full(0)
		gpu.Memory = device.Bytes(amount.Draw(t, "memory"))
		gpu.MemoryReserved = device.Bytes(amount.Draw(t, "reserved"))
		options := Options{
			NodeName: "node-a", RequireCores: rapid.Bool().Draw(t, "cores"), MaxSharers: rapid.IntRange(0, 100).Draw(t, "sharers"),
			MinMemory: device.Bytes(amount.Draw(t, "min")), MemoryReserve: device.Bytes(amount.Draw(t, "reserve")),
		}
		published, err := Build(node(gpu), options)
		if err != nil {
			t.Fatal(err)
		}
		d := published.Resources.Pools["node-a"].Slices[0].Devices[0]
		usable := (gpu.Memory - gpu.MemoryReserved - options.MemoryReserve) >> 20 << 20
		if usable < device.MiB {
			if d.AllowMultipleAllocations != nil || d.Capacity != nil || len(published.Warnings) != 1 {
				t.Fatalf("%d bytes are shared: %+v", usable, d)
			}
			return
		}
		if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
			t.Fatal("the GPU cannot be shared")
		}
		memory := d.Capacity[api.CapacityMemory]
		if memory.Value.Value() != int64(usable) || memory.RequestPolicy.Default.Value() != int64(usable) {
			t.Fatalf("memory %s, default %s, want %d", memory.Value.String(), memory.RequestPolicy.Default.String(), usable)
		}
		if _, ok := d.Capacity[api.CapacitySlots]; ok != (options.MaxSharers > 0) {
			t.Fatalf("slots are there: %v", ok)
		}
		for name, capacity := range d.Capacity {
			if problem := checkPolicy(capacity); problem != "" {
				t.Fatalf("%s: %s", name, problem)
			}
		}
	})
}

// checkPolicy has the rules of the API server in its own words.
func checkPolicy(c resourceapi.DeviceCapacity) string {
	policy := c.RequestPolicy
	if policy == nil || policy.Default == nil {
		return "no policy or no default"
	}
	standard, value := policy.Default.Value(), c.Value.Value()
	if len(policy.ValidValues) > 0 {
		found := false
		for _, valid := range policy.ValidValues {
			found = found || valid.Value() == standard
			if valid.Value() > value {
				return "a valid value is larger than the capacity"
			}
		}
		if !found || policy.ValidRange != nil {
			return "the default is not valid, or there is a range as well"
		}
		return ""
	}
	low, high, step := policy.ValidRange.Min.Value(), policy.ValidRange.Max.Value(), policy.ValidRange.Step.Value()
	switch {
	case low > standard || standard > high || high > value:
		return "not min ≤ default ≤ max ≤ value"
	case step <= 0 || low+step > value:
		return "no step fits"
	case (standard-low)%step != 0 || (high-low)%step != 0:
		return "default or max is between two steps"
	default:
		return ""
	}
}

// TestCapacityExamples pins three cases: plain, a total that is no multiple of 1Mi,
// and a least request above the total.
func TestCapacityExamples(t *testing.T) {
	t.Parallel()
	quantity := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	for name, tc := range map[string]struct {
		usable, least device.Bytes
		want          resourceapi.DeviceCapacity
	}{
		"plain": {80 << 30, 0, resourceapi.DeviceCapacity{Value: *quantity("80Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: quantity("80Gi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Mi"), Max: quantity("80Gi"), Step: quantity("1Mi")}}}},
		"least is rounded up": {3 << 20, 1<<20 + 1, resourceapi.DeviceCapacity{Value: *quantity("3Mi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: quantity("3Mi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("2Mi"), Max: quantity("3Mi"), Step: quantity("1Mi")}}}},
		"least above all": {3 << 20, 4 << 30, resourceapi.DeviceCapacity{Value: *quantity("3Mi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: quantity("3Mi"), ValidValues: []resource.Quantity{*quantity("3Mi")}}}},
	} {
		got := memoryCapacity(tc.usable, tc.least)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	gpu := full(0)
	gpu.Memory, gpu.MemoryReserved = 81559<<20+12345, 600<<20+1
	published, err := Build(node(gpu), Options{NodeName: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	memory := published.Resources.Pools["node-a"].Slices[0].Devices[0].Capacity[api.CapacityMemory]
	if got := memory.Value.String(); got != "80959Mi" {
		t.Errorf("odd total: got %s, want 80959Mi", got)
	}
}

func TestCores(t *testing.T) {
	t.Parallel()
	for required, want := range map[bool]string{false: "0 0-100/1", true: "100 1-100/1"} {
		policy := coresCapacity(required).RequestPolicy
		valid := policy.ValidRange
		if got := policy.Default.String() + " " + valid.Min.String() + "-" + valid.Max.String() + "/" + valid.Step.String(); got != want {
			t.Errorf("required %v: got %s, want %s", required, got, want)
		}
	}
}

// TestNameCollision: names that would be equal become long, whatever comes first,
// and others stay short.
func TestNameCollision(t *testing.T) {
	t.Parallel()
	a, b, c := full(0), full(1), full(2)
	a.UUID = "GPU-12345678-9abc-0000-0000-00000000000a"
	b.UUID = "GPU-12345678-9ABC-0000-0000-00000000000b"
	for _, snapshot := range []*device.Snapshot{node(a, b, c), {Machine: topology.New("", 3), GPUs: []device.GPU{b, a, c}}} {
		names := deviceNames(snapshot)
		want := map[device.UUID]string{
			a.UUID: "gpu-123456789abc0000000000000000000a", b.UUID: "gpu-123456789abc0000000000000000000b", c.UUID: "gpu-000000021111",
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
	}
	if got := digitsOf("odd"); len(got) != 32 || got != digitsOf("odd") || got == digitsOf("odd ") {
		t.Errorf("odd UUID: got %q", got)
	}
}

func TestBuildRejects(t *testing.T) {
	t.Parallel()
	good := Options{NodeName: "node-a"}
	for want, change := range map[string]func(*Options){
		"the node name is missing": func(o *Options) { o.NodeName = "" },
		"minimum memory -1":        func(o *Options) { o.MinMemory = -1 },
		"sharers -1":               func(o *Options) { o.MaxSharers = -1 },
		"memory reserve -1":        func(o *Options) { o.MemoryReserve = -1 },
	} {
		options := good
		change(&options)
		if _, err := Build(node(full(0)), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	if _, err := Build(node(full(0), full(0)), good); err == nil || !strings.Contains(err.Error(), "has the same UUID") {
		t.Errorf("invalid snapshot: got error %v", err)
	}
}
