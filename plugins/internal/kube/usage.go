// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Exclusive says whether a claim holds the device as a whole.
func (v *View) Exclusive(d *Device) bool { return v.Allocated.AllocatedDevices.Has(d.ID) }

// Consumed returns what the device's sharers consume; nil when there are none.
// The result is read-only.
func (v *View) Consumed(d *Device) structured.ConsumedCapacity {
	return v.Allocated.AggregatedCapacity[d.ID]
}

// Idle says whether no claim holds any part of the device.
//
// A share that consumes nothing at all is only in the list of share IDs, which
// is not looked through: our own devices have no such shares, and of others it
// means that they are idle for all that can be measured.
func (v *View) Idle(d *Device) bool { return !v.Exclusive(d) && v.Consumed(d) == nil }

// Fits says whether a device has room for one more request that is eligible
// for it and consumes use.
func (v *View) Fits(d *Device, use Consumption) bool {
	if v.Exclusive(d) {
		return false
	}
	return fits(use, v.Consumed(d), d.Device)
}

// Gives says whether a request that is eligible for a device, and consumes use of
// it, can have it as things are. use is nil for a device that is never shared.
func (v *View) Gives(d *Device, use Consumption) bool {
	if use == nil {
		return !v.Exclusive(d)
	}
	return v.Fits(d, use)
}

// Fingerprint identifies the allocated state of all devices of a node, within
// this process.
type Fingerprint [2]uint64

var fingerprintSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// Fingerprint returns the node's fingerprint.
func (v *View) Fingerprint(n *Node) Fingerprint {
	var content []byte
	for _, pool := range n.Pools {
		for i := range pool.Devices {
			content = v.appendState(content, i, &pool.Devices[i])
		}
		// Keeps device 0 of the next pool apart from device 0 of this one.
		content = append(content, '/')
	}
	return Fingerprint{maphash.Bytes(fingerprintSeeds[0], content), maphash.Bytes(fingerprintSeeds[1], content)}
}

// appendState appends nothing for an idle device.
func (v *View) appendState(content []byte, index int, d *Device) []byte {
	if v.Exclusive(d) {
		content = append(binary.AppendUvarint(content, uint64(index)), 'x')
	}
	consumed := v.Consumed(d)
	if consumed == nil {
		return content
	}
	content = append(binary.AppendUvarint(content, uint64(index)), 's')
	names := slices.SortedFunc(maps.Keys(consumed), cmp.Compare[resourceapi.QualifiedName])
	for _, name := range names {
		content = append(content, name...)
		content = append(content, '=')
		content = append(content, consumed[name].String()...)
		content = append(content, ';')
	}
	return content
}
