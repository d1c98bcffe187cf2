// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// APIVersion is the only version of the document so far.
const APIVersion = "checkpoint.gpu.topodra.dev/v1"

// Document is what the driver remembers of its node.
type Document struct {
	// NodeName is the node that the document belongs to.
	NodeName string `json:"nodeName"`

	// BootID is the kernel's boot_id when the document was last reconciled with
	// the node. Another one now means that no container of then runs any more.
	BootID string `json:"bootID,omitempty"`

	// Claims by UID.
	Claims map[types.UID]*Claim `json:"claims,omitempty"`

	// unknown holds fields of other versions.
	unknown map[string]json.RawMessage
}

// State is how far the preparation of a claim has come.
type State string

const (
	// StateStarted: effects of the claim may be there, in part.
	StateStarted State = "Started"

	// StateCompleted: all effects of the claim were there.
	StateCompleted State = "Completed"
)

// Delivery is how limits get into containers.
type Delivery string

const (
	// DeliveryNone: the claim has no limits.
	DeliveryNone Delivery = "None"

	// DeliveryCDI: the claim's CDI spec carries them.
	DeliveryCDI Delivery = "CDI"

	// DeliveryNRI: the driver's NRI plugin adds them container by container,
	// and the CDI spec stops every container which that plugin did not see.
	DeliveryNRI Delivery = "NRI"
)

// Claim is one prepared ResourceClaim.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`

	// State of the preparation.
	State State `json:"state"`

	// Delivery of the limits.
	Delivery Delivery `json:"delivery"`

	// Enforcer is the name of the backend that keeps the limits; empty without
	// limits.
	Enforcer string `json:"enforcer,omitempty"`

	// PreparedAt is when the preparation began.
	PreparedAt time.Time `json:"preparedAt,omitzero"`

	// Consumers are the pods that may use the claim, by UID.
	Consumers []Consumer `json:"consumers,omitempty"`

	// Devices in the order of the claim's allocation result.
	Devices []Device `json:"devices"`

	// Groups say which devices a container gets together. Only with
	// DeliveryCDI, where it has to be known beforehand.
	Groups []Group `json:"groups,omitempty"`

	// Users are the containers that referred to the claim when it was prepared, as
	// far as that was found out. They are for telling people; nothing is decided by
	// them.
	Users []User `json:"users,omitempty"`

	unknown map[string]json.RawMessage
}

// Consumer is a pod in the claim's reservedFor.
type Consumer struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Device is one result of the claim's allocation.
type Device struct {
	// Request as in the allocation result, "main" or "main/sub".
	Request string `json:"request"`

	// Pool, Name and ShareID identify the result; ShareID is empty for devices
	// that are not shared.
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	ShareID string `json:"shareID,omitempty"`

	// UUID is who the device is. Names, addresses and numbers only say where.
	UUID string `json:"uuid"`

	// Type is a value of the attribute "type".
	Type string `json:"type"`

	// ParentUUID is the GPU of a MIG device.
	ParentUUID string `json:"parentUUID,omitempty"`

	// PCIAddress such as "0000:07:00.0", of the parent for a MIG device.
	PCIAddress string `json:"pciAddress"`

	// MemoryMiB is what the driver publishes for the whole device, in units of
	// 1,048,576 bytes; 0 when unknown.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`

	// CDIDevice is the qualified CDI name that the kubelet hands to the runtime.
	CDIDevice string `json:"cdiDevice"`

	// AdminAccess devices are neither booked nor limited.
	AdminAccess bool `json:"adminAccess,omitempty"`

	// Consumed is what the share books, by capacity name. Empty for a device
	// that is taken whole.
	Consumed map[string]int64 `json:"consumed,omitempty"`

	// Limit is what containers are held to; nil without limit.
	Limit *Limit `json:"limit,omitempty"`

	// Settings of the enforcement of this result.
	Settings Settings `json:"settings,omitzero"`
}

// Limit of one share of a GPU.
type Limit struct {
	// MemoryMiB in units of 1,048,576 bytes, above 0.
	MemoryMiB int64 `json:"memoryMiB"`

	// CoresPercent of the multiprocessors, 1 to 100; 0 is best effort without
	// limit.
	CoresPercent int64 `json:"coresPercent,omitempty"`
}

