// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/topodra/topodra/sim/model"
	"github.com/topodra/topodra/sim/workload"
	"github.com/topodra/topodra/topology"
	"github.com/topodra/topodra/topology/capture"
	"github.com/topodra/topodra/topology/quality"
)

// maxNodes bounds a cluster.
const maxNodes = 100_000

// Loader reads recorded machines from a folder.
type Loader struct {
	dir     string
	classes *quality.Cache
}

// NewLoader reads from a folder of recordings, NAME.json each.
func NewLoader(dir string) *Loader { return &Loader{dir, quality.NewCache(0, quality.Options{})} }

// OpenbName stands for the openb nodes in the text of a cluster.
const OpenbName = "openb"

// Parse reads the text of a cluster: "openb", or a list of COUNT*MACHINE joined by
// commas, where MACHINE is a recording's name. Nodes are called MACHINE-NUMBER; their
// model is MACHINE.
func (l *Loader) Parse(text string) ([]model.Spec, error) {
	if text == OpenbName {
		return l.Openb()
	}
	var out []model.Spec
	for item := range strings.SplitSeq(text, ",") {
		countText, name, ok := strings.Cut(strings.TrimSpace(item), "*")
		count, err := strconv.Atoi(countText)
		if !ok || err != nil || count < 1 || len(out)+count > maxNodes {
			return nil, fmt.Errorf("reading cluster %q: %q is not COUNT*MACHINE with at most %d nodes in all", text, item, maxNodes)
		}
		m, err := l.machine(name)
		if err != nil {
			return nil, fmt.Errorf("reading cluster %q: %w", text, err)
		}
		class, err := l.classes.Get(m)
		if err != nil {
			return nil, fmt.Errorf("reading cluster %q: %w", text, err)
		}
		for i := range count {
			out = append(out, model.Spec{Name: fmt.Sprintf("%s-%04d", name, i), Model: name, Class: class})
		}
	}
	return out, nil
}

func (l *Loader) machine(name string) (*topology.Machine, error) {
	if name == "" || strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("finding machine %q: the name of a recording is expected", name)
	}
	r, err := capture.Load(filepath.Join(l.dir, name+".json"))
	if err != nil {
		return nil, err
	}
	return r.Machine, nil
}

// openbMachines says which recorded machine stands for a GPU model of the openb
// nodes. The trace says nothing about links, and G2 and G3 are not the real names;
// these are assumptions:
//
//   - V100M16, V100M32: the cube mesh of a DGX-1; nodes with 4 have one of its quads
//   - G3: eight GPUs behind an NVSwitch
//   - G2, P100, T4, A10: PCIe alone, switches of two, two sockets
var openbMachines = map[string]string{
	"V100M16": "dgx1v_8xv100", "V100M32": "dgx1v_8xv100", "G3": "hgxa100_8x_numa2",
	"G2": "pcie_8x_pix_node_sys", "P100": "pcie_8x_pix_node_sys", "T4": "pcie_8x_pix_node_sys", "A10": "pcie_8x_pix_node_sys",
}

// Openb returns the openb nodes. A node with fewer GPUs than the machine that stands
// for its model has the machine's first ones.
func (l *Loader) Openb() ([]model.Spec, error) {
	data, err := workload.OpenbNodes()
	if err != nil {
		return nil, err
	}
	records, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading openb nodes: %w", err)
	}
	machines := map[string]*topology.Machine{}
	var out []model.Spec
	for _, r := range records[1:] { // sn, cpu_milli, memory_mib, gpu, model
		var numbers [3]int64
		for i := range numbers {
			if numbers[i], err = strconv.ParseInt(r[i+1], 10, 32); err != nil {
				return nil, fmt.Errorf("reading openb node %q: %w", r[0], err)
			}
		}
		m, ok := machines[r[4]]
		if !ok {
			if m, err = l.machine(openbMachines[r[4]]); err != nil {
				return nil, fmt.Errorf("reading openb node %q of model %q: %w", r[0], r[4], err)
			}
			machines[r[4]] = m
		}
		class, err := l.classes.Get(m.Sub(topology.FullMask(int(numbers[2]))))
		if err != nil {
			return nil, fmt.Errorf("reading openb node %q: %w", r[0], err)
		}
		out = append(out, model.Spec{Name: r[0], Model: r[4], Class: class, CPUMilli: numbers[0], HostMiB: numbers[1]})
	}
	return out, nil
}
