// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce/watch"
	"github.com/topodra/topodra/driver/internal/owners"
)

// Options of a Collector. What is nil tells nothing.
type Options struct {
	// NodeName is the name of the node.
	NodeName string

	// Checkpoint reads what claims are prepared, and Containers which containers
	// with devices there are, by ID. Containers may return both an error and
	// what could be read.
	Checkpoint func() (*checkpoint.Document, error)
	Containers func() (map[string]*owners.Owner, error)

	// Regions says where containers have their regions.
	Regions *Regions

	// Usage is what is measured.
	Usage Usage

	// Health tells about the health of published devices, each once. It must not
	// wait for the GPU driver.
	Health func() []Health

	// HAMiAliases tells everything by HAMi's names, too.
	HAMiAliases bool

	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Collector tells Prometheus.
type Collector struct {
	options Options
	regions *regionReader
	devices atomic.Pointer[[]Device]

	checkpointFailures, containerFailures atomic.Uint64
}

var _ prometheus.Collector = &Collector{}

// New returns a Collector that knows no devices yet.
func New(options Options) (*Collector, error) {
	if options.NodeName == "" {
		return nil, errors.New("configuring metrics: the node's name is missing")
	}
	if where := options.Regions; where != nil && (where.OfContainer == nil || where.OfClaim == nil) {
		return nil, fmt.Errorf("configuring metrics: regions are to be read, but not from where")
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Collector{options: options, regions: newRegionReader()}, nil
}

// SetDevices notes what is published. The slice is not to be changed afterwards.
func (c *Collector) SetDevices(devices []Device) { c.devices.Store(&devices) }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, family := range Families(c.options.HAMiAliases) {
		out <- family.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	out, now := sink(metrics), c.options.Now()
	seen := c.look(now)
	for i := range seen.devices {
		seen.devices[i].send(out, c.options.NodeName)
	}
	seen.promises.send(out, seen.devices)
	seen.uses.send(out)
	sendReports(out, seen.reports)
	if c.options.Health != nil {
		sendHealth(out, c.options.Health())
	}
	c.sendOwn(out, now)
	if c.options.HAMiAliases {
		sendAliases(out, c.options.NodeName, seen, now)
	}
}

// seen is everything that is known at one moment.
type seen struct {
	devices  []Device
	promises *promises
	uses     *uses
	reports  map[key]*report
}

// look reads everything.
func (c *Collector) look(now time.Time) *seen {
	out := &seen{}
	if devices := c.devices.Load(); devices != nil {
		out.devices = *devices
	}
	offered := make(map[string]int64, len(out.devices))
	for i := range out.devices {
		offered[out.devices[i].UUID] = out.devices[i].OfferedBytes
	}
	var document *checkpoint.Document
	var known map[string]*owners.Owner
	var err error
	if c.options.Checkpoint != nil {
		if document, err = c.options.Checkpoint(); err != nil {
			c.checkpointFailures.Add(1)
			document = nil
		}
	}
	if c.options.Containers != nil {
		if known, err = c.options.Containers(); err != nil {
			c.containerFailures.Add(1)
		}
	}
	out.promises = promise(document, known, offered)
	var last *watch.Observation
	if c.options.Usage != nil {
		last = c.options.Usage.Last()
	}
	out.uses = measured(last, now, out.devices, known)
	if c.options.Regions != nil {
		out.reports = c.regions.reports(places(document, known, *c.options.Regions), now)
	}
	return out
}

// sendOwn tells about the driver's own work.
func (c *Collector) sendOwn(out sink, now time.Time) {
	out.send(scrapeFailures, float64(c.checkpointFailures.Load()), "checkpoint")
	out.send(scrapeFailures, float64(c.containerFailures.Load()), "containers")
	c.regions.sendCounts(out)
	if c.options.Usage == nil {
		return
	}
	out.send(usageFailures, float64(c.options.Usage.Failed()))
	if last := c.options.Usage.Last(); last != nil {
		out.send(usageAge, max(0, now.Sub(last.At).Seconds()))
	}
}
