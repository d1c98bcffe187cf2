// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/printable"
	"github.com/topodra/topodra/internal/livestate"
	"github.com/topodra/topodra/topology"
)

// legend explains the cells of the matrix, as nvidia-smi does.
const legend = `X = itself, NVn = n NVLinks, PIX = one PCIe switch, PXB = several PCIe switches, PHB = one host bridge,
NODE = several host bridges of one NUMA node, SYS = between NUMA nodes
`

// WriteText writes the view for people.
func WriteText(w io.Writer, v *View) error {
	var b strings.Builder
	for i := range v.Nodes {
		if i > 0 {
			b.WriteString("\n")
		}
		if err := writeNode(&b, v, &v.Nodes[i]); err != nil {
			return err
		}
	}
	b.WriteString("\n" + legend)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the topology: %w", err)
	}
	return nil
}

func writeNode(b *strings.Builder, v *View, n *livestate.Node) error {
	fmt.Fprintf(b, "Node %s: %s\n\n", n.Name, headline(n))
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	if n.Present != 0 {
		if _, err := io.WriteString(tw, n.Machine.Matrix()+"\n"); err != nil {
			return fmt.Errorf("writing the link matrix of node %q: %w", n.Name, err)
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("writing the link matrix of node %q: %w", n.Name, err)
		}
	}
	_, _ = fmt.Fprintln(tw, "GPU\tDEVICE\tMEMORY USED\tCORES USED\tHELD BY")
	for _, g := range n.GPUs {
		writeGPU(tw, v, g)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the GPUs of node %q: %w", n.Name, err)
	}
	b.WriteString(trimLines(table.String()))
	for _, warning := range n.Warnings {
		b.WriteString("warning: " + printable.Line(warning) + "\n")
	}
	return nil
}

// headline sums a node up in one line.
func headline(n *livestate.Node) string {
	parts := []string{fmt.Sprintf("%d GPUs", n.Present.Count()), fmt.Sprintf("%d idle", n.Idle().Count())}
	if products := productsOf(n); products != "" {
		parts = append(parts, products)
	}
	if n.Simulated {
		parts = append(parts, "simulated")
	}
	return strings.Join(parts, ", ")
}

// productsOf names the GPU models of a node in the order in which they appear.
func productsOf(n *livestate.Node) string {
	var names []string
	seen := map[string]bool{}
	for _, g := range n.GPUs {
		if g.Product != "" && !seen[g.Product] {
			seen[g.Product] = true
			names = append(names, printable.Line(g.Product))
		}
	}
	return strings.Join(names, " and ")
}

// writeGPU writes a GPU's line, and one more for each further holder.
func writeGPU(w io.Writer, v *View, g livestate.GPU) {
	name, memory, cores := g.Device, "", ""
	if g.Device == "" {
		name = "(not published)"
	} else {
		memory = FormatMiB(g.Total.MemoryMiB-g.Free.MemoryMiB) + " of " + FormatMiB(g.Total.MemoryMiB)
		cores = fmt.Sprintf("%d of %d %%", g.Total.CoresPercent-g.Free.CoresPercent, g.Total.CoresPercent)
	}
	var holders []string
	for _, t := range g.Taints {
		holders = append(holders, "taint "+t)
	}
	for _, h := range g.Holders {
		holders = append(holders, describeHolder(v, h))
	}
	if len(holders) == 0 {
		holders = []string{"-"}
	}
	for i, holder := range holders {
		if i == 0 {
			_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", g.Position, name, memory, cores, holder)
			continue
		}
		_, _ = fmt.Fprintf(w, "\t\t\t\t%s\n", holder)
	}
}

// describeHolder names pods, claim and what the claim took.
func describeHolder(v *View, h livestate.Holder) string {
	pods := make([]string, 0, len(h.Pods))
	for _, pod := range h.Pods {
		text := h.Namespace + "/" + pod
		if phase := v.Phases[PodKey{Namespace: h.Namespace, Name: pod}]; phase != "" {
			text += " " + string(phase)
		}
		pods = append(pods, text)
	}
	who := strings.Join(pods, " and ")
	if who == "" {
		who = h.Namespace + "/(no pod)"
	}
	return who + ", claim " + h.Claim + ": " + DescribeUse(h)
}

