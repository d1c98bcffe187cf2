// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/driver/cdi"
	"github.com/topodra/topodra/driver/checkpoint"
)

// Pod is the pod that a container belongs to.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// Held is a prepared device that a container has.
type Held struct {
	// Claim that the device belongs to, and its name.
	Claim                types.UID
	Namespace, ClaimName string

	// Device as recorded.
	Device checkpoint.Device
}

// Lookup returns the devices behind the CDI names of a container. It fails when
// a claim is not prepared completely or the pod may not use it. The checkpoint
// alone decides where it can: it is asked while a container is being made. Only
// a pod that has reserved the claim after it was prepared takes a question to
// the API server, since the kubelet does not prepare such a claim again.
func (m *Manager) Lookup(ctx context.Context, pod Pod, names []string) ([]Held, error) {
	document, err := m.loadOfThisBoot(ctx)
	if err != nil {
		return nil, err
	}
	var out []Held
	for _, name := range names {
		uid, ours := cdi.ClaimOf(name)
		if !ours {
			return nil, fmt.Errorf("CDI device %q is none of this driver's", name)
		}
		record := document.Claims[uid]
		if record == nil || record.State != checkpoint.StateCompleted {
			return nil, fmt.Errorf("CDI device %q belongs to claim UID %q, which is not prepared on this node", name, uid)
		}
		if !record.HasConsumer(pod.UID) {
			if err := m.admit(ctx, uid, record, pod); err != nil {
				return nil, err
			}
		}
		device, err := deviceNamed(record, name)
		if err != nil {
			return nil, err
		}
		out = append(out, Held{Claim: uid, Namespace: record.Namespace, ClaimName: record.Name, Device: device})
	}
	return out, nil
}

// loadOfThisBoot reads the checkpoint. Whoever asks may be about to make a region, so
// a new boot is noticed first.
func (m *Manager) loadOfThisBoot(ctx context.Context) (*checkpoint.Document, error) {
	document, err := m.host.Load()
	if err != nil {
		return nil, err
	}
	bootID, err := m.host.BootID()
	if err != nil || document.BootID == bootID {
		return document, err
	}
	err = m.locked(ctx, func(noticed *checkpoint.Document) error {
		document = noticed
		return nil
	})
	return document, err
}

// deviceNamed finds the device of a record.
func deviceNamed(record *checkpoint.Claim, name string) (checkpoint.Device, error) {
	for i := range record.Devices {
		if record.Devices[i].CDIDevice == name {
			return record.Devices[i], nil
		}
	}
	return checkpoint.Device{}, fmt.Errorf("claim %q has no CDI device %q", record, name)
}

// admit looks whether the pod has reserved the claim by now, and remembers it.
func (m *Manager) admit(ctx context.Context, uid types.UID, record *checkpoint.Claim, pod Pod) error {
	if pod.Namespace != record.Namespace {
		return fmt.Errorf("pod \"%s/%s\" may not use claim %q of another namespace", pod.Namespace, pod.Name, record)
	}
	claim, err := m.options.Cluster.Claim(ctx, record.Namespace, record.Name)
	if err != nil {
		return fmt.Errorf("finding out whether pod \"%s/%s\" may use claim %q: %w", pod.Namespace, pod.Name, record, err)
	}
	fresh := &checkpoint.Claim{Consumers: consumers(claim)}
	if claim.UID != uid || !fresh.HasConsumer(pod.UID) {
		return fmt.Errorf("pod \"%s/%s\" (%s) has not reserved claim %q, so its containers get nothing of it", pod.Namespace, pod.Name, pod.UID, record)
	}
	// Prepare has looked at the pods of then only.
	containers, err := m.containers(ctx, &checkpoint.Claim{Namespace: record.Namespace, Name: record.Name, Consumers: fresh.Consumers, Devices: record.Devices})
	if err != nil {
		return err
	}
	if refusal := checkSharing(record, containers); refusal != nil {
		return refusal
	}
	return m.locked(ctx, func(document *checkpoint.Document) error {
		current := document.Claims[uid]
		if current == nil {
			return fmt.Errorf("claim %q is not prepared any more", record)
		}
		current.Consumers = fresh.Consumers
		return m.host.Save(document)
	})
}

// ClaimRegion is the host directory for the region of a container, "pod UID/name",
// whose limits are in the claim's CDI spec.
func (m *Manager) ClaimRegion(claim types.UID, container string) string {
	return m.where.claimRegion(claim, container)
}

// ContainerRegion is the host directory for the region of a container with the
// runtime's ID.
func (m *Manager) ContainerRegion(containerID string) string {
	return m.where.containerRegion(containerID)
}
