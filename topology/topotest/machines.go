// SPDX-License-Identifier: Apache-2.0

package topotest

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/topology/capture"
)

//go:embed machines/*.json
var machines embed.FS

// Names returns the names of the recorded machines in alphabetical order.
func Names() []string {
	entries, err := machines.ReadDir("machines")
	if err != nil {
		panic(fmt.Sprintf("listing embedded machines: %v", err)) // the folder is part of the binary
	}
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(e.Name(), ".json"))
	}
	slices.Sort(out)
	return out
}

// Bytes returns the recording of a machine.
func Bytes(name string) ([]byte, error) {
	data, err := machines.ReadFile("machines/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("finding recorded machine %q: there is none, known are %s", name, strings.Join(Names(), ", "))
	}
	return data, nil
}

// Load reads a recorded machine.
func Load(name string) (*capture.Recorded, error) {
	data, err := Bytes(name)
	if err != nil {
		return nil, err
	}
	return capture.ParseJSON(data, name)
}

// All reads all recorded machines, in the order of Names.
func All() ([]*capture.Recorded, error) {
	var out []*capture.Recorded
	for _, name := range Names() {
		r, err := Load(name)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
