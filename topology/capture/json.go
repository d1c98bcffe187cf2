// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/topodra/topodra/topology"
)

// Limits of what a recording may say.
const (
	// MaxNICs is how many network cards a recording may have.
	MaxNICs = 256
	// maxName is the length of the longest name in bytes; that of the longest DNS name.
	maxName = 253
)

// ParseJSON reads the recorded JSON form.
func ParseJSON(data []byte, name string) (*Recorded, error) {
	r, err := parseJSON(data, name)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", name, err)
	}
	return r, nil
}

func parseJSON(data []byte, name string) (*Recorded, error) {
	if err := checkInput(data); err != nil {
		return nil, err
	}
	doc, err := document(bytes.TrimPrefix(data, []byte(byteOrderMark)))
	if err != nil {
		return nil, err
	}
	raw, err := machineJSON(doc, name)
	if err != nil {
		return nil, err
	}
	return raw.build()
}

// machineJSON checks shapes and turns the document into the form both readers share.
func machineJSON(doc value, name string) (*rawMachine, error) {
	fields, err := doc.object("gpus", "links", "pcieClass", "nics", "name", "hardware", "source", "kind", "nvlink_gbps_per_link", "nvl72")
	if err != nil {
		return nil, err
	}
	raw := &rawMachine{}
	for _, field := range []struct {
		key string
		to  *string
	}{{"name", &raw.name}, {"hardware", &raw.hardware}, {"source", &raw.source}, {"kind", &raw.kind}} {
		if *field.to, err = fields[field.key].text(""); err != nil {
			return nil, err
		}
	}
	if len(raw.name) > maxName {
		return nil, fmt.Errorf("name: %d bytes, the limit is %d", len(raw.name), maxName)
	}
	if raw.name == "" {
		raw.name = name
	}
	if raw.nvl72, err = fields["nvl72"].flag(); err != nil {
		return nil, err
	}
	if raw.linkRate, err = rateJSON(fields["nvlink_gbps_per_link"]); err != nil {
		return nil, err
	}
	if raw.gpus, err = gpusJSON(fields["gpus"]); err != nil {
		return nil, err
	}
	n := len(raw.gpus)
	if raw.links, err = matrixJSON("links", fields["links"], n); err != nil {
		return nil, err
	}
	if pcie := fields["pcieClass"]; !pcie.null() {
		if raw.pcie, err = matrixJSON("pcieClass", pcie, n); err != nil {
			return nil, err
		}
	}
	raw.nics, err = nicsJSON(fields["nics"], n)
	return raw, err
}

// rateJSON reads the rate of one NVLink; 0 when it is not recorded.
func rateJSON(v value) (topology.MBps, error) {
	if v.null() {
		return 0, nil
	}
	gbps, err := v.number()
	if err != nil {
		return 0, err
	}
	const limit = topology.MaxWeightMBps / topology.MaxLinks
	mbps := math.Round(gbps * 1000)
	if gbps == 0 {
		return 0, nil
	}
	if !(mbps >= 1 && mbps <= float64(limit)) {
		return 0, v.failf("%v is out of range: it must be 0.001 to %d GB/s, or 0 where it is not known", gbps, limit/1000)
	}
	return topology.MBps(mbps), nil
}

