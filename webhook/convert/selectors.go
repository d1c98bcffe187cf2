// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/webhook/classic"
)

// selectors returns the conditions for devices. uuid is the attribute that has the UUID of the GPU. Attributes that a device
// lacks count as empty: it is not chosen for what it might be, and not avoided either.
func selectors(p *classic.Placement, uuid resourceapi.QualifiedName) []resourceapi.DeviceSelector {
	var expressions []string
	inList := func(items []string) string { return attribute(uuid) + " in " + literals(items) }
	if len(p.UseUUIDs) > 0 {
		expressions = append(expressions, inList(p.UseUUIDs))
	}
	if len(p.AvoidUUIDs) > 0 {
		expressions = append(expressions, "!("+inList(p.AvoidUUIDs)+")")
	}
	if len(p.UseTypes) > 0 {
		expressions = append(expressions, hasType(p.UseTypes))
	}
	if len(p.AvoidTypes) > 0 {
		expressions = append(expressions, "!("+hasType(p.AvoidTypes)+")")
	}
	return celSelectors(expressions...)
}

// hasType is the CEL expression for a type that contains one of the items: classic.TypePrefix and the product name. Only the
// product name is in the expression, as the cost that the API server estimates for a longer text is above its limit.
func hasType(items []string) string {
	name := fmt.Sprintf("device.attributes[%s].%s", literal(api.DriverName), api.AttrProductName)
	var parts []string
	for _, item := range items {
		if strings.Contains(classic.TypePrefix, item) {
			return "true"
		}
		parts = append(parts, name+".lowerAscii().contains("+literal(item)+")")
		for i := range classic.TypePrefix { // the item may begin in the prefix and end in the name
			if rest, found := strings.CutPrefix(item, classic.TypePrefix[i:]); found {
				parts = append(parts, name+".lowerAscii().startsWith("+literal(rest)+")")
			}
		}
	}
	return fmt.Sprintf("%s in device.attributes[%s] && (%s)", literal(string(api.AttrProductName)), literal(api.DriverName), strings.Join(parts, " || "))
}

// sizeSelector chooses devices with exactly so much memory.
func sizeSelector(size *resource.Quantity) resourceapi.DeviceSelector {
	capacities := "device.capacity[" + literal(api.DriverName) + "]"
	memory := literal(string(api.CapacityMemory))
	return celSelectors(fmt.Sprintf("%s in %s && %s[%s].compareTo(quantity(%s)) == 0", memory, capacities, capacities, memory, literal(size.String())))[0]
}

func celSelectors(expressions ...string) []resourceapi.DeviceSelector {
	var list []resourceapi.DeviceSelector
	for _, expression := range expressions {
		list = append(list, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return list
}

// attribute is the CEL expression for a text attribute of our driver's devices, empty where a device lacks it.
func attribute(name resourceapi.QualifiedName) string {
	return fmt.Sprintf("device.attributes[%s].?%s.orValue(%s)", literal(api.DriverName), name, literal(""))
}

// literal is a CEL string literal. Go's quoting to ASCII uses only escapes that CEL reads in the same way.
func literal(text string) string { return strconv.QuoteToASCII(strings.ToValidUTF8(text, "\uFFFD")) }

// literals is a CEL list of string literals.
func literals(items []string) string {
	quoted := make([]string, len(items))
	for i, item := range items {
		quoted[i] = literal(item)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
