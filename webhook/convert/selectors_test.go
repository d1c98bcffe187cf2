// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/classic"
)

// compile compiles an expression as the API server does, whose limits it must keep.
func compile(t *testing.T, expression string) cel.CompilationResult {
	t.Helper()
	if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
		t.Fatalf("the expression has %d characters", len(expression))
	}
	result := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{})
	if result.Error != nil {
		t.Fatalf("%s: %v", expression, result.Error)
	}
	if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		t.Fatalf("%s: costs up to %d, allowed are %d", expression, result.MaxCost, int64(resourceapi.CELSelectorExpressionMaxCost))
	}
	return result
}

// matches evaluates all selectors for a GPU; empty texts are attributes that it lacks, no memory is a capacity that it lacks.
func matches(t *testing.T, selectors []resourceapi.DeviceSelector, gpu GPU) bool {
	t.Helper()
	device := cel.Device{
		Driver: api.DriverName, AllowMultipleAllocations: new(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	if gpu.UUID != "" {
		device.Attributes[api.AttrUUID] = resourceapi.DeviceAttribute{StringValue: &gpu.UUID}
	}
	if gpu.ProductName != "" {
		device.Attributes[api.AttrProductName] = resourceapi.DeviceAttribute{StringValue: &gpu.ProductName}
	}
	if gpu.MemoryBytes > 0 {
		device.Capacity[api.CapacityMemory] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(gpu.MemoryBytes, resource.BinarySI)}
	}
	for _, selector := range selectors {
		match, _, err := compile(t, selector.CEL.Expression).DeviceMatches(t.Context(), device)
		if err != nil {
			t.Fatalf("%s: %v", selector.CEL.Expression, err)
		}
		if !match {
			return false
		}
	}
	return true
}

func TestSelectors(t *testing.T) {
	t.Parallel()
	gpus := []GPU{{"GPU-1", "Tesla V100-SXM2-32GB", 1}, {"GPU-2", "NVIDIA A100-SXM4-80GB", 1}, {"", "", 0}}
	for _, c := range []struct {
		placement classic.Placement
		want      []bool
	}{
		{classic.Placement{}, []bool{true, true, true}},
		{classic.Placement{UseUUIDs: []string{"GPU-1", "GPU-9"}}, []bool{true, false, false}},
		{classic.Placement{AvoidUUIDs: []string{"GPU-1"}}, []bool{false, true, true}},
		{classic.Placement{UseTypes: []string{"v100", "h100"}}, []bool{true, false, false}},
		{classic.Placement{UseTypes: []string{"nvidia-nvidia"}}, []bool{false, true, false}},
		{classic.Placement{UseTypes: []string{"b200", "nvidia"}}, []bool{true, true, true}},
		{classic.Placement{UseTypes: []string{"a-nvidia"}}, []bool{false, true, false}},
		{classic.Placement{UseTypes: []string{"a-tesla"}}, []bool{true, false, false}},
		{classic.Placement{UseTypes: []string{"-tesla v"}}, []bool{true, false, false}},
		{classic.Placement{AvoidTypes: []string{"nvidia-t"}}, []bool{false, true, true}},
		{classic.Placement{AvoidTypes: []string{"sxm"}}, []bool{false, false, true}},
		{classic.Placement{UseTypes: []string{"a100"}, AvoidUUIDs: []string{"GPU-2"}}, []bool{false, false, false}},
	} {
		list := selectors(&c.placement, api.AttrUUID)
		for i, gpu := range gpus {
			if got := matches(t, list, gpu); got != c.want[i] {
				t.Errorf("%+v, %+v: the selectors say %t, want %t", c.placement, gpu, got, c.want[i])
			}
			if got := gpu.fits(&c.placement); got != c.want[i] {
				t.Errorf("%+v, %+v: fits says %t, want %t", c.placement, gpu, got, c.want[i])
			}
		}
	}
}

func TestSizeSelector(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size string
		has  string
		want bool
	}{{"32510Mi", "32510Mi", true}, {"80Gi", "81920Mi", true}, {"32510Mi", "32511Mi", false}, {"1Gi", "0", false}} {
		has := resource.MustParse(c.has)
		selector := sizeSelector(new(resource.MustParse(c.size)))
		if got := matches(t, []resourceapi.DeviceSelector{selector}, GPU{MemoryBytes: has.Value()}); got != c.want {
			t.Errorf("%+v: got %t", c, got)
		}
	}
}

// TestLongestSelectors keeps the API server's limits with the longest lists that the parser lets through.
func TestLongestSelectors(t *testing.T) {
	t.Parallel()
	p := classic.Placement{}
	for i := range 128 {
		p.UseUUIDs = append(p.UseUUIDs, fmt.Sprintf("%064d", i))
	}
	for i := range 32 {
		p.UseTypes = append(p.UseTypes, fmt.Sprintf("nvidia-%056d", i))
	}
	p.AvoidUUIDs, p.AvoidTypes = p.UseUUIDs, p.UseTypes
	for _, selector := range selectors(&p, api.AttrParentUUID) {
		compile(t, selector.CEL.Expression)
	}
}

// FuzzSelectors puts any text where only quoting protects the expression, past the parser's checks: it must compile, and
// mean what the plain comparison means.
func FuzzSelectors(f *testing.F) {
	for _, seed := range []string{"GPU-1", `"] || true || ["`, `\`, `\"`, "'", "\n", "\x00", "\xff", "é\u2028", "$${", `\u0022`, "🙂", `\x22) || true //`} {
		f.Add(seed, "Tesla V100")
	}
	f.Fuzz(func(t *testing.T, text, product string) {
		text, product = strings.ToValidUTF8(text, "\uFFFD"), strings.ToValidUTF8(product, "\uFFFD")
		// Attributes of devices have up to 64 bytes. CEL knows the case of ASCII letters only, and the parser lets others not
		// through, so they are taken out of what is compared.
		text, product = strings.Map(lowerASCII, text), strings.Map(onlyASCII, product)
		text, product = cut(text), cut(product)
		p := classic.Placement{UseUUIDs: []string{text}, AvoidTypes: []string{text, "h100"}}
		list := selectors(&p, api.AttrUUID)
		for _, gpu := range []GPU{{"GPU-1", product, 1}, {text, product, 1}, {text + "x", "", 1}} {
			gpu.UUID = cut(gpu.UUID)
			if gpu.UUID == "" || text == "" {
				continue
			}
			if got, want := matches(t, list, gpu), gpu.fits(&p); got != want {
				t.Errorf("text %q, GPU %+v: the selectors say %t, the comparison %t", text, gpu, got, want)
			}
		}
	})
}

// cut shortens a text to 64 bytes at most, at the end of a letter.
func cut(text string) string {
	for len(text) > 64 {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

func onlyASCII(r rune) rune {
	if r >= 0x80 {
		return -1
	}
	return r
}

func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}