func gpusJSON(v value) ([]RecordedGPU, error) {
	entries, err := v.list(": entry")
	if err != nil {
		return nil, err
	}
	n := len(entries)
	if n == 0 || n > topology.MaxGPUs {
		return nil, fmt.Errorf("gpus: %d entries, expected 1 to %d", n, topology.MaxGPUs)
	}
	out := make([]RecordedGPU, n)
	for i, entry := range entries {
		if out[i], err = gpuJSON(entry, i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func gpuJSON(entry value, i int) (RecordedGPU, error) {
	rec := RecordedGPU{Index: i, GPUNUMAID: topology.NoNUMA}
	fields, err := entry.object("index", "numa", "cpuAffinity", "gpuNumaId")
	if err != nil {
		return rec, err
	}
	if index := fields["index"]; !index.null() {
		at, err := index.number()
		if err != nil {
			return rec, err
		}
		if at != float64(i) {
			return rec, fmt.Errorf("%s has index %v: entries must be in the order of the matrix, from 0", entry.at, at)
		}
	}
	if rec.CPUAffinity, err = fields["cpuAffinity"].text(`such as "0-31,64-95"`); err != nil {
		return rec, err
	}
	if rec.CPUAffinity == "N/A" { // as nvidia-smi prints it
		rec.CPUAffinity = ""
	}
	if rec.CPUAffinity != "" && !validList(rec.CPUAffinity) {
		return rec, entry.failf("cpuAffinity %s is not a list of CPUs such as \"0-31,64-95\"", short(rec.CPUAffinity))
	}
	if rec.NUMAText, err = numaJSON(entry, "numa", fields["numa"]); err != nil {
		return rec, err
	}
	id, err := numaJSON(entry, "gpuNumaId", fields["gpuNumaId"])
	if err != nil {
		return rec, err
	}
	if id != "" {
		rec.GPUNUMAID, _ = firstNUMA(id)
	}
	return rec, nil
}

// numaJSON reads a node or a list of nodes; "" when it is not known.
func numaJSON(entry value, key string, v value) (string, error) {
	if v.null() {
		return "", nil
	}
	text := string(v.raw)
	if v.raw[0] == '"' {
		var err error
		if text, err = v.text(""); err != nil || text == "" {
			return "", err
		}
	}
	if _, ok := firstNUMA(text); !ok {
		return "", entry.failf("%s %s is not a NUMA node: it must be null, a number or a list in a string, all 0 to %d",
			key, short(text), maxNUMA)
	}
	return strings.TrimSpace(text), nil
}

func matrixJSON(field string, v value, n int) ([][]string, error) {
	rows, err := v.list(": row")
	if err != nil {
		return nil, err
	}
	if len(rows) != n {
		return nil, fmt.Errorf("%s: %d rows for %d GPUs", field, len(rows), n)
	}
	out := make([][]string, n)
	for i, row := range rows {
		cells, err := row.list(", column")
		if err != nil {
			return nil, err
		}
		if len(cells) != n {
			return nil, fmt.Errorf("%s: row %d has %d columns for %d GPUs", field, i, len(cells), n)
		}
		out[i] = make([]string, n)
		for j, cell := range cells {
			if cell.null() {
				return nil, cell.failf("null is not a link")
			}
			if out[i][j], err = cell.text(`such as "NV4" or "SYS"`); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func nicsJSON(v value, n int) ([]NIC, error) {
	entries, err := v.list(": entry")
	if err != nil {
		return nil, err
	}
	if len(entries) > MaxNICs {
		return nil, fmt.Errorf("nics: %d entries, the limit is %d", len(entries), MaxNICs)
	}
	var out []NIC
	for _, entry := range entries {
		nic, err := nicJSON(entry, n, len(entries))
		if err != nil {
			return nil, err
		}
		out = append(out, nic)
	}
	return out, nil
}

func nicJSON(entry value, gpus, nics int) (NIC, error) {
	fields, err := entry.object("name", "toGPU", "toNIC")
	if err != nil {
		return NIC{}, err
	}
	name, err := fields["name"].text("")
	if err != nil {
		return NIC{}, err
	}
	if name == "" {
		return NIC{}, fmt.Errorf("%s has no name", entry.at)
	}
	nic := NIC{Name: name}
	if nic.ToGPU, err = cellsJSON(fields["toGPU"]); err != nil {
		return nic, err
	}
	if nic.ToNIC, err = cellsJSON(fields["toNIC"]); err != nil {
		return nic, err
	}
	if len(nic.ToGPU) != gpus {
		return nic, fmt.Errorf("nics: %s has %d columns in toGPU for %d GPUs", short(name), len(nic.ToGPU), gpus)
	}
	if len(nic.ToNIC) > nics {
		return nic, fmt.Errorf("nics: %s has %d columns in toNIC for %d NICs", short(name), len(nic.ToNIC), nics)
	}
	return nic, nil
}

// cellsJSON reads cells of a network card, of which those that were not recorded are
// null.
func cellsJSON(v value) ([]string, error) {
	cells, err := v.list(", column")
	if err != nil {
		return nil, err
	}
	out := make([]string, len(cells))
	for i, cell := range cells {
		if out[i], err = cell.text(`such as "PIX", or null`); err != nil {
			return nil, err
		}
	}
	return out, nil
}