// DescribeUse says what a holder has of a GPU.
func DescribeUse(h livestate.Holder) string {
	switch {
	case h.Admin:
		return "admin access"
	case h.Device != "":
		return "part " + h.Device
	case h.Whole:
		return "whole"
	case h.Uses.CoresPercent == 0:
		return FormatMiB(h.Uses.MemoryMiB) + ", best-effort cores"
	default:
		return FormatMiB(h.Uses.MemoryMiB) + ", " + strconv.FormatInt(h.Uses.CoresPercent, 10) + " %"
	}
}

// FormatMiB prints an amount of memory in GiB with one decimal, without it where it is zero, or in MiB below one GiB.
func FormatMiB(mib int64) string {
	switch {
	case mib == 0:
		return "0"
	case mib < 1024:
		return strconv.FormatInt(mib, 10) + "Mi"
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64), ".0") + "Gi"
}

func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// nodeDocument is the JSON form of a node. Its fields are an interface to other programs: none is ever left out.
type nodeDocument struct {
	Name      string        `json:"name"`
	Simulated bool          `json:"simulated"`
	Links     [][]string    `json:"links"`
	GPUs      []gpuDocument `json:"gpus"`
	Warnings  []string      `json:"warnings"`
}

type gpuDocument struct {
	Index            int              `json:"index"`
	Device           string           `json:"device"`
	UUID             string           `json:"uuid"`
	Product          string           `json:"product"`
	NUMA             *int             `json:"numa"` // null when unknown
	Taints           []string         `json:"taints"`
	MemoryMiB        int64            `json:"memoryMiB"`
	FreeMemoryMiB    int64            `json:"freeMemoryMiB"`
	CoresPercent     int64            `json:"coresPercent"`
	FreeCoresPercent int64            `json:"freeCoresPercent"`
	Holders          []holderDocument `json:"holders"`
}

type holderDocument struct {
	Namespace    string        `json:"namespace"`
	Claim        string        `json:"claim"`
	Pods         []podDocument `json:"pods"`
	MemoryMiB    int64         `json:"memoryMiB"`
	CoresPercent int64         `json:"coresPercent"`
	Whole        bool          `json:"whole"`
	AdminAccess  bool          `json:"adminAccess"`
	Part         string        `json:"part"` // the MIG device, empty for the GPU itself
}

type podDocument struct {
	Name  string `json:"name"`
	Phase string `json:"phase"` // empty when unknown
}

// WriteJSON writes the view as one JSON document.
func WriteJSON(w io.Writer, v *View) error {
	doc := struct {
		Nodes []nodeDocument `json:"nodes"`
	}{Nodes: []nodeDocument{}}
	for i := range v.Nodes {
		doc.Nodes = append(doc.Nodes, documentOf(v, &v.Nodes[i]))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

func documentOf(v *View, n *livestate.Node) nodeDocument {
	doc := nodeDocument{Name: n.Name, Simulated: n.Simulated, Warnings: notNil(n.Warnings)}
	for i := range n.Machine.N() {
		row := make([]string, n.Machine.N())
		for j := range row {
			row[j] = n.Machine.LinkName(i, j)
		}
		doc.Links = append(doc.Links, row)
	}
	for _, g := range n.GPUs {
		gpu := gpuDocument{
			Index: g.Position, Device: g.Device, UUID: g.UUID, Product: g.Product, Taints: notNil(g.Taints),
			MemoryMiB: g.Total.MemoryMiB, FreeMemoryMiB: g.Free.MemoryMiB,
			CoresPercent: g.Total.CoresPercent, FreeCoresPercent: g.Free.CoresPercent, Holders: []holderDocument{},
		}
		if numa := n.Machine.GPUs[g.Position].NUMA; numa != topology.NoNUMA {
			gpu.NUMA = &numa
		}
		for _, h := range g.Holders {
			gpu.Holders = append(gpu.Holders, holderOf(v, h))
		}
		doc.GPUs = append(doc.GPUs, gpu)
	}
	return doc
}

func holderOf(v *View, h livestate.Holder) holderDocument {
	doc := holderDocument{
		Namespace: h.Namespace, Claim: h.Claim, Pods: []podDocument{}, MemoryMiB: h.Uses.MemoryMiB,
		CoresPercent: h.Uses.CoresPercent, Whole: h.Whole, AdminAccess: h.Admin, Part: h.Device,
	}
	for _, pod := range h.Pods {
		phase := v.Phases[PodKey{Namespace: h.Namespace, Name: pod}]
		doc.Pods = append(doc.Pods, podDocument{Name: pod, Phase: string(phase)})
	}
	return doc
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
