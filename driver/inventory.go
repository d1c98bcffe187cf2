// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/driver/device"
	"github.com/topodra/topodra/driver/prepare"
	"github.com/topodra/topodra/driver/publish"
)

// freshness is how old a discovery may be for a claim. A pod with several claims
// asks once for each, within milliseconds.
const freshness = time.Second

// inventory is the devices of the node, as published and as they are. It is safe
// for concurrent use, and asks its source, which is not, for one at a time.
type inventory struct {
	options publish.Options
	source  device.Source
	now     func() time.Time

	// sourceMu is held while the source is asked; snapshot and at are its last
	// answer and when it came.
	sourceMu sync.Mutex
	snapshot *device.Snapshot
	at       time.Time

	publishedMu sync.Mutex
	published   map[string]prepare.Device
}

var (
	_ device.Source     = &inventory{}
	_ prepare.Inventory = &inventory{}
)

// newInventory wraps the source.
func newInventory(source device.Source, options publish.Options) *inventory {
	return &inventory{source: source, options: options, now: time.Now, published: map[string]prepare.Device{}}
}

// Discover implements device.Source.
func (i *inventory) Discover(ctx context.Context) (*device.Snapshot, error) {
	i.sourceMu.Lock()
	defer i.sourceMu.Unlock()
	return i.discover(ctx)
}

// discover asks and remembers.
func (i *inventory) discover(ctx context.Context) (*device.Snapshot, error) {
	snapshot, err := i.source.Discover(ctx)
	if err != nil {
		i.snapshot = nil
		return nil, err
	}
	i.snapshot, i.at = snapshot, i.now()
	return snapshot, nil
}

// Present implements prepare.Inventory.
func (i *inventory) Present(ctx context.Context) ([]prepare.Device, error) {
	i.sourceMu.Lock()
	snapshot := i.snapshot
	var err error
	if snapshot == nil || i.now().Sub(i.at) > freshness {
		snapshot, err = i.discover(ctx)
	}
	i.sourceMu.Unlock()
	if err != nil {
		return nil, err
	}
	described, err := publish.Build(snapshot, i.options)
	if err != nil {
		return nil, err
	}
	return flatten(&described.Resources), nil
}

// Published implements prepare.Inventory.
func (i *inventory) Published(name string) (prepare.Device, bool) {
	i.publishedMu.Lock()
	defer i.publishedMu.Unlock()
	published, ok := i.published[name]
	return published, ok
}

// setPublished notes what was handed to the API server. Devices that are not
// published any more are kept: claims may still be allocated to them.
func (i *inventory) setPublished(resources *resourceslice.DriverResources) {
	i.publishedMu.Lock()
	defer i.publishedMu.Unlock()
	for _, published := range flatten(resources) {
		i.published[published.Name] = published
	}
}

// flatten lists the devices of all slices.
func flatten(resources *resourceslice.DriverResources) []prepare.Device {
	var out []prepare.Device
	for _, pool := range resources.Pools {
		for s := range pool.Slices {
			for d := range pool.Slices[s].Devices {
				out = append(out, prepare.DeviceFrom(&pool.Slices[s].Devices[d]))
			}
		}
	}
	return out
}
