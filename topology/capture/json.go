// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/topodra/topodra/topology"
)

// fileJSON is the recorded form on disk.
type fileJSON struct {
	Name       string      `json:"name"`
	Hardware   string      `json:"hardware"`
	Source     string      `json:"source"`
	Kind       string      `json:"kind"`
	GPUs       []gpuJSON   `json:"gpus"`
	Links      [][]*string `json:"links"`
	PCIeClass  [][]*string `json:"pcieClass"`
	NICs       []nicJSON   `json:"nics"`
	NVLinkGBps float64     `json:"nvlink_gbps_per_link"`
	NVL72      bool        `json:"nvl72"`
}

type gpuJSON struct {
	Index       *int      `json:"index"`
	NUMA        textOrInt `json:"numa"`
	CPUAffinity *string   `json:"cpuAffinity"`
	GPUNUMAID   textOrInt `json:"gpuNumaId"`
}

type nicJSON struct {
	Name  string    `json:"name"`
	ToGPU []*string `json:"toGPU"`
	ToNIC []*string `json:"toNIC"`
}

// textOrInt accepts null, a number or a string and keeps the text.
type textOrInt string

// UnmarshalJSON implements json.Unmarshaler.
func (t *textOrInt) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*t = ""
		return nil
	}
	if data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*t = textOrInt(s)
		return nil
	}
	var v int
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("%s is not a NUMA node: it must be null, a number or a list in a string", data)
	}
	*t = textOrInt(strconv.Itoa(v))
	return nil
}

// ParseJSON reads the recorded JSON form.
func ParseJSON(data []byte, name string) (*Recorded, error) {
	r, err := parseJSON(data, name)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", name, err)
	}
	return r, nil
}

func parseJSON(data []byte, name string) (*Recorded, error) {
	if err := checkSize(data); err != nil {
		return nil, err
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var f fileJSON
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	raw, err := f.raw(name)
	if err != nil {
		return nil, err
	}
	return raw.build()
}

// raw checks shapes and turns the file into the form both readers share.
func (f *fileJSON) raw(name string) (*rawMachine, error) {
	n := len(f.GPUs)
	if n == 0 || n > topology.MaxGPUs {
		return nil, fmt.Errorf("gpus: %d entries, expected 1 to %d", n, topology.MaxGPUs)
	}
	if f.Name != "" {
		name = f.Name
	}
	raw := &rawMachine{
		name: name, hardware: f.Hardware, source: f.Source, kind: f.Kind, nvl72: f.NVL72,
		gpus: make([]RecordedGPU, n),
	}
	if f.NVLinkGBps != 0 {
		if !(f.NVLinkGBps > 0) || f.NVLinkGBps*1000 > float64(topology.MaxWeightMBps) {
			return nil, fmt.Errorf("nvlink_gbps_per_link: %v is not a positive rate in GB/s", f.NVLinkGBps)
		}
		raw.linkRate = topology.MBps(math.Round(f.NVLinkGBps * 1000))
	}
	for i, g := range f.GPUs {
		if g.Index != nil && *g.Index != i {
			return nil, fmt.Errorf("gpus: entry %d has index %d: entries must be in the order of the matrix", i, *g.Index)
		}
		rec, err := g.recorded(i)
		if err != nil {
			return nil, err
		}
		raw.gpus[i] = rec
	}
	var err error
	if raw.links, err = matrixJSON("links", f.Links, n); err != nil {
		return nil, err
	}
	if f.PCIeClass != nil {
		if raw.pcie, err = matrixJSON("pcieClass", f.PCIeClass, n); err != nil {
			return nil, err
		}
	}
	raw.nics, err = nicsJSON(f.NICs, n)
	return raw, err
}

func (g *gpuJSON) recorded(i int) (RecordedGPU, error) {
	rec := RecordedGPU{Index: i, NUMAText: string(g.NUMA), GPUNUMAID: topology.NoNUMA}
	if g.CPUAffinity != nil {
		rec.CPUAffinity = *g.CPUAffinity
	}
	if g.GPUNUMAID != "" {
		id, ok := firstNUMA(string(g.GPUNUMAID))
		if !ok {
			return rec, fmt.Errorf("gpus: entry %d: gpuNumaId %q is not a NUMA node", i, g.GPUNUMAID)
		}
		rec.GPUNUMAID = id
	}
	if _, ok := firstNUMA(rec.NUMAText); rec.NUMAText != "" && !ok {
		return rec, fmt.Errorf("gpus: entry %d: numa %q is neither a node nor a list of nodes", i, rec.NUMAText)
	}
	return rec, nil
}

func matrixJSON(field string, rows [][]*string, n int) ([][]string, error) {
	if len(rows) != n {
		return nil, fmt.Errorf("%s: %d rows for %d GPUs", field, len(rows), n)
	}
	out := make([][]string, n)
	for i, row := range rows {
		if len(row) != n {
			return nil, fmt.Errorf("%s: row %d has %d columns for %d GPUs", field, i, len(row), n)
		}
		out[i] = make([]string, n)
		for j, cell := range row {
			if cell == nil {
				return nil, fmt.Errorf("%s: row %d, column %d: null is not a link", field, i, j)
			}
			out[i][j] = *cell
		}
	}
	return out, nil
}

func nicsJSON(nics []nicJSON, n int) ([]NIC, error) {
	var out []NIC
	for i, nic := range nics {
		if nic.Name == "" {
			return nil, fmt.Errorf("nics: entry %d has no name", i)
		}
		if len(nic.ToGPU) != n {
			return nil, fmt.Errorf("nics: %q has %d columns in toGPU for %d GPUs", nic.Name, len(nic.ToGPU), n)
		}
		if len(nic.ToNIC) > len(nics) {
			return nil, fmt.Errorf("nics: %q has %d columns in toNIC for %d NICs", nic.Name, len(nic.ToNIC), len(nics))
		}
		out = append(out, NIC{Name: nic.Name, ToGPU: deref(nic.ToGPU), ToNIC: deref(nic.ToNIC)})
	}
	return out, nil
}

func deref(in []*string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		if s != nil {
			out[i] = *s
		}
	}
	return out
}
