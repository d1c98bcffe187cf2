// SPDX-License-Identifier: Apache-2.0

package topologydra

import (
	"context"
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/plugins/internal/kube"
)

// reasonNoRoom is what the in-tree plugin says when its allocator found nothing,
// so that the scheduler counts such nodes together with those that it looked at.
const reasonNoRoom = "cannot allocate all claims"

// room counts what a node can still give. It only ever errs by counting too much,
// so what does not fit by its count cannot be allocated.
type room struct {
	view *kube.View
	node *kube.Node
}

// hopeless says that the allocator would find nothing, whichever of the
// combinations it tries, because devices are missing. The allocator would learn
// it by trying: at once on a full node, but never, within any useful time, when a
// pod has many requests for one GPU each. The answer true is certain; false means
// nothing.
func (p *nodePlanner) hopeless(ctx context.Context, q *question, choices [][]item) bool {
	if q.view.HasShared() || q.node.Spread() {
		// Devices may come from elsewhere.
		return false
	}
	for _, pool := range q.node.Pools {
		if pool.Order == kube.ObstacleInvalid || pool.Order == kube.ObstacleIncomplete {
			// The allocator has more to say about the node.
			return false
		}
	}
	left := room{q.view, q.node}
	for _, items := range choices {
		if p.mayFit(ctx, left, items) {
			return false
		}
	}
	return len(choices) > 0
}

// mayFit compares counts for one combination of alternatives: of each request by
// itself, and of all requests together that cannot share a device with each other.
func (p *nodePlanner) mayFit(ctx context.Context, left room, items []item) bool {
	var wants []want
	for _, it := range items {
		if it.Admin || it.All {
			continue
		}
		w, err := left.want(ctx, p.matcher, it.Request)
		if err != nil {
			// The allocator will tell.
			return true
		}
		if w.count > int64(len(w.devices)) {
			return false
		}
		wants = append(wants, w)
	}
	for _, w := range wants {
		for name := range w.fills {
			if !fitApart(wants, name) {
				return false
			}
		}
	}
	return true
}

// unshared is the name, in want.fills, of a capacity that nobody can ask for: a
// device that is never shared is full with one request.
const unshared resourceapi.QualifiedName = ""

// want is what a request asks of a node.
type want struct {
	count int64
	// devices that the request could get by itself.
	devices []*kube.Device
	// fills are the capacities of which it takes more than half on each of these
	// devices. Two requests that fill the same never share one.
	fills map[resourceapi.QualifiedName]bool
}

// fitApart compares the sum of requests that fill a capacity with the devices that
// any of them can get.
func fitApart(wants []want, name resourceapi.QualifiedName) bool {
	count, devices := int64(0), map[*kube.Device]bool{}
	for _, w := range wants {
		if !w.fills[name] && !w.fills[unshared] {
			continue
		}
		count += w.count
		for _, device := range w.devices {
			devices[device] = true
		}
	}
	return count <= int64(len(devices))
}

// want finds the devices for a request.
func (r room) want(ctx context.Context, matcher *kube.Matcher, request *kube.Request) (want, error) {
	w := want{count: request.Count, fills: map[resourceapi.QualifiedName]bool{}}
	for _, pool := range r.node.Pools {
		match, err := matcher.Match(ctx, pool, request)
		if err != nil {
			return want{}, err
		}
		for i := range pool.Devices {
			device := &pool.Devices[i]
			if !match.Eligible[i] || !r.view.Gives(device, match.Use[i]) {
				continue
			}
			w.fill(device, match.Use[i], len(w.devices) == 0)
			w.devices = append(w.devices, device)
		}
	}
	return w, nil
}

// fill keeps the capacities that the request also fills on the device.
func (w *want) fill(device *kube.Device, use kube.Consumption, first bool) {
	switch {
	case use == nil && first:
		w.fills[unshared] = true
	case use == nil:
	case first || w.fills[unshared]:
		w.fills = use.MoreThanHalf(device)
	default:
		filled := use.MoreThanHalf(device)
		maps.DeleteFunc(w.fills, func(name resourceapi.QualifiedName, _ bool) bool { return !filled[name] })
	}
}
