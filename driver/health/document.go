// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/topology"
)

// APIVersion is the only version of the document so far.
const APIVersion = "health.gpu.topodra.dev/v1"

// Document is what is remembered of the health of a node. Fields that a version
// does not know are dropped: what matters is found again.
type Document struct {
	APIVersion string `json:"apiVersion"`

	// NodeName is the node that the document belongs to.
	NodeName string `json:"nodeName"`

	// BootID is that of the boot in which Known and Baselines were seen.
	BootID string `json:"bootID,omitempty"`

	// Conditions in order of target and kind.
	Conditions []Condition `json:"conditions,omitempty"`

	// Known are the GPUs that were there in this boot.
	Known map[device.UUID]*KnownGPU `json:"known,omitempty"`

	// Baselines by GPU.
	Baselines map[device.UUID]Baseline `json:"baselines,omitempty"`
}

// KnownGPU is a GPU as it was when it was last there.
type KnownGPU struct {
	GPU  device.GPU       `json:"gpu"`
	Info topology.GPUInfo `json:"info"`

	// PCIe is how far it was from others.
	PCIe map[device.UUID]topology.PCIe `json:"pcie,omitempty"`
}

// NewDocument returns an empty document.
func NewDocument(nodeName, bootID string) *Document {
	return &Document{
		APIVersion: APIVersion, NodeName: nodeName, BootID: bootID,
		Known: map[device.UUID]*KnownGPU{}, Baselines: map[device.UUID]Baseline{},
	}
}

// Encode writes the file's content.
func Encode(d *Document) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encoding the health of GPUs: %w", err)
	}
	return append(out, '\n'), nil
}

// Decode reads a file's content. Errors say what is wrong with it.
func Decode(content []byte) (*Document, error) {
	document := &Document{}
	reader := bytes.NewReader(content)
	decoder := json.NewDecoder(reader)
	if err := decoder.Decode(document); err != nil {
		return nil, fmt.Errorf("decoding the health of GPUs: %w", err)
	}
	rest, err := io.ReadAll(io.MultiReader(decoder.Buffered(), reader))
	if rest = bytes.TrimSpace(rest); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("decoding the health of GPUs: %d bytes follow the document", len(rest))
	}
	if err := document.Validate(); err != nil {
		return nil, err
	}
	if document.Known == nil {
		document.Known = map[device.UUID]*KnownGPU{}
	}
	if document.Baselines == nil {
		document.Baselines = map[device.UUID]Baseline{}
	}
	return document, nil
}

// Validate reports what would mislead the driver.
func (d *Document) Validate() error {
	if err := d.validate(); err != nil {
		return fmt.Errorf("checking the health of GPUs: %w", err)
	}
	return nil
}

func (d *Document) validate() error {
	if d.APIVersion != APIVersion {
		return fmt.Errorf("apiVersion is %q, this version of the driver reads %q", d.APIVersion, APIVersion)
	}
	seen := map[id]bool{}
	for i := range d.Conditions {
		condition := &d.Conditions[i]
		if err := condition.check(); err != nil {
			return err
		}
		at := id{condition.Target, condition.Kind}
		if seen[at] {
			return fmt.Errorf("condition %q of %q is there twice", condition.Kind, condition.Target)
		}
		seen[at] = true
	}
	for _, uuid := range slices.Sorted(maps.Keys(d.Known)) {
		known := d.Known[uuid]
		if known == nil || known.GPU.UUID != uuid || uuid == "" {
			return fmt.Errorf("GPU %q is known under another name", uuid)
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(d.Baselines)) {
		if d.Baselines[uuid].ActiveLinks < 0 {
			return fmt.Errorf("GPU %q has a negative number of links", uuid)
		}
	}
	return nil
}

// isLabelValue says whether the API takes the text as the value of a taint.
func isLabelValue(text string) bool { return len(validation.IsValidLabelValue(text)) == 0 }
