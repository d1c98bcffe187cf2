// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
)

// devices of the node, now and as published.
type devices struct {
	present   map[string]Device
	published func(name string) (Device, bool)
}

// newDevices indexes what an Inventory says.
func newDevices(present []Device, published func(name string) (Device, bool)) devices {
	byName := make(map[string]Device, len(present))
	for _, device := range present {
		byName[device.Name] = device
	}
	return devices{present: byName, published: published}
}

// computeRecord turns the claim's allocation into the record of its devices and
// limits. State, delivery and enforcer are left to the caller.
func computeRecord(claim *resourceapi.ResourceClaim, nodeName string, known devices) (*checkpoint.Claim, error) {
	record := &checkpoint.Claim{Namespace: claim.Namespace, Name: claim.Name, Consumers: consumers(claim)}
	if len(record.Consumers) == 0 {
		return nil, notReserved(claim)
	}
	if claim.Status.Allocation == nil {
		return nil, refuse(ReasonNotForThisNode, "the claim has no allocation")
	}
	allocation := &claim.Status.Allocation.Devices
	for i := range allocation.Results {
		result := &allocation.Results[i]
		if result.Driver != api.DriverName {
			continue
		}
		if result.Pool != nodeName {
			return nil, refuse(ReasonNotForThisNode, "device %q of request %q belongs to node %q, this is node %q",
				result.Device, result.Request, result.Pool, nodeName)
		}
		device, err := known.resolve(result.Device)
		if err != nil {
			return nil, fmt.Errorf("resolving request %q: %w", result.Request, err)
		}
		sharing, err := sharingOf(allocation.Config, result)
		if err != nil {
			return nil, fmt.Errorf("configuring request %q: %w", result.Request, err)
		}
		record.Devices = append(record.Devices, recordDevice(claim, result, device, sharing))
	}
	if len(record.Devices) == 0 {
		return nil, refuse(ReasonNotForThisNode, "the claim's allocation has no device of driver %q", api.DriverName)
	}
	return record, nil
}

// notReserved says who has reserved the claim, if not pods.
func notReserved(claim *resourceapi.ResourceClaim) *Refusal {
	if len(claim.Status.ReservedFor) == 0 {
		return refuse(ReasonNotReserved, "no pod has reserved the claim")
	}
	var others []string
	for _, reference := range claim.Status.ReservedFor {
		kind := schema.GroupResource{Group: reference.APIGroup, Resource: reference.Resource}
		others = append(others, fmt.Sprintf("%s %q", kind, reference.Name))
	}
	slices.Sort(others)
	return refuse(ReasonNotReserved, "the claim is reserved for %s and for no pod: which containers may use its devices, and with which limits, follows from the pods "+
		"that have reserved it; name the claim, or a template for claims, in spec.resourceClaims of each pod", strings.Join(others, ", "))
}

// consumers lists the pods in reservedFor, in order of UID.
func consumers(claim *resourceapi.ResourceClaim) []checkpoint.Consumer {
	var out []checkpoint.Consumer
	for _, reference := range claim.Status.ReservedFor {
		if reference.APIGroup == "" && reference.Resource == string(corev1.ResourcePods) {
			out = append(out, checkpoint.Consumer{Name: reference.Name, UID: reference.UID})
		}
	}
	slices.SortFunc(out, func(a, b checkpoint.Consumer) int { return cmp.Compare(a.UID, b.UID) })
	return out
}

// resolve finds the device by name and makes sure that it is the one that was
// published under it.
func (d devices) resolve(name string) (Device, error) {
	device, isPresent := d.present[name]
	published, wasPublished := d.published(name)
	switch {
	case isPresent && wasPublished && device.UUID != published.UUID:
		return Device{}, refuse(ReasonDeviceSwapped, "device %q was published as GPU %q, but now it is GPU %q", name, published.UUID, device.UUID)
	case isPresent && wasPublished && device.ParentUUID != published.ParentUUID:
		return Device{}, refuse(ReasonDeviceSwapped, "device %q was published as a part of GPU %q, but now it is one of GPU %q", name, published.ParentUUID, device.ParentUUID)
	case isPresent && device.UUID == "":
		return Device{}, refuse(ReasonDeviceGone, "device %q does not tell its UUID any more", name)
	case isPresent:
		return device, nil
	case !wasPublished:
		return Device{}, refuse(ReasonDeviceGone, "device %q is not on this node, and this driver has not published it", name)
	}
	for _, other := range sortedDevices(d.present) {
		// MIG devices of a GPU are all at its address, so none is in another's place.
		if published.ParentUUID == "" && published.PCIAddress != "" && other.PCIAddress == published.PCIAddress && other.Type == published.Type {
			return Device{}, refuse(ReasonDeviceSwapped, "device %s is gone since it was published, and %s is in its place; the claim needs a new allocation",
				published.String(), other.String())
		}
	}
	return Device{}, refuse(ReasonDeviceGone, "device %s is gone since it was published; present are %s", published.String(), listDevices(d.present))
}