// Settings are the values of api.SharingConfig that hold for a result.
type Settings struct {
	TaskPriority string `json:"taskPriority,omitempty"`
	CorePolicy   string `json:"corePolicy,omitempty"`
	LogLevel     string `json:"logLevel,omitempty"`
	Enforcement  string `json:"enforcement,omitempty"`
}

// Group is a set of devices that exactly one container gets.
type Group struct {
	// Container is "pod UID/container name".
	Container string `json:"container"`

	// Devices are positions in Claim.Devices, ascending.
	Devices []int `json:"devices"`
}

// User is a container that refers to devices of a claim.
type User struct {
	Pod       types.UID `json:"pod"`
	Container string    `json:"container"`

	// Index of the container among those of the pod's spec. Init containers come
	// after the others.
	Index int `json:"index"`

	// Devices are positions in Claim.Devices, ascending.
	Devices []int `json:"devices"`
}

// Limited says whether any device has a limit.
func (c *Claim) Limited() bool {
	return slices.ContainsFunc(c.Devices, func(d Device) bool { return d.Limit != nil })
}

// HasConsumer says whether the pod may use the claim.
func (c *Claim) HasConsumer(pod types.UID) bool {
	return slices.ContainsFunc(c.Consumers, func(consumer Consumer) bool { return consumer.UID == pod })
}

// String names the claim for messages.
func (c *Claim) String() string { return c.Namespace + "/" + c.Name }

// SortedUIDs returns the keys of Claims in order.
func (d *Document) SortedUIDs() []types.UID { return slices.Sorted(maps.Keys(d.Claims)) }

// New returns an empty document.
func New(nodeName, bootID string) *Document {
	return &Document{NodeName: nodeName, BootID: bootID, Claims: map[types.UID]*Claim{}}
}

// Validate reports the first thing that no version of the driver writes.
func (d *Document) Validate() error {
	if d.NodeName == "" {
		return fmt.Errorf("nodeName is missing")
	}
	for _, uid := range d.SortedUIDs() {
		claim := d.Claims[uid]
		if uid == "" || claim == nil || claim.Name == "" || claim.Namespace == "" {
			return fmt.Errorf("claim %q has no name or no content", uid)
		}
		if err := claim.validate(); err != nil {
			return fmt.Errorf("claim %q (%s): %w", uid, claim, err)
		}
	}
	return nil
}

// validate checks one claim.
func (c *Claim) validate() error {
	if c.State != StateStarted && c.State != StateCompleted {
		return fmt.Errorf("state %q is unknown", c.State)
	}
	if c.Delivery != DeliveryNone && c.Delivery != DeliveryCDI && c.Delivery != DeliveryNRI {
		return fmt.Errorf("delivery %q is unknown", c.Delivery)
	}
	for i := range c.Devices {
		if err := c.Devices[i].validate(); err != nil {
			return fmt.Errorf("device %d (%q) %w", i, c.Devices[i].Name, err)
		}
	}
	for _, group := range c.Groups {
		if err := c.validatePositions(group.Devices); err != nil {
			return fmt.Errorf("group of %q %w", group.Container, err)
		}
	}
	for _, user := range c.Users {
		if err := c.validatePositions(user.Devices); err != nil {
			return fmt.Errorf("user %q of pod %q %w", user.Container, user.Pod, err)
		}
	}
	return nil
}

// validatePositions checks positions in Devices; errors continue a sentence.
func (c *Claim) validatePositions(positions []int) error {
	for _, position := range positions {
		if position < 0 || position >= len(c.Devices) {
			return fmt.Errorf("names device %d of %d", position, len(c.Devices))
		}
	}
	return nil
}

// validate checks one device; errors continue "device … ".
func (d *Device) validate() error {
	if d.Request == "" || d.Pool == "" || d.Name == "" || d.UUID == "" || d.CDIDevice == "" {
		return errors.New("lacks its request, pool, name, UUID or CDI name")
	}
	if limit := d.Limit; limit != nil && (limit.MemoryMiB <= 0 || limit.CoresPercent < 0 || limit.CoresPercent > 100) {
		return fmt.Errorf("has an impossible limit %+v", *limit)
	}
	for name, amount := range d.Consumed {
		if amount < 0 {
			return fmt.Errorf("consumes %d of %q", amount, name)
		}
	}
	return nil
}
