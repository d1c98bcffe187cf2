// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/fit"
	"github.com/topodra/topodra/internal/livestate"
)

// The JSON form. Its fields are an interface to other programs: none is ever left out.
type (
	document struct {
		Nodes  []nodeDocument  `json:"nodes"`
		Total  totalDocument   `json:"total"`
		Claims []claimDocument `json:"claims"`
	}
	countsDocument struct {
		GPUs      int `json:"gpus"`
		Idle      int `json:"idle"`
		Shared    int `json:"shared"`
		Taken     int `json:"taken"`
		Blocked   int `json:"blocked"`
		Parts     int `json:"migDevices"`
		HeldParts int `json:"migDevicesHeld"`
	}
	nodeDocument struct {
		Name      string          `json:"name"`
		Simulated bool            `json:"simulated"`
		Counts    countsDocument  `json:"counts"`
		Offers    []offerDocument `json:"offers"`
		Devices   []gpuDocument   `json:"devices"`
		Warnings  []string        `json:"warnings"`
	}
	offerDocument struct {
		GPUs  int          `json:"gpus"`
		Jobs  int          `json:"jobs"`
		Now   *setDocument `json:"now"`   // null when too few are idle
		Empty *setDocument `json:"empty"` // null when the node has too few
	}
	setDocument struct {
		GPUs  []int   `json:"gpus"`
		Rings int     `json:"rings"`
		GBps  float64 `json:"gbps"`
		Over  string  `json:"over"`
	}
	totalDocument struct {
		Counts countsDocument       `json:"counts"`
		Offers []totalOfferDocument `json:"offers"`
	}
	totalOfferDocument struct {
		GPUs      int     `json:"gpus"`
		Jobs      int     `json:"jobs"`
		EmptyJobs int     `json:"jobsWhenEmpty"`
		GBps      float64 `json:"gbps"`
		EmptyGBps float64 `json:"gbpsWhenEmpty"`
		Node      string  `json:"node"` // has the best set now, empty without one
	}
	gpuDocument struct {
		Index            int            `json:"index"`
		Device           string         `json:"device"` // empty for a partitioned GPU
		UUID             string         `json:"uuid"`
		Product          string         `json:"product"`
		State            string         `json:"state"`
		Taints           []string       `json:"taints"`
		MemoryMiB        int64          `json:"memoryMiB"`
		FreeMemoryMiB    int64          `json:"freeMemoryMiB"`
		CoresPercent     int64          `json:"coresPercent"`
		FreeCoresPercent int64          `json:"freeCoresPercent"`
		Parts            []partDocument `json:"migDevices"`
	}
	partDocument struct {
		Device    string `json:"device"`
		Profile   string `json:"profile"`
		MemoryMiB int64  `json:"memoryMiB"`
		State     string `json:"state"`
	}
	claimDocument struct {
		Namespace string         `json:"namespace"`
		Name      string         `json:"name"`
		Pods      []string       `json:"pods"`
		Node      string         `json:"node"`
		Holds     []holdDocument `json:"holds"`
	}
	holdDocument struct {
		GPUs         []int  `json:"gpus"`
		Part         string `json:"part"`
		MemoryMiB    int64  `json:"memoryMiB"`
		CoresPercent int64  `json:"coresPercent"`
		Whole        bool   `json:"whole"`
		AdminAccess  bool   `json:"adminAccess"`
	}
)

// WriteJSON writes the report as one JSON document, on one line if compact.
func WriteJSON(w io.Writer, r *Report, compact bool) error {
	enc := json.NewEncoder(w)
	if !compact {
		enc.SetIndent("", "  ")
	}
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r.document()); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

func (r *Report) document() document {
	doc := document{Nodes: []nodeDocument{}, Claims: []claimDocument{}, Total: totalDocument{Counts: countsOf(r.Total.Counts)}}
	for i := range r.Nodes {
		doc.Nodes = append(doc.Nodes, nodeOf(&r.Nodes[i]))
	}
	for i, o := range r.Total.Offers {
		doc.Total.Offers = append(doc.Total.Offers, totalOfferDocument{
			GPUs: Sizes[i], Jobs: o.Jobs, EmptyJobs: o.EmptyJobs, GBps: o.Now.MBps.GBps(), EmptyGBps: o.Empty.MBps.GBps(), Node: o.NowNode,
		})
	}
	for _, c := range r.Claims {
		claim := claimDocument{Namespace: c.Namespace, Name: c.Name, Pods: notNil(c.Pods), Node: c.Node}
		for _, h := range c.Holds {
			claim.Holds = append(claim.Holds, holdDocument{
				GPUs: h.GPUs.Positions(), Part: h.Device, MemoryMiB: h.Uses.MemoryMiB, CoresPercent: h.Uses.CoresPercent, Whole: h.Whole, AdminAccess: h.Admin,
			})
		}
		doc.Claims = append(doc.Claims, claim)
	}
	return doc
}

func countsOf(c Counts) countsDocument { return countsDocument(c) }

func nodeOf(n *Node) nodeDocument {
	doc := nodeDocument{Name: n.Name, Simulated: n.Simulated, Counts: countsOf(n.Counts), Devices: []gpuDocument{}, Warnings: notNil(n.Warnings)}
	for i, o := range n.Offers {
		doc.Offers = append(doc.Offers, offerDocument{GPUs: Sizes[i], Jobs: o.Jobs, Now: setOf(o.Now), Empty: setOf(o.Empty)})
	}
	for i := range n.GPUs {
		doc.Devices = append(doc.Devices, gpuOf(&n.GPUs[i]))
	}
	return doc
}

func gpuOf(g *livestate.GPU) gpuDocument {
	doc := gpuDocument{
		Index: g.Position, Device: g.Device, UUID: g.UUID, Product: g.Product, Taints: notNil(g.Taints),
		MemoryMiB: g.Total.MemoryMiB, FreeMemoryMiB: g.Free.MemoryMiB,
		CoresPercent: g.Total.CoresPercent, FreeCoresPercent: g.Free.CoresPercent, Parts: []partDocument{},
	}
	switch {
	case g.Device != "":
		doc.State = StateOf(g)
	case len(g.Parts) > 0:
		doc.State = "partitioned"
	default:
		doc.State = "missing"
	}
	for _, p := range g.Parts {
		doc.Parts = append(doc.Parts, partDocument{Device: p.Device, Profile: p.Profile, MemoryMiB: p.MemoryMiB, State: partState(g, p)})
	}
	return doc
}

func setOf(o *fit.Offer) *setDocument {
	if o == nil {
		return nil
	}
	return &setDocument{GPUs: o.GPUs.Positions(), Rings: o.Quality.Rings, GBps: o.Quality.MBps.GBps(), Over: o.Quality.Bottleneck.String()}
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