// verify makes sure that the devices of a record are still there.
func (d devices) verify(record *checkpoint.Claim) error {
	for i := range record.Devices {
		have := &record.Devices[i]
		if device, err := d.resolve(have.Name); err != nil {
			return fmt.Errorf("resolving request %q: %w", have.Request, err)
		} else if device.UUID != have.UUID {
			return refuse(ReasonDeviceSwapped, "device %q was prepared as GPU %q, but now it is GPU %q", have.Name, have.UUID, device.UUID)
		}
	}
	return nil
}

// sortedDevices in order of name.
func sortedDevices(byName map[string]Device) []Device {
	out := make([]Device, 0, len(byName))
	for _, device := range byName {
		out = append(out, device)
	}
	slices.SortFunc(out, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// listDevices for messages.
func listDevices(byName map[string]Device) string {
	var names []string
	for _, device := range sortedDevices(byName) {
		names = append(names, device.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// sharingOf decodes the configurations that apply to the result.
func sharingOf(all []resourceapi.DeviceAllocationConfiguration, result *resourceapi.DeviceRequestAllocationResult) (api.SharingConfig, error) {
	var fromClass, fromClaim []*api.GPUClaimConfig
	for _, config := range resourceclaim.ConfigForResult(all, *result) {
		if config.Opaque.Driver != api.DriverName {
			continue
		}
		decoded, err := api.DecodeGPUClaimConfigFrom(config.Opaque.Parameters.Raw, config.Source)
		if err != nil {
			return api.SharingConfig{}, refuse(ReasonBadConfiguration, "%s configuration: %v", config.Source, err)
		}
		if config.Source == resourceapi.AllocationConfigSourceClass {
			fromClass = append(fromClass, decoded)
		} else {
			fromClaim = append(fromClaim, decoded)
		}
	}
	return api.EffectiveSharing(fromClass, fromClaim), nil
}

// recordDevice describes one result.
func recordDevice(claim *resourceapi.ResourceClaim, result *resourceapi.DeviceRequestAllocationResult, device Device, sharing api.SharingConfig) checkpoint.Device {
	out := checkpoint.Device{
		Request: result.Request, Pool: result.Pool, Name: result.Device, ShareID: shareID(result),
		UUID: device.UUID, ParentUUID: device.ParentUUID, Type: device.Type, PCIAddress: device.PCIAddress, MemoryMiB: device.memoryMiB(),
		CDIDevice:   cdi.Name(claim.UID, result.Request, result.Device, shareID(result)),
		AdminAccess: result.AdminAccess != nil && *result.AdminAccess,
		Settings: checkpoint.Settings{TaskPriority: string(sharing.TaskPriority), CorePolicy: string(sharing.CorePolicy),
			LogLevel: string(sharing.LogLevel), Enforcement: string(sharing.Enforcement)},
	}
	for name, amount := range result.ConsumedCapacity {
		if out.Consumed == nil {
			out.Consumed = map[string]int64{}
		}
		out.Consumed[string(name)] = amount.Value()
	}
	if !out.AdminAccess && sharing.Enforcement == api.EnforcementEnforced {
		out.Limit = limitOf(out.Consumed, device)
	}
	return out
}

// shareID of the result; "" when the device is not shared.
func shareID(result *resourceapi.DeviceRequestAllocationResult) string {
	if result.ShareID == nil {
		return ""
	}
	return string(*result.ShareID)
}

// limitOf returns nil for a claim that has all of the device's memory, since no
// other claim can then have any of it: it is alone there, whatever cores it
// asked for, and needs no limit.
func limitOf(consumed map[string]int64, device Device) *checkpoint.Limit {
	memory, shared := consumed[string(api.CapacityMemory)]
	if !shared || memory >= device.Capacity[string(api.CapacityMemory)] {
		return nil
	}
	cores := min(max(consumed[string(api.CapacityCores)], 0), 100)
	// A share below 1Mi cannot be published; 0 would be no limit at all.
	return &checkpoint.Limit{MemoryMiB: max(memory>>20, 1), CoresPercent: cores}
}

// sameAllocation says whether two records stand for the same devices and limits
// of the same allocation.
func sameAllocation(a, b *checkpoint.Claim) bool {
	return slices.EqualFunc(a.Devices, b.Devices, func(x, y checkpoint.Device) bool {
		return x.CDIDevice == y.CDIDevice && x.Pool == y.Pool && x.UUID == y.UUID && x.AdminAccess == y.AdminAccess && mapsEqual(x.Consumed, y.Consumed)
	})
}

// mapsEqual takes a missing amount for 0.
func mapsEqual(a, b map[string]int64) bool {
	for name, amount := range a {
		if b[name] != amount {
			return false
		}
	}
	for name, amount := range b {
		if a[name] != amount {
			return false
		}
	}
	return true
}
