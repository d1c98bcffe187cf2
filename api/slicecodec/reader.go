// SPDX-License-Identifier: Apache-2.0

package slicecodec

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/topology"
)

// maxPCIeGen bounds what is taken for a PCIe generation.
const maxPCIeGen = 100

// reader looks attributes of one device up and keeps the first error. After an
// error its results mean nothing.
type reader struct {
	driver     string
	attributes Attributes
	err        error
}

// find looks an attribute up. A name in the driver's own domain may stand with or
// without it, in the mapping as in the slice.
func (r *reader) find(name string) (resourceapi.DeviceAttribute, bool) {
	if name == "" || r.err != nil {
		return resourceapi.DeviceAttribute{}, false
	}
	if value, ok := r.attributes[resourceapi.QualifiedName(name)]; ok {
		return value, true
	}
	if bare, own := strings.CutPrefix(name, r.driver+"/"); own {
		value, ok := r.attributes[resourceapi.QualifiedName(bare)]
		return value, ok
	}
	if !strings.Contains(name, "/") {
		value, ok := r.attributes[resourceapi.QualifiedName(r.driver+"/"+name)]
		return value, ok
	}
	return resourceapi.DeviceAttribute{}, false
}

// fail keeps the first error.
func (r *reader) fail(name, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("attribute %q: %w", name, fmt.Errorf(format, args...))
	}
}

// text reads a string; "" when missing.
func (r *reader) text(name string) string {
	value, ok := r.find(name)
	switch {
	case !ok:
		return ""
	case value.StringValue == nil:
		r.fail(name, "must be a string")
		return ""
	case len(*value.StringValue) > resourceapi.DeviceAttributeMaxValueLength:
		r.fail(name, "%d bytes are more than the limit of %d", len(*value.StringValue), resourceapi.DeviceAttributeMaxValueLength)
		return ""
	default:
		return *value.StringValue
	}
}

// textOrNumber reads a string or an int as text; "" when missing.
func (r *reader) textOrNumber(name string) string {
	if value, ok := r.find(name); ok && value.IntValue != nil {
		return strconv.FormatInt(*value.IntValue, 10)
	}
	return r.text(name)
}

// number reads an int between 0 and limit; fallback when missing.
func (r *reader) number(name string, limit int64, fallback int) int {
	value, ok := r.find(name)
	switch {
	case !ok:
		return fallback
	case value.IntValue == nil:
		r.fail(name, "must be an int")
		return fallback
	case *value.IntValue < 0 || *value.IntValue > limit:
		r.fail(name, "%d is not between 0 and %d", *value.IntValue, limit)
		return fallback
	default:
		return int(*value.IntValue)
	}
}

// numaNode reads a NUMA node. Where drivers publish a list, the first entry is
// the node of the slot. A negative node means that the firmware names none.
func (r *reader) numaNode(name string) int {
	value, ok := r.find(name)
	if !ok {
		return topology.NoNUMA
	}
	node := value.IntValue
	if node == nil && len(value.IntValues) > 0 {
		node = &value.IntValues[0]
	}
	switch {
	case node == nil:
		r.fail(name, "must be an int")
		return topology.NoNUMA
	case *node < 0:
		return topology.NoNUMA
	case *node > math.MaxInt16:
		r.fail(name, "%d is not between 0 and %d", *node, math.MaxInt16)
		return topology.NoNUMA
	default:
		return int(*node)
	}
}

// boolean reads a bool; nil when missing.
func (r *reader) boolean(name string) *bool {
	value, ok := r.find(name)
	if ok && value.BoolValue == nil {
		r.fail(name, "must be a bool")
	}
	return value.BoolValue
}
