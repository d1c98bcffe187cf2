// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
	"github.com/topodra/topodra/driver/enforce"
)

// plan is everything that a record means on the host.
type plan struct {
	spec *specs.Spec

	// containers need something on the host before they start.
	containers []*enforce.Container
}

// layout says where things of claims and containers are on the host.
type layout struct {
	// regions is the root of region directories.
	regions string

	// guards is a directory in which the sources of guards are missing.
	guards string

	// guardDevice is there while the NRI plugin is connected; "" does without.
	guardDevice string
}

// claimRegions is the directory of a claim's regions, with DeliveryCDI.
func (l layout) claimRegions(claim types.UID) string {
	return filepath.Join(l.regions, "claims", string(claim))
}

// claimRegion is the one of a container, "pod UID/name", among them.
func (l layout) claimRegion(claim types.UID, container string) string {
	return filepath.Join(l.claimRegions(claim), strings.ReplaceAll(container, "/", "_"))
}

// containerRegion is the directory of one container's region, with DeliveryNRI.
// Runtime IDs of containers are never used twice.
func (l layout) containerRegion(containerID string) string {
	return filepath.Join(l.regions, "containers", containerID)
}

// makePlan computes the CDI spec of a record. Pure.
func makePlan(uid types.UID, record *checkpoint.Claim, base *cdi.BaseEdits, enforcer enforce.Enforcer, where layout) (*plan, error) {
	extras := make([]enforce.Edits, len(record.Devices))
	armed := make([]bool, len(record.Devices))
	out := &plan{}
	for _, group := range record.Groups {
		var members []checkpoint.Device
		for _, position := range group.Devices {
			members = append(members, record.Devices[position])
		}
		container, err := enforce.NewContainer(members, where.claimRegion(uid, group.Container))
		if err != nil {
			return nil, refuse(ReasonCannotEnforce, "container %q: %v", path.Base(group.Container), err)
		}
		edits, err := enforcer.Edits(container)
		if err != nil {
			return nil, refuse(ReasonCannotEnforce, "container %q: %v", path.Base(group.Container), err)
		}
		for _, position := range group.Devices {
			if record.Devices[position].Limit != nil {
				extras[position], armed[position] = edits, true
			}
		}
		out.containers = append(out.containers, container)
	}
	var devices []cdi.Device
	for i := range record.Devices {
		device := &record.Devices[i]
		entry := cdi.Device{Name: device.CDIDevice, UUID: device.UUID, DeviceName: device.Name, Extra: extras[i]}
		if device.Limit != nil && !armed[i] {
			// Either the NRI plugin sets the limit, or no container that the pod
			// names has this share.
			entry.Guard = &cdi.Guard{Claim: uid, Dir: where.guards, Device: where.guardDevice}
		}
		devices = append(devices, entry)
	}
	spec, err := cdi.Build(base, devices)
	if err != nil {
		return nil, fmt.Errorf("planning claim %q: %w", record, err)
	}
	out.spec = spec
	return out, nil
}

// uuids of the record's devices, in order, each once.
func uuids(record *checkpoint.Claim) []string {
	var out []string
	for i := range record.Devices {
		out = append(out, record.Devices[i].UUID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
